// Package autoscaling tells KEDA and HorizontalPodAutoscalers for how many messages worker groups are to have pods.
package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

const (
	// sampleTimeout bounds how long a sample of the queues of a Transport takes, also where no caller waits for it any more.
	sampleTimeout = 30 * time.Second
	// samplePatience is how long a caller waits for a sample: KEDA gives up after 3 s.
	samplePatience = 2 * time.Second
	// mostSamples bounds those under way, of all namespaces and brokers. A namespace has a quarter of what is free, however many brokers its own claim to be.
	mostSamples = 512
	// maxSampleAge is how much older than the question before a sample may be that serves where a slow broker does not give a newer one in time.
	maxSampleAge = 45 * time.Second
	// keepSample is how long a sample that no caller asks for is kept.
	keepSample = 10 * time.Minute
)

var (
	// errNotScaled says that there is no such worker group, or that it is not scaled.
	errNotScaled = errors.New("no worker group of this name is scaled")
	// ErrNoSample says that the broker gives no number in time.
	ErrNoSample = errors.New("the broker gives no answer in time")
	// errNoConfiguration says that it is not known what the workers of a group consume.
	errNoConfiguration = errors.New("the worker group has no configuration yet")
)

// Source is what a Meter asks the operator for.
type Source interface {
	// Configurations visits the configurations that are published for worker groups of a Transport, with the queues that each consumes. These name
	// stand-ins, and queues that are no longer in the spec and still to be emptied.
	Configurations(ctx context.Context, t *v1alpha1.Transport, workers []string, visit func(worker string, queues []compile.Queue)) error
	// Observe takes the snapshot that all Transports of the vhost share, at most so old. The error is ErrNoSample where the broker does not answer
	// in time.
	Observe(ctx context.Context, t *v1alpha1.Transport, age, timeout time.Duration) (topology.Observed, error)
	// Hear asks the pods of worker groups for their problems, as workerstatus.Scraper does.
	Hear(ctx context.Context, scraper *workerstatus.Scraper, t *v1alpha1.Transport, groups map[string]int32, now time.Time) (map[workerstatus.Problem]int64, error)
	// Owner is the value of the owner mark of a Transport's objects on the broker.
	Owner(t *v1alpha1.Transport) string
}

// Meter tells for how many messages worker groups are to have pods. It works in every manager, also in one that does not lead. It is
// safe for concurrent use.
type Meter struct {
	client client.Reader
	source Source
	// age is how long a sample counts as of now.
	age time.Duration
	// scraper of the pods whose breakers matter here, apart from what reconciles hear and remember.
	scraper *workerstatus.Scraper
	// looks are the samples under way.
	looks *tenancy.Admission

	mu      sync.Mutex
	samples map[types.NamespacedName]*cachedSample
}

// cachedSample is the last sample of the queues of one Transport.
type cachedSample struct {
	sampleTaken

	taken, asked time.Time
	// err of the last sample that failed; nil after one that did not.
	err error
	// busy is closed when the sample that is under way is over; nil where none is.
	busy chan struct{}
}

// sampleTaken is never changed. It is kept for minutes, and so it is small, however many queues there are.
type sampleTaken struct {
	// loads of the worker groups that are scaled and have a configuration.
	loads map[string]load
	// open are the worker groups that leave their handler alone, and failing those that hold messages because the broker does not take them.
	open, failing map[string]bool
}

// load is the number of messages for which a worker group is to have pods.
type load struct {
	messages int64
	// ready is that number without the messages that pods have in hand.
	ready int64
	// uncounted is a queue that the broker has not counted; empty where it has counted all. A quorum queue without a leader has no count for good.
	uncounted string
}

// NewMeter returns a Meter that reads Transports and Deployments from a client.
func NewMeter(reader client.Reader, source Source, age time.Duration) *Meter {
	return &Meter{
		client: reader, source: source, age: age, scraper: workerstatus.NewScraper(age), looks: tenancy.NewAdmission(mostSamples),
		samples: map[types.NamespacedName]*cachedSample{},
	}
}

// demand is the number of messages for which a worker group is to have pods. The error is errNotScaled where it is not scaled, and
// any other one where there is no number at the moment.
func (m *Meter) demand(ctx context.Context, name types.NamespacedName, worker string) (int64, error) {
	t := &v1alpha1.Transport{} // no copy: it may be large, and hundreds of callers wait for a sample with it
	if err := m.client.Get(ctx, name, t, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return 0, errNotScaled
		}
		return 0, fmt.Errorf("read the Transport: %w", err)
	}
	for i := range t.Spec.Workers {
		if w := &t.Spec.Workers[i]; w.Name == worker && w.Autoscaling != nil {
			return m.demandOf(ctx, t, w)
		}
	}
	return 0, errNotScaled
}

func (m *Meter) demandOf(ctx context.Context, t *v1alpha1.Transport, w *v1alpha1.Worker) (int64, error) {
	seen, err := m.latest(ctx, t)
	if err != nil {
		return 0, err
	}
	its, told := seen.loads[w.Name]
	switch {
	case !told:
		return 0, errNoConfiguration
	case its.uncounted == "" && !seen.open[w.Name] && !seen.failing[w.Name]:
		return its.messages, nil
	}
	pods, err := m.pods(ctx, t, w)
	if err != nil {
		return 0, err
	}
	scaling, _ := compile.ScalingOf(w)
	return its.demand(int64(pods)*scaling.MessagesPerPod, seen.open[w.Name], seen.failing[w.Name])
}

// demand is the number of messages where the present pods are there for so many, and their breaker may be open: more of them would only find out the same.
// And they may be failing to publish: more of them take none of the messages that are held for that, and would hold as many again. Where there is no
// pod, neither is true. What is counted is the least that there is: as long as some is not, it makes pods, and takes none away.
func (l load) demand(present int64, open, failing bool) (int64, error) {
	messages := l.messages
	switch {
	case present == 0:
	case open:
		messages = min(messages, present)
	case failing:
		messages = min(messages, max(present, l.ready))
	}
	if l.uncounted != "" && messages <= present {
		return 0, fmt.Errorf("the broker has not counted the messages in %s yet", l.uncounted)
	}
	return messages, nil
}

// pods is how many a worker group is to have at the moment.
func (m *Meter) pods(ctx context.Context, t *v1alpha1.Transport, w *v1alpha1.Worker) (int32, error) {
	deployment := &appsv1.Deployment{}
	err := m.client.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: workload.Name(t, w.Name)}, deployment, client.UnsafeDisableDeepCopy)
	if err != nil {
		if client.IgnoreNotFound(err) == nil {
			return 0, nil
		}
		return 0, fmt.Errorf("read the Deployment of worker %q: %w", w.Name, err)
	}
	return workload.Replicas(deployment), nil
}

// latest returns a sample that is recent enough. All who ask for one Transport wait for the same, and it goes on where they give up: a
// slow broker has its answer ready for the next one.
func (m *Meter) latest(ctx context.Context, t *v1alpha1.Transport) (sampleTaken, error) {
	name, now := client.ObjectKeyFromObject(t), time.Now()
	m.mu.Lock()
	m.prune(now)
	known := m.samples[name]
	if known == nil {
		known = &cachedSample{asked: now}
		m.samples[name] = known
	}
	mayBe := maxSampleAge + now.Sub(known.asked)
	known.asked = now
	if now.Sub(known.taken) < m.age {
		defer m.mu.Unlock()
		return known.sampleTaken, known.err
	}
	busy := m.begin(ctx, t, known)
	m.mu.Unlock()

	over := busy != nil && awaitSample(ctx, busy)
	m.mu.Lock()
	defer m.mu.Unlock()
	if over || known.err == nil && time.Since(known.taken) < mayBe {
		return known.sampleTaken, known.err
	}
	return sampleTaken{}, ErrNoSample
}

// begin has a sample taken, unless one is under way; nil where the namespace has as many under way as it may have.
func (m *Meter) begin(ctx context.Context, t *v1alpha1.Transport, known *cachedSample) (busy chan struct{}) {
	if known.busy != nil {
		return known.busy
	}
	leave, err := m.looks.Enter(t.Namespace, false)
	if err != nil {
		return nil
	}
	known.busy = make(chan struct{})
	go func(t *v1alpha1.Transport) {
		defer leave()
		m.refresh(context.WithoutCancel(ctx), t, known)
	}(t.DeepCopy())
	return known.busy
}

// awaitSample is false where the sample takes too long.
func awaitSample(ctx context.Context, busy chan struct{}) bool {
	patience := time.NewTimer(samplePatience)
	defer patience.Stop()
	select {
	case <-busy:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	return false
}

func (m *Meter) refresh(ctx context.Context, t *v1alpha1.Transport, known *cachedSample) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	seen, err := m.sample(ctx, t)
	m.mu.Lock()
	defer m.mu.Unlock()
	known.sampleTaken, known.err, known.taken = seen, err, time.Now()
	close(known.busy)
	known.busy = nil
}

func (m *Meter) prune(now time.Time) {
	for name, l := range m.samples {
		if l.busy == nil && now.Sub(l.asked) > keepSample {
			delete(m.samples, name)
			m.scraper.Forget(name)
		}
	}
}

// sample counts the messages, and hears of what more pods do not help against.
func (m *Meter) sample(ctx context.Context, t *v1alpha1.Transport) (sampleTaken, error) {
	observed, err := m.source.Observe(ctx, t, m.age, sampleTimeout)
	if err != nil {
		return sampleTaken{}, err
	}
	taken := sampleTaken{open: map[string]bool{}, failing: map[string]bool{}}
	if taken.loads, err = m.loads(ctx, t, observed.Queues); err != nil {
		return sampleTaken{}, err
	}
	err = m.hear(ctx, t, &taken)
	return taken, err
}

// loads are those of the worker groups that are scaled, by their published configurations.
func (m *Meter) loads(ctx context.Context, t *v1alpha1.Transport, observed map[string]topology.QueueState) (map[string]load, error) {
	loads, scalings := map[string]load{}, map[string]compile.Scaling{}
	var names []string
	for i := range t.Spec.Workers {
		if scaling, scaled := compile.ScalingOf(&t.Spec.Workers[i]); scaled {
			names = append(names, t.Spec.Workers[i].Name)
			scalings[t.Spec.Workers[i].Name] = scaling
		}
	}
	err := m.source.Configurations(ctx, t, names, func(worker string, queues []compile.Queue) {
		loads[worker] = m.loadOf(t, queues, scalings[worker], observed)
	})
	return loads, err
}

// loadOf counts what is in the queues of a configuration. Anybody may have written that: queues that are not the Transport's do not count.
func (m *Meter) loadOf(t *v1alpha1.Transport, queues []compile.Queue, scaling compile.Scaling, observed map[string]topology.QueueState) load {
	its, owner, uncounted := queuesOf(t), m.source.Owner(t), ""
	demand := func(of func(topology.QueueState) int64) int64 {
		return compile.Demand(queues, scaling, func(queue string) int64 {
			state, exists := observed[queue]
			switch {
			case !exists, !its[queue] && state.Arguments.Owner() != owner:
				return 0
			case state.Messages == nil:
				uncounted = queue
				return 0
			default:
				return of(state)
			}
		})
	}
	messages := demand(func(state topology.QueueState) int64 { return state.Ready + state.Unacked })
	return load{messages, demand(func(state topology.QueueState) int64 { return state.Ready }), uncounted}
}

// queuesOf are the queues that a Transport has in its spec, and those that it has made or taken over.
func queuesOf(t *v1alpha1.Transport) map[string]bool {
	its := map[string]bool{}
	for i := range t.Spec.Queues {
		its[t.Spec.Queues[i].Name] = true
	}
	for _, object := range slices.Concat(t.Status.Created, t.Status.Adopted) {
		if queue, is := strings.CutPrefix(object, "queue/"); is {
			its[queue] = true
		}
	}
	return its
}

// hear asks pods for what more of them do not help against. A breaker with a key is none of that: its pods go on with all other messages, and those of the
// key wait in lanes. Pods that may hold messages are asked only where these would make further pods.
func (m *Meter) hear(ctx context.Context, t *v1alpha1.Transport, taken *sampleTaken) error {
	groups, breaks := map[string]int32{}, map[string]bool{}
	for i := range t.Spec.Workers {
		w := &t.Spec.Workers[i]
		scaling, scaled := compile.ScalingOf(w)
		its := taken.loads[w.Name]
		breaks[w.Name] = w.CircuitBreaker != nil && ptr.Deref(w.CircuitBreaker.Key, "") == ""
		if !scaled || !breaks[w.Name] && its.ready == its.messages {
			continue
		}
		pods, err := m.pods(ctx, t, w)
		if err != nil {
			return err
		}
		if pods > 0 && (breaks[w.Name] || its.messages > int64(pods)*scaling.MessagesPerPod) {
			groups[w.Name] = pods
		}
	}
	heard, err := m.source.Hear(ctx, m.scraper, t, groups, time.Now())
	if err != nil {
		return err
	}
	for one := range heard {
		switch _, asked := groups[one.Worker]; {
		case asked && one.Reason == v1alpha1.ReasonCircuitOpen && breaks[one.Worker]:
			taken.open[one.Worker] = true
		case asked && one.Reason == v1alpha1.ReasonPublishFailing:
			taken.failing[one.Worker] = true
		}
	}
	return nil
}

// ScaledNames are the names of the Deployments that the spec lets be scaled.
func ScaledNames(t *v1alpha1.Transport) []string {
	var names []string
	for i := range t.Spec.Workers {
		if t.Spec.Workers[i].Autoscaling != nil {
			names = append(names, workload.Name(t, t.Spec.Workers[i].Name))
		}
	}
	return names
}
