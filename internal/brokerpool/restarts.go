package brokerpool

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/tenancy"
)

const (
	// askEvery is how often a management API is asked whether it answers. A node of RabbitMQ takes longer than that to start. One that does not answer is
	// asked less and less often, down to once in askSeldom: so long at most do retries wait longer after an outage.
	askEvery  = 2 * time.Second
	askSeldom = 8 * time.Second
	// askFor bounds one question, and before it the wait for a processor: the other APIs of the namespace wait for it.
	askFor = 10 * time.Second
)

// RestartWatch notices that a management API answers again after it had not, and lets its Transports be looked at soon after that: lanes may
// stand still since. One question for each API serves all its Transports. A question may cost much, as a handshake does where somebody has made the
// certificates for that: those for the Transports of one namespace go one after the other, on a processor that its reconciles have, with pauses in
// between, and those to one host and port one at a time. It is safe for concurrent use.
type RestartWatch struct {
	processors *tenancy.Processors
	// slowest is how seldom an API is asked that does not answer.
	slowest time.Duration

	mu sync.Mutex
	// all APIs by Port.api: behind one host and port may be the servers of several teams.
	all map[string]*restart
	// walking are the namespaces that ask at the moment.
	walking map[string]bool
}

// restart is what is known of one management API.
type restart struct {
	// port is one of those that lead to it.
	port *Port
	// transports that are on it.
	transports map[types.NamespacedName]bool
	// asked is when it was asked last, pause how long it is left alone after that, and asking is true while it is asked.
	asked  time.Time
	pause  time.Duration
	asking bool
	// silent is true while it does not answer, and restarted is when it answered again.
	silent    bool
	restarted time.Time
	// look is when its Transports are looked at next; zero where nothing calls for it.
	look time.Time
}

// NewRestartWatch asks an API that does not answer no less often than Transports are polled.
func NewRestartWatch(poll time.Duration, processors *tenancy.Processors) *RestartWatch {
	return &RestartWatch{
		processors: processors, slowest: min(max(askEvery, poll), askSeldom), all: map[string]*restart{}, walking: map[string]bool{},
	}
}

// Of is when the broker of a Transport was found to be started again; zero where that is not known. From now on the Transport is looked
// at when it is.
func (r *RestartWatch) Of(name types.NamespacedName, port *Port) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	api := r.all[port.api]
	if api == nil {
		api = &restart{transports: map[types.NamespacedName]bool{}, asked: time.Now(), pause: askEvery}
		r.all[port.api] = api
	}
	if !api.transports[name] {
		r.leave(name)
		api.transports[name], r.all[port.api] = true, api
	}
	api.port = port
	return api.restarted
}

// Forget a Transport that is gone.
func (r *RestartWatch) Forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave(name)
}

func (r *RestartWatch) leave(name types.NamespacedName) {
	for at, api := range r.all {
		if delete(api.transports, name); len(api.transports) == 0 {
			delete(r.all, at)
		}
	}
}

// Watch asks until ctx ends, and puts the Transports that are to be looked at into a queue.
func (r *RestartWatch) Watch(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		tick := time.NewTicker(askEvery / 2)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				for _, name := range r.tick(ctx, now) {
					queue.Add(reconcile.Request{NamespacedName: name})
				}
			}
		}
	}()
	return nil
}

// tick has those asked whose turn it is, and gives the Transports that are to be looked at now.
func (r *RestartWatch) tick(ctx context.Context, now time.Time) (looks []types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, api := range r.all {
		for name := range api.transports {
			if api.isDue(now) && !r.walking[name.Namespace] {
				r.walking[name.Namespace] = true
				go r.walk(ctx, name.Namespace, now)
			}
		}
		if api.look.IsZero() || now.Before(api.look) {
			continue
		}
		for name := range api.transports {
			looks = append(looks, name)
		}
		api.plan(now)
	}
	return looks
}

// walk asks, one after the other, the APIs of the Transports of a namespace whose turn it is as of now. One that other namespaces are on, too, is asked
// by the first of them that comes to it. After each it rests, so that a namespace takes a fifth of a processor at most.
func (r *RestartWatch) walk(ctx context.Context, namespace string, now time.Time) {
	for api, port := r.next(namespace, now); api != nil; api, port = r.next(namespace, now) {
		took := r.ask(ctx, namespace, api, port)
		select {
		case <-time.After(min(4*took, askEvery)):
		case <-ctx.Done():
		}
	}
}

// next is the API that a namespace asks next, the one that was not asked for the longest; nil where it is nobody's turn.
func (r *RestartWatch) next(namespace string, now time.Time) (*restart, *Port) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *restart
	for _, api := range r.all {
		if api.isDue(now) && api.isOf(namespace) && (first == nil || api.asked.Before(first.asked)) {
			first = api
		}
	}
	if first == nil {
		delete(r.walking, namespace)
		return nil, nil
	}
	first.asking, first.asked = true, now
	return first, first.port
}

func (a *restart) isDue(now time.Time) bool { return !a.asking && now.Sub(a.asked) >= a.pause }

func (a *restart) isOf(namespace string) bool {
	for name := range a.transports {
		if name.Namespace == namespace {
			return true
		}
	}
	return false
}

// plan the next look.
func (a *restart) plan(now time.Time) {
	a.look = time.Time{}
	if after, due := apply.LookAfterRestart(a.restarted, now); due {
		a.look = now.Add(after)
	}
}

// ask once whether an API answers, and tell how long that took.
func (r *RestartWatch) ask(ctx context.Context, namespace string, api *restart, port *Port) (took time.Duration) {
	processor, leave := r.turn(ctx, namespace, port.queue.pings)
	defer leave()
	var err error
	if processor != nil {
		took, err = ping(ctx, processor, port)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	api.asking = false
	if ended := time.Now(); ended.After(api.asked) {
		api.asked = ended
	}
	if processor == nil || ctx.Err() != nil {
		return took
	}
	if api.silent && err == nil {
		api.restarted = time.Now()
		api.plan(api.restarted)
		port.answers()
	}
	api.wait(api.silent, err == nil, r.slowest)
	api.silent = err != nil
	return took
}

// turn waits for a processor of a namespace and for the one slot of a host and port, and holds neither while it waits for the other: others there are not
// kept waiting. The processor is nil where none came in time: the reconciles of the namespace have them for longer.
func (r *RestartWatch) turn(ctx context.Context, namespace string, slot chan struct{}) (processor *tenancy.Processor, leave func()) {
	within, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	for {
		processor, err := r.processors.Acquire(within, namespace)
		if err != nil {
			return nil, func() {}
		}
		select {
		case slot <- struct{}{}:
			return processor, func() { <-slot }
		default:
			processor.Release()
		}
		select {
		case slot <- struct{}{}:
			<-slot
		case <-ctx.Done():
			return nil, func() {}
		}
	}
}

// ping computes the handshake on a processor, and gives it back.
func ping(ctx context.Context, processor *tenancy.Processor, port *Port) (took time.Duration, err error) {
	defer processor.Release()
	within, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	begun := time.Now()
	err = port.Ping(broker.WithWaiter(within, processor))
	return time.Since(begun), err
}

// wait sets how long an API is left alone: one that was silent before and is so still, half as long again as the last time.
func (a *restart) wait(wasSilent, answers bool, slowest time.Duration) {
	if answers || !wasSilent {
		a.pause = askEvery
		return
	}
	a.pause = min(a.pause+a.pause/2, slowest)
}
