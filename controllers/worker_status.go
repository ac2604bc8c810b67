package controllers

import (
	"cmp"
	"context"
	"encoding/json"
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
	"redrive.dev/redrive/internal/workload"
)

const (
	// askTimeout bounds the time in which all pods of a Transport have to answer.
	askTimeout = 2 * time.Second
	// maxPodsAsked bounds how many pods of a Transport are asked, and askedAtOnce how many at a time.
	maxPodsAsked = 50
	askedAtOnce  = 10
	// silentFor is how long the pods of a Transport are left alone where none of them answered in time, mostly because a
	// NetworkPolicy is in the way.
	silentFor = 5 * time.Minute

	// What a pod says is bounded: anybody's image may run in it.
	maxAnswer      = 64 << 10
	maxTroubles    = 100
	maxTroubleText = 300
	maxSubjectText = 100
	// mostHeard is how many different troubles of a Transport are remembered.
	mostHeard = 256
)

// podProblem is what pods of a worker group say that holds messages back.
type podProblem struct{ worker, reason, text string }

func (t podProblem) String() string { return string(kindWorker) + " " + t.worker + ": " + t.text }

// kind is what of a trouble tells it from others. Of a handler that is not ready the text does not: it may hold what a process
// last said, which is another with each pod and each try.
func (t podProblem) kind() podProblem {
	if t.reason == v1alpha1.ReasonHandlerNotReady {
		t.text = ""
	}
	return t
}

// statusScraper asks worker pods what they say of themselves, and remembers it. It is safe for concurrent use.
type statusScraper struct {
	// age is how long an answer counts as of now.
	age    time.Duration
	client *http.Client

	mu  sync.Mutex
	all map[types.NamespacedName]podReports
}

// podReports is what the pods of one Transport said.
type podReports struct {
	// asked is when they were last asked, and silent when none answered in time.
	asked, silent time.Time
	// heard is by how many pods each trouble is told, and changed when the troubles last became others.
	heard   map[podProblem]int64
	changed time.Time
	// told are the troubles that events and the condition tell of; nil where that is not known.
	told map[podProblem]dampedCount
}

func newStatusScraper(age time.Duration) *statusScraper {
	return &statusScraper{
		age: age,
		// Pods are spoken to directly, and must not send the operator elsewhere.
		client: &http.Client{
			Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		all: map[types.NamespacedName]podReports{},
	}
}

// of is what is remembered of a Transport. recent is true where its pods need not, or should not, be asked again yet.
func (v *statusScraper) of(name types.NamespacedName, now time.Time) (last podReports, recent bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last = v.all[name]
	return last, now.Sub(last.asked) < v.age || now.Sub(last.silent) < silentFor
}

func (v *statusScraper) change(name types.NamespacedName, change func(*podReports)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.all[name]
	change(&known)
	v.all[name] = known
}

func (v *statusScraper) forget(name types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, name)
}

// scrapeResult is what the pods of a Transport say at one time.
type scrapeResult struct {
	// heard is by how many pods each trouble is told.
	heard map[podProblem]int64
	// answered are the worker groups of which a worker answered. A quarantine pod does not speak for the workers.
	answered map[string]bool
	// silent is true where not one pod answered in time.
	silent bool
}

// askedPod is what is kept of a pod that is asked: where, and the labels that tell whose worker it is.
type askedPod struct {
	address string
	labels  map[string]string
}

// ask asks each pod for its troubles. One that does not answer tells of none.
func (v *statusScraper) ask(ctx context.Context, pods []askedPod) scrapeResult {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	type reply struct {
		worker   string
		troubles []podProblem
	}
	answers := make(chan reply, len(pods))
	seats := make(chan struct{}, askedAtOnce)
	var asking sync.WaitGroup
	for _, pod := range pods {
		asking.Go(func() {
			seats <- struct{}{}
			defer func() { <-seats }()
			if answer := v.status(ctx, pod.address); answer != nil {
				answers <- reply{pod.labels[workload.WorkerLabel], troublesIn(answer, workload.GroupOf(pod.labels))}
			}
		})
	}
	broker.Await(ctx, asking.Wait)
	close(answers)
	h := scrapeResult{
		heard: map[podProblem]int64{}, answered: map[string]bool{}, silent: len(pods) > 0 && len(answers) == 0 && ctx.Err() != nil,
	}
	for answer := range answers {
		h.answered[answer.worker] = true
		for _, one := range answer.troubles {
			h.hear(one, 1)
		}
	}
	return h
}

// hear takes down that pods tell of a trouble. What all pods of a Transport say is remembered, and so it is bounded, too.
func (h scrapeResult) hear(one podProblem, pods int64) {
	if _, known := h.heard[one]; known || len(h.heard) < mostHeard {
		h.heard[one] += pods
	}
}

// keep lets what was heard last stand for the worker groups that have pods, of which none answered now.
func (h scrapeResult) keep(last map[podProblem]int64, replicas map[string]int32) {
	for one, pods := range last {
		if _, heard := h.heard[one]; !heard && !h.answered[one.worker] && replicas[one.worker] > 0 {
			h.hear(one, pods)
		}
	}
}

// settle puts troubles of one kind into one text: that which is told already, as long as pods say so too or it is not old, else
// one of theirs.
func (h scrapeResult) settle(told map[podProblem]dampedCount, now time.Time) {
	texts, pods := map[podProblem]podProblem{}, map[podProblem]int64{}
	for one, n := range h.heard {
		kind := one.kind()
		if known, is := texts[kind]; !is || one.text < known.text {
			texts[kind] = one
		}
		pods[kind] += n
	}
	for one, figure := range told {
		if _, said := h.heard[one]; said || pods[one.kind()] > 0 && now.Sub(figure.at) < betweenCounts {
			texts[one.kind()] = one
		}
	}
	clear(h.heard)
	for kind, one := range texts {
		h.heard[one] = pods[kind]
	}
}

// merge remembers what pods say.
func (v *podReports) merge(h scrapeResult, now time.Time) {
	if !maps.Equal(kindsOf(v.heard), kindsOf(h.heard)) {
		v.changed = now
	}
	v.asked, v.heard, v.silent = now, h.heard, time.Time{}
	if h.silent {
		v.silent = now
	}
}

func kindsOf(heard map[podProblem]int64) map[podProblem]bool {
	kinds := map[podProblem]bool{}
	for one := range heard {
		kinds[one.kind()] = true
	}
	return kinds
}

// tells is true where pods of a worker group told of a trouble.
func (v *podReports) tells(worker string) bool {
	for one := range v.heard {
		if one.worker == worker {
			return true
		}
	}
	return false
}

// next is how long it is until pods with troubles are asked again; zero where there is no hurry. A trouble that stays is no
// reason to look all the time.
func (v *podReports) next(now time.Time) time.Duration {
	if len(v.heard) == 0 || now.Sub(v.changed) >= fastRequeueFor {
		return 0
	}
	return jitter(fastRequeueInterval)
}

// hashes asks the pods at some addresses for the configuration that each has in force; empty for those that give no answer.
func (v *statusScraper) hashes(ctx context.Context, addresses []string) []string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hashes := make([]string, len(addresses))
	var next atomic.Int64
	var asking sync.WaitGroup
	for range min(askedAtOnce, len(addresses)) {
		asking.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(addresses)); i = next.Add(1) - 1 {
				if answer := v.status(ctx, addresses[i]); answer != nil {
					hashes[i] = answer.ConfigHash
				}
			}
		})
	}
	broker.Await(ctx, asking.Wait)
	return hashes
}

// addressOf a pod is where it is asked.
func addressOf(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(statusPort(pod))))
}

// status asks the pod at an address; nil where that gives no answer that can be read.
func (v *statusScraper) status(ctx context.Context, address string) *compile.WorkerStatus {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return nil
	}
	response, err := v.client.Do(request)
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

// canAnswer is true for a pod whose worker runs and that has an address of its own. One that is not ready may have the most to
// tell.
func canAnswer(pod *corev1.Pod) bool {
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

// troublesIn are the troubles in the answer of a pod, each once. Reasons that are not known are left out.
func troublesIn(answer *compile.WorkerStatus, worker string) []podProblem {
	var found []podProblem
	for _, told := range answer.Troubles[:min(len(answer.Troubles), maxTroubles)] {
		switch told.Reason {
		case v1alpha1.ReasonQueueBlocked, v1alpha1.ReasonHandlerNotReady, v1alpha1.ReasonCircuitOpen, v1alpha1.ReasonRetryBudgetExhausted,
			v1alpha1.ReasonQueueUnavailable, v1alpha1.ReasonPublishFailing:
		default:
			continue
		}
		text := cmp.Or(clean(told.Message, maxTroubleText), told.Reason)
		subject := clean(told.Subject, maxSubjectText)
		if !strings.Contains(text, subject) {
			text += " (" + subject + ")"
		}
		one := podProblem{worker: worker, reason: told.Reason, text: text}
		if !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}

// clean makes a text of others one line of at most n bytes, of characters that can be seen.
func clean(text string, n int) string {
	visible := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	return shorten(strings.Join(strings.Fields(visible), " "), n)
}
