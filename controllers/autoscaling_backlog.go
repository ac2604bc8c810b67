package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	// lookTimeout bounds one look at the queues of a Transport, also where nobody waits for it any more.
	lookTimeout = 30 * time.Second
	// lookPatience is how long somebody waits for a look: KEDA gives up after 3 s.
	lookPatience = 2 * time.Second
	// lastLook is how old a look may be that serves where a slow broker does not give a newer one in time.
	lastLook = 45 * time.Second
	// keepLook is how long a look that nobody asks for is kept.
	keepLook = 10 * time.Minute
)

var (
	// errNotScaled says that there is no such worker group, or that it is not scaled.
	errNotScaled = errors.New("no worker group of this name is scaled")
	// errNoLook says that the broker gives no number in time.
	errNoLook = errors.New("the broker gives no answer in time")
	// errUntold says that it is not known what the workers of a group consume.
	errUntold = errors.New("the worker group has no configuration yet")
)

// backlogMeter tells for how many messages worker groups are to have pods. It works in every manager, also in one that does not lead. It is
// safe for concurrent use.
type backlogMeter struct {
	r *TransportReconciler
	// age is how long a look counts as of now.
	age time.Duration
	// voices of the pods whose breakers matter here, apart from what reconciles hear and remember.
	voices *statusScraper

	mu    sync.Mutex
	looks map[types.NamespacedName]*cachedSample
}

// cachedSample is the last look at the queues of one Transport.
type cachedSample struct {
	sampleTaken

	taken, asked time.Time
	// err of the last look that failed; nil after one that did not.
	err error
	// busy is closed when the look that is under way is over; nil where none is.
	busy chan struct{}
}

// sampleTaken is what a look saw. Nobody changes one. It is kept for minutes, and so it is small, whatever there was to see.
type sampleTaken struct {
	// loads of the worker groups that are scaled and have a configuration.
	loads map[string]load
	// open are the worker groups that leave their handler alone.
	open map[string]bool
}

// load is the number of messages for which a worker group is to have pods.
type load struct {
	messages int64
	// uncounted is a queue that the broker has not counted yet; empty where it has counted all.
	uncounted string
}

func newBacklogMeter(r *TransportReconciler, age time.Duration) *backlogMeter {
	return &backlogMeter{r: r, age: age, voices: newStatusScraper(age), looks: map[types.NamespacedName]*cachedSample{}}
}

// demand is the number of messages for which a worker group is to have pods. The error is errNotScaled where it is not scaled, and
// any other one where there is no number at the moment.
func (m *backlogMeter) demand(ctx context.Context, name types.NamespacedName, worker string) (int64, error) {
	t := &v1alpha1.Transport{}
	if err := m.r.Client.Get(ctx, name, t); err != nil {
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

func (m *backlogMeter) demandOf(ctx context.Context, t *v1alpha1.Transport, w *v1alpha1.Worker) (int64, error) {
	seen, err := m.see(ctx, t)
	if err != nil {
		return 0, err
	}
	its, told := seen.loads[w.Name]
	switch {
	case !told:
		return 0, errUntold
	case its.uncounted != "":
		return 0, fmt.Errorf("the broker has not counted the messages in %s yet", its.uncounted)
	case !seen.open[w.Name]:
		return its.messages, nil
	}
	pods, err := m.pods(ctx, t, w)
	if err != nil || pods == 0 {
		return its.messages, err // Where there is no pod, no breaker is open.
	}
	scaling, _ := compile.ScalingOf(w)
	// More pods would only find out the same.
	return min(its.messages, int64(pods)*scaling.MessagesPerPod), nil
}

// pods is how many a worker group is to have at the moment.
func (m *backlogMeter) pods(ctx context.Context, t *v1alpha1.Transport, w *v1alpha1.Worker) (int32, error) {
	deployment := &appsv1.Deployment{}
	err := m.r.Client.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: workload.Name(t, w.Name)}, deployment)
	if err != nil {
		if client.IgnoreNotFound(err) == nil {
			return 0, nil
		}
		return 0, fmt.Errorf("read the Deployment of worker %q: %w", w.Name, err)
	}
	return workload.Replicas(deployment), nil
}

// see returns a look that is recent enough. All who ask for one Transport wait for the same, and it goes on where they give up: a
// slow broker has its answer ready for the next one.
func (m *backlogMeter) see(ctx context.Context, t *v1alpha1.Transport) (sampleTaken, error) {
	name, now := client.ObjectKeyFromObject(t), time.Now()
	m.mu.Lock()
	m.prune(now)
	known := m.looks[name]
	if known == nil {
		known = &cachedSample{}
		m.looks[name] = known
	}
	known.asked = now
	if now.Sub(known.taken) < m.age {
		defer m.mu.Unlock()
		return known.sampleTaken, known.err
	}
	if known.busy == nil {
		known.busy = make(chan struct{})
		go m.refresh(context.WithoutCancel(ctx), t.DeepCopy(), known)
	}
	busy := known.busy
	m.mu.Unlock()

	patience, over := time.NewTimer(lookPatience), false
	defer patience.Stop()
	select {
	case <-busy:
		over = true
	case <-patience.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if over || known.err == nil && time.Since(known.taken) < lastLook {
		return known.sampleTaken, known.err
	}
	return sampleTaken{}, errNoLook
}

func (m *backlogMeter) refresh(ctx context.Context, t *v1alpha1.Transport, known *cachedSample) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	seen, err := m.look(ctx, t)
	m.mu.Lock()
	defer m.mu.Unlock()
	known.sampleTaken, known.err, known.taken = seen, err, time.Now()
	close(known.busy)
	known.busy = nil
}

func (m *backlogMeter) prune(now time.Time) {
	for name, l := range m.looks {
		if l.busy == nil && now.Sub(l.asked) > keepLook {
			delete(m.looks, name)
			m.voices.forget(name)
		}
	}
}

// look counts the messages, and hears of the breakers.
func (m *backlogMeter) look(ctx context.Context, t *v1alpha1.Transport) (sampleTaken, error) {
	observed, err := m.observe(ctx, t)
	if err != nil {
		return sampleTaken{}, err
	}
	open, err := m.breakers(ctx, t)
	if err != nil {
		return sampleTaken{}, err
	}
	loads, err := m.loads(ctx, t, observed.Queues)
	return sampleTaken{loads: loads, open: open}, err
}

// loads are those of the worker groups that are scaled, by their published configurations: these name stand-ins, and what is no
// longer in the spec and still to be emptied.
func (m *backlogMeter) loads(ctx context.Context, t *v1alpha1.Transport, observed map[string]topology.QueueState) (map[string]load, error) {
	held := m.r.configMaps.budget.Reserve(t.Namespace)
	defer held.Release()
	loads := map[string]load{}
	for i := range t.Spec.Workers {
		w := &t.Spec.Workers[i]
		scaling, scaled := compile.ScalingOf(w)
		if !scaled {
			continue
		}
		configMap, err := m.r.readConfigMap(ctx, types.NamespacedName{Namespace: t.Namespace, Name: workload.Name(t, w.Name)})
		if err != nil {
			return nil, fmt.Errorf("worker %q: %w", w.Name, err)
		}
		if configMap == nil {
			continue
		}
		if err := held.TakeNow(ctx, weightOf(configMap)); err != nil {
			return nil, errConfigMaps
		}
		if config, ok := configIn(configMap); ok && metav1.IsControlledBy(configMap, t) {
			loads[w.Name] = m.loadOf(t, config.Queues, scaling, observed)
		}
	}
	return loads, nil
}

// loadOf counts what is in the queues of a configuration. Anybody may have written that: queues that are not the Transport's do not count.
func (m *backlogMeter) loadOf(t *v1alpha1.Transport, queues []compile.Queue, scaling compile.Scaling, observed map[string]topology.QueueState) load {
	its, owner, uncounted := queuesOf(t), m.r.owner(t), ""
	messages := compile.Demand(queues, scaling, func(queue string) int64 {
		state, exists := observed[queue]
		switch {
		case !exists, !its[queue] && state.Arguments.Owner() != owner:
			return 0
		case state.Messages == nil:
			uncounted = queue
			return 0
		default:
			return state.Ready + state.Unacked
		}
	})
	return load{messages, uncounted}
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

// observe takes the snapshot that all Transports of the vhost share.
func (m *backlogMeter) observe(ctx context.Context, t *v1alpha1.Transport) (topology.Observed, error) {
	home := t.Status.Broker
	if home == nil {
		return topology.Observed{}, errors.New("nothing of the Transport is on the broker yet")
	}
	found := m.r.findBroker(ctx, t)
	if found.err != nil {
		return topology.Observed{}, found.err
	}
	place, err := found.port.JoinSamples(t.Namespace)
	if err != nil {
		return topology.Observed{}, errNoLook
	}
	defer place.Leave()
	if !place.Wait(ctx, lookTimeout) {
		return topology.Observed{}, errNoLook
	}
	processor, err := m.r.processors.Acquire(ctx, t.Namespace)
	if err != nil {
		return topology.Observed{}, errNoLook
	}
	defer processor.Release()
	port := found.port.View(client.ObjectKeyFromObject(t).String(), m.age)
	defer port.Release()
	observed, err := port.Observe(broker.WithWaiter(ctx, processor))
	if err == nil && (observed.Cluster != home.Cluster || observed.VHost != home.VHost) {
		err = errors.New("this is another broker than the one that the Transport is on")
	}
	return observed, err
}

// breakers are the worker groups that leave their handler alone. A breaker with a key does not count: its pods go on with all other
// messages, and those of the key wait in lanes.
func (m *backlogMeter) breakers(ctx context.Context, t *v1alpha1.Transport) (map[string]bool, error) {
	groups := map[string]int32{}
	for i := range t.Spec.Workers {
		w := &t.Spec.Workers[i]
		if w.Autoscaling == nil || w.CircuitBreaker == nil || ptr.Deref(w.CircuitBreaker.Key, "") != "" {
			continue
		}
		pods, err := m.pods(ctx, t, w)
		if err != nil {
			return nil, err
		}
		if pods > 0 {
			groups[w.Name] = pods
		}
	}
	heard, err := m.r.hearGroups(ctx, m.voices, t, groups, time.Now())
	if err != nil {
		return nil, err
	}
	open := map[string]bool{}
	for one := range heard {
		if _, asked := groups[one.worker]; asked && one.reason == v1alpha1.ReasonCircuitOpen {
			open[one.worker] = true
		}
	}
	return open, nil
}
