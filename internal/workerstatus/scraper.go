// Package workerstatus asks the pods of workers which problems they have, and which configuration is in force.
package workerstatus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

const (
	// askTimeout bounds the time in which all pods of a Transport have to answer.
	askTimeout = 2 * time.Second
	// MaxPodsAsked bounds how many pods of a Transport are asked, and askedAtOnce how many at a time.
	MaxPodsAsked = 50
	askedAtOnce  = 10
	// silentFor is how long the pods of a Transport are left alone where none of them answered in time, mostly because a
	// NetworkPolicy is in the way.
	silentFor = 5 * time.Minute

	// What a pod says is bounded: anybody's image may run in it.
	maxAnswer      = 64 << 10
	maxProblems    = 100
	maxProblemText = 300
	maxSubjectText = 100
	// mostHeard is how many different problems of a Transport are remembered, and mostBreakers how many there may be for one of a key to be among them.
	mostHeard    = 256
	mostBreakers = mostHeard / 2
)

// Problem is what pods of a worker group say that holds messages back.
type Problem struct{ Worker, Reason, Text string }

func (t Problem) String() string { return "worker " + t.Worker + ": " + t.Text }

// Kind is what of a problem tells it from others. Of a handler that is not ready the text does not: it may hold what a process
// last said, which is another with each pod and each try.
func (t Problem) Kind() Problem {
	if t.Reason == v1alpha1.ReasonHandlerNotReady {
		t.Text = ""
	}
	return t
}

// Scraper asks worker pods what they say of themselves, and remembers it. It is safe for concurrent use.
type Scraper struct {
	// age is how long an answer counts as of now.
	age    time.Duration
	client *http.Client

	mu  sync.Mutex
	all map[types.NamespacedName]Reports
}

// Reports is what the pods of one Transport said.
type Reports struct {
	// asked is when they were last asked, and silent when none answered in time.
	asked, silent time.Time
	// heard is by how many pods each problem is told, and changed when the problems last became others.
	heard   map[Problem]int64
	changed time.Time
	// Told are the problems that events and the condition tell of; nil where that is not known.
	Told map[Problem]status.Damped
}

// NewScraper returns a Scraper whose answers count as of now for so long.
func NewScraper(age time.Duration) *Scraper {
	return &Scraper{
		age: age,
		// Pods are spoken to directly, and must not send the operator elsewhere.
		client: &http.Client{
			Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		all: map[types.NamespacedName]Reports{},
	}
}

// Last is what the pods of a Transport said when they were last asked.
func (s *Scraper) Last(transport types.NamespacedName) Reports {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[transport]
}

// isRecent is true of pods that need not, or should not, be asked again yet.
func (s *Scraper) isRecent(last Reports, now time.Time) bool {
	return now.Sub(last.asked) < s.age || now.Sub(last.silent) < silentFor
}

// Told notes the problems that the condition of a Transport tells of.
func (s *Scraper) Told(transport types.NamespacedName, told map[Problem]status.Damped) {
	s.change(transport, func(r *Reports) { r.Told = told })
}

func (s *Scraper) change(transport types.NamespacedName, change func(*Reports)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.all[transport]
	change(&known)
	s.all[transport] = known
}

// Forget drops what is remembered of a Transport that is gone.
func (s *Scraper) Forget(transport types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, transport)
}

// Hear gives the number of pods of some worker groups that tell of each problem. The groups are given with how many pods each is to have, and
// list visits the pods of the Transport until there are to be no more. Pods that were asked lately are not asked again, and where a list fails
// what was heard last stands.
func (s *Scraper) Hear(
	ctx context.Context, transport types.NamespacedName, groups map[string]int32, now time.Time,
	list func(visit func(*corev1.Pod) (more bool)) error,
) (map[Problem]int64, error) {
	if len(groups) == 0 {
		return map[Problem]int64{}, nil
	}
	last := s.Last(transport)
	if s.isRecent(last, now) {
		return last.heard, nil
	}
	var pods []endpoint
	seen := 0
	err := list(func(pod *corev1.Pod) (more bool) {
		if _, may := groups[workload.GroupOf(pod.Labels)]; may && CanAnswer(pod) {
			pods = append(pods, endpoint{AddressOf(pod), workload.OwnLabels(pod.Labels)})
		}
		seen++
		return seen < 2*MaxPodsAsked && len(pods) < MaxPodsAsked
	})
	if err != nil {
		return last.heard, fmt.Errorf("list the pods: %w", err)
	}
	said := s.ask(ctx, pods)
	said.keep(last.heard, groups)
	said.settle(last.Told, now)
	s.change(transport, func(r *Reports) { r.merge(said, now) })
	return said.heard, nil
}

// result is what the pods of a Transport say at one time.
type result struct {
	// heard is by how many pods each problem is told.
	heard map[Problem]int64
	// answered are the worker groups of which a worker answered. A quarantine pod does not speak for the workers.
	answered map[string]bool
	// silent is true where not one pod answered in time.
	silent bool
}

// endpoint is what is kept of a pod that is asked: where, and the labels that tell whose worker it is.
type endpoint struct {
	address string
	labels  map[string]string
}

// ask asks each pod for its problems. One that does not answer tells of none.
func (s *Scraper) ask(ctx context.Context, pods []endpoint) result {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	type reply struct {
		worker string
		found
	}
	answers := make(chan reply, len(pods))
	slots := make(chan struct{}, askedAtOnce)
	var asking sync.WaitGroup
	for _, pod := range pods {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if answer := s.status(ctx, pod.address); answer != nil {
				answers <- reply{pod.labels[workload.WorkerLabel], problemsIn(answer, workload.GroupOf(pod.labels))}
			}
		})
	}
	broker.Await(ctx, asking.Wait)
	close(answers)
	r := result{
		heard: map[Problem]int64{}, answered: map[string]bool{}, silent: len(pods) > 0 && len(answers) == 0 && ctx.Err() != nil,
	}
	var breakers []Problem
	for answer := range answers {
		r.answered[answer.worker] = true
		for _, one := range answer.problems {
			r.hear(one, 1, mostHeard)
		}
		breakers = append(breakers, answer.breakers...)
	}
	for _, one := range breakers {
		r.hear(one, 1, mostBreakers)
	}
	return r
}

// hear takes down that pods tell of a problem, where it is known or there are not so many yet. What all pods of a Transport say is remembered, and so it is
// bounded, too.
func (r result) hear(one Problem, pods int64, most int) {
	if _, known := r.heard[one]; known || len(r.heard) < most {
		r.heard[one] += pods
	}
}

// keep lets what was heard last stand for the worker groups that have pods, of which none answered now.
func (r result) keep(last map[Problem]int64, replicas map[string]int32) {
	for one, pods := range last {
		if _, heard := r.heard[one]; !heard && !r.answered[one.Worker] && replicas[one.Worker] > 0 {
			r.hear(one, pods, mostHeard)
		}
	}
}

// settle puts problems of one kind into one text: that which is told already, as long as pods say so too or it is not old, else
// one of theirs.
func (r result) settle(told map[Problem]status.Damped, now time.Time) {
	texts, pods := map[Problem]Problem{}, map[Problem]int64{}
	for one, n := range r.heard {
		kind := one.Kind()
		if known, is := texts[kind]; !is || one.Text < known.Text {
			texts[kind] = one
		}
		pods[kind] += n
	}
	for one, figure := range told {
		if _, said := r.heard[one]; said || pods[one.Kind()] > 0 && now.Sub(figure.At) < status.MinCountInterval {
			texts[one.Kind()] = one
		}
	}
	clear(r.heard)
	for kind, one := range texts {
		r.heard[one] = pods[kind]
	}
}

// merge remembers what pods say.
func (r *Reports) merge(said result, now time.Time) {
	if !maps.Equal(kindsOf(r.heard), kindsOf(said.heard)) {
		r.changed = now
	}
	r.asked, r.heard, r.silent = now, said.heard, time.Time{}
	if said.silent {
		r.silent = now
	}
}

func kindsOf(heard map[Problem]int64) map[Problem]bool {
	kinds := map[Problem]bool{}
	for one := range heard {
		kinds[one.Kind()] = true
	}
	return kinds
}

// Tells is true where pods of a worker group told of a problem.
func (r *Reports) Tells(worker string) bool {
	for one := range r.heard {
		if one.Worker == worker {
			return true
		}
	}
	return false
}

// HasNew is true where pods tell of problems, and these have become others within so long.
func (r *Reports) HasNew(within time.Duration, now time.Time) bool {
	return len(r.heard) > 0 && now.Sub(r.changed) < within
}

// Hashes asks the pods at some addresses for the configuration that each has in force; empty for those that give no answer.
func (s *Scraper) Hashes(ctx context.Context, addresses []string) []string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hashes := make([]string, len(addresses))
	var next atomic.Int64
	var asking sync.WaitGroup
	for range min(askedAtOnce, len(addresses)) {
		asking.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(addresses)); i = next.Add(1) - 1 {
				if answer := s.status(ctx, addresses[i]); answer != nil {
					hashes[i] = answer.ConfigHash
				}
			}
		})
	}
	broker.Await(ctx, asking.Wait)
	return hashes
}

// AddressOf a pod is where it is asked.
func AddressOf(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(statusPort(pod))))
}

// status asks the pod at an address; nil where that gives no answer that can be read.
func (s *Scraper) status(ctx context.Context, address string) *compile.WorkerStatus {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return nil
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	status := &compile.WorkerStatus{}
	if response.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(status) != nil {
		return nil
	}
	return status
}

// CanAnswer is true for a pod whose worker runs and that has an address of its own. One that is not ready may have the most to
// tell.
func CanAnswer(pod *corev1.Pod) bool {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	runs := slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == workload.Container && c.State.Running != nil
	})
	return (ready || runs) && pod.DeletionTimestamp.IsZero() && pod.Status.PodIP != "" && !pod.Spec.HostNetwork && statusPort(pod) != 0
}

func statusPort(pod *corev1.Pod) int32 {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name == workload.PortName {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// found are the problems in the answer of a pod, each once. breakers are those of keys, which come from messages: as many as one producer wishes, and
// they must not take the place of the others.
type found struct{ problems, breakers []Problem }

// problemsIn finds a bounded number of problems in the answer of a pod. Reasons that are not known are left out.
func problemsIn(answer *compile.WorkerStatus, worker string) found {
	var all found
	for i := range answer.Troubles {
		told := &answer.Troubles[i]
		list := &all.problems
		switch told.Reason {
		case v1alpha1.ReasonCircuitOpen:
			if told.Subject != "" {
				list = &all.breakers
			}
		case v1alpha1.ReasonQueueBlocked, v1alpha1.ReasonHandlerNotReady, v1alpha1.ReasonRetryBudgetExhausted,
			v1alpha1.ReasonQueueUnavailable, v1alpha1.ReasonPublishFailing:
		default:
			continue
		}
		text := cmp.Or(clean(told.Message, maxProblemText), told.Reason)
		subject := clean(told.Subject, maxSubjectText)
		if !strings.Contains(text, subject) {
			text += " (" + subject + ")"
		}
		one := Problem{Worker: worker, Reason: told.Reason, Text: text}
		if len(*list) < maxProblems && !slices.Contains(*list, one) {
			*list = append(*list, one)
		}
	}
	all.breakers = all.breakers[:min(len(all.breakers), maxProblems-len(all.problems))]
	return all
}

// clean makes a text of others one line of at most n bytes, of characters that can be seen.
func clean(text string, n int) string {
	visible := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	return status.Shorten(strings.Join(strings.Fields(visible), " "), n)
}
