package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"redrive.dev/redrive/internal/apply"
)

// askEvery is how often a management API is asked whether it answers. A node of RabbitMQ takes longer than that to start.
const askEvery = 2 * time.Second

// restarts notices that a management API answers again after it had not, and lets its Transports be looked at soon after that: lanes may
// stand still since. One question for each API serves all its Transports. It is safe for concurrent use.
type restarts struct {
	mu  sync.Mutex
	all map[string]*restart // by URL of the management API: behind one host and port may be the servers of several teams
}

// restart is what is known of one management API.
type restart struct {
	// port is one of those that lead to it.
	port *sharedPort
	// transports that are on it.
	transports map[types.NamespacedName]bool
	// asked is when it was asked last, and asking is true while it is.
	asked  time.Time
	asking bool
	// silent is true while it does not answer, and restarted is when it answered again.
	silent    bool
	restarted time.Time
	// look is when its Transports are looked at next; zero where nothing calls for it.
	look time.Time
}

func newRestarts() *restarts { return &restarts{all: map[string]*restart{}} }

// of is when the broker of a Transport was found to be started again; zero where that is not known. From now on the Transport is looked
// at when it is.
func (r *restarts) of(name types.NamespacedName, port *sharedPort) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	api := r.all[port.url]
	if api == nil {
		api = &restart{transports: map[types.NamespacedName]bool{}, asked: time.Now()}
		r.all[port.url] = api
	}
	if !api.transports[name] {
		r.leave(name)
		api.transports[name], r.all[port.url] = true, api
	}
	api.port = port
	return api.restarted
}

// forget a Transport that is gone.
func (r *restarts) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave(name)
}

func (r *restarts) leave(name types.NamespacedName) {
	for at, api := range r.all {
		if delete(api.transports, name); len(api.transports) == 0 {
			delete(r.all, at)
		}
	}
}

// watch asks until ctx ends, and puts the Transports that are to be looked at into a queue.
func (r *restarts) watch(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
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

// tick asks those whose turn it is, and gives the Transports that are to be looked at now.
func (r *restarts) tick(ctx context.Context, now time.Time) (looks []types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, api := range r.all {
		if !api.asking && now.Sub(api.asked) >= askEvery {
			api.asking, api.asked = true, now
			go r.ask(ctx, api, api.port)
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

// plan the next look.
func (a *restart) plan(now time.Time) {
	a.look = time.Time{}
	if after, due := apply.LookAfterRestart(a.restarted, now); due {
		a.look = now.Add(after)
	}
}

// ask once whether an API answers.
func (r *restarts) ask(ctx context.Context, api *restart, port *sharedPort) {
	err := port.Ping(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	api.asking = false
	if ctx.Err() != nil {
		return
	}
	if api.silent && err == nil {
		api.restarted = time.Now()
		api.plan(api.restarted)
		port.answers()
	}
	api.silent = err != nil
}
