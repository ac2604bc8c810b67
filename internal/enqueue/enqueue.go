// Package enqueue turns changes in the cluster into reconciles, and gathers those that come together.
package enqueue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// RequestsOf turns a search into the map function of a watch. What cannot be found in a cache that is there cannot be
// waited for either, so an error is logged.
func RequestsOf(search func(ctx context.Context, object client.Object) ([]types.NamespacedName, error)) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		names, err := search(ctx, object)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot tell what a change concerns", "changed", client.ObjectKeyFromObject(object))
			return nil
		}
		found := make([]reconcile.Request, len(names))
		for i, name := range names {
			found[i] = reconcile.Request{NamespacedName: name}
		}
		return found
	}
}

// After is a handler that lets a delay pass, so that many changes cost one reconcile. On an update it maps the object
// as it was and as it is.
func After(delay time.Duration, mapped handler.MapFunc) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, object client.Object, q queue) {
		for _, request := range mapped(ctx, object) {
			q.AddAfter(request, delay)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			add(ctx, e.ObjectOld, q)
			add(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, e.Object, q) },
	}
}

const (
	// gatherPolicies is how long changes of the RetryPolicies of a namespace are gathered: somebody may change them many times a second.
	gatherPolicies = 250 * time.Millisecond
	// wakeApart is how far apart the Transports that a RetryPolicy has a part in are woken, and wakeWithin bounds the time in which all of them are.
	wakeApart  = 20 * time.Millisecond
	wakeWithin = 2 * time.Second
)

// policyGatherer enqueues the users of changed RetryPolicies, one after the other. Of a change it notes only whose it is: to look for users takes
// milliseconds where policies include each other, and what others change would wait meanwhile.
type policyGatherer struct {
	users func(ctx context.Context, policies ...types.NamespacedName) ([]types.NamespacedName, error)

	mu sync.Mutex
	// changed are the policies that are gathered, by namespace.
	changed map[string]map[types.NamespacedName]bool
}

// UsersOf is a handler of changes of RetryPolicies, which enqueues the Transports that users finds for them, one after the other.
func UsersOf(users func(ctx context.Context, policies ...types.NamespacedName) ([]types.NamespacedName, error)) handler.EventHandler {
	return (&policyGatherer{users: users, changed: map[string]map[types.NamespacedName]bool{}}).handler()
}

// handler is told of the changes. Where the operator begins, the Transports look by themselves.
func (w *policyGatherer) handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList {
				w.note(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { w.note(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { w.note(ctx, e.Object, q) },
	}
}

func (w *policyGatherer) note(ctx context.Context, policy client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	namespace := policy.GetNamespace()
	if w.changed[namespace] == nil {
		w.changed[namespace] = map[types.NamespacedName]bool{}
		time.AfterFunc(gatherPolicies, func() { w.wake(ctx, namespace, q) })
	}
	w.changed[namespace][client.ObjectKeyFromObject(policy)] = true
}

func (w *policyGatherer) wake(ctx context.Context, namespace string, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	w.mu.Lock()
	policies := slices.Collect(maps.Keys(w.changed[namespace]))
	delete(w.changed, namespace) // what changes from now on is gathered anew
	w.mu.Unlock()
	found, err := w.users(ctx, policies...)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot tell what a change concerns", "namespace", namespace)
		return
	}
	for i, name := range found {
		q.AddAfter(reconcile.Request{NamespacedName: name}, time.Duration(i)*min(wakeApart, wakeWithin/time.Duration(len(found))))
	}
}
