package controllers

import (
	"context"
	"fmt"
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

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Indexes of the cache.
const (
	// byPolicy finds the Transports that refer to a RetryPolicy themselves.
	byPolicy = "spec.retryPolicyRef"
	// byInclude finds the RetryPolicies that include another.
	byInclude = "spec.includeStrategies"
	// byExchange finds the Transports with an exchange of a name, on any broker.
	byExchange = "spec.exchange"
)

// indexReferences makes references findable from their target.
func indexReferences(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.Transport{}, byPolicy, references)
	if err != nil {
		return fmt.Errorf("index Transports by policy: %w", err)
	}
	err = indexer.IndexField(ctx, &v1alpha1.RetryPolicy{}, byInclude, references)
	if err != nil {
		return fmt.Errorf("index RetryPolicies by include: %w", err)
	}
	err = indexer.IndexField(ctx, &v1alpha1.Transport{}, byExchange, func(object client.Object) []string {
		if t, ok := object.(*v1alpha1.Transport); ok && t.Spec.Exchange != nil {
			return []string{t.Spec.Exchange.Name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index Transports by exchange: %w", err)
	}
	return nil
}

// warnOfSharing tells of other Transports that have the same exchange: owner marks keep queues apart, and not what is published. Those of
// other namespaces have to be let into the same management API: what a broker says of itself is not to be believed.
func (r *TransportReconciler) warnOfSharing(ctx context.Context, run *transportRun) error {
	t := run.transport
	if t.Spec.Exchange == nil || t.Status.Broker == nil {
		return nil
	}
	var list v1alpha1.TransportList
	if err := r.Client.List(ctx, &list, client.MatchingFields{byExchange: t.Spec.Exchange.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the Transports with the same exchange: %w", err)
	}
	var others []string
	at, its := r.brokers.Seen(client.ObjectKeyFromObject(t))
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == t.UID || other.Status.Broker == nil || !topology.IdentityOf(*other.Status.Broker).Is(topology.IdentityOf(*t.Status.Broker)) {
			continue
		}
		name := client.ObjectKeyFromObject(other)
		if where, theirs := r.brokers.Seen(name); other.Namespace == t.Namespace || where == at && theirs == its {
			others = append(others, name.String())
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		run.warnings = append(run.warnings, fmt.Sprintf(
			"other Transports use exchange %s too: their queues get what they bind, and one of them decides where "+
				"messages go that no queue takes: %s; give each an exchange of its own, or each team a vhost", t.Spec.Exchange.Name, joined(others)))
	}
	return nil
}

// references are the names of the RetryPolicies that a resource refers to itself.
func references(object client.Object) []string {
	switch o := object.(type) {
	case *v1alpha1.Transport:
		return compile.References(o)
	case *v1alpha1.RetryPolicy:
		names := make([]string, 0, len(o.Spec.IncludeStrategies))
		for _, include := range o.Spec.IncludeStrategies {
			if include.Name != "" { // presets are no objects
				names = append(names, include.Name)
			}
		}
		return names
	default:
		return nil
	}
}

// includers are the RetryPolicies that include one.
func includers(ctx context.Context, c client.Reader, policy types.NamespacedName) ([]types.NamespacedName, error) {
	var list v1alpha1.RetryPolicyList
	err := c.List(ctx, &list, client.InNamespace(policy.Namespace), client.MatchingFields{byInclude: policy.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the RetryPolicies that include %s: %w", policy.Name, err)
	}
	names := make([]types.NamespacedName, len(list.Items))
	for i := range list.Items {
		names[i] = client.ObjectKeyFromObject(&list.Items[i])
	}
	return names, nil
}

// users are the Transports whose retries some RetryPolicies have a part in: those that refer to one, and those that refer to a
// policy that includes one.
func users(ctx context.Context, c client.Reader, policies ...types.NamespacedName) ([]types.NamespacedName, error) {
	parts := map[types.NamespacedName]struct{}{}
	for _, policy := range policies {
		including, err := includers(ctx, c, policy)
		if err != nil {
			return nil, err
		}
		for _, name := range append(including, policy) {
			parts[name] = struct{}{}
		}
	}
	found := map[types.NamespacedName]struct{}{}
	for name := range parts {
		var list v1alpha1.TransportList
		err := c.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingFields{byPolicy: name.Name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list the Transports that refer to %s: %w", name.Name, err)
		}
		for i := range list.Items {
			found[client.ObjectKeyFromObject(&list.Items[i])] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(found)), nil
}

// requests turns a search into the map function of a watch. What cannot be found in a cache that is there cannot be
// waited for either, so an error is logged.
func requests(search func(ctx context.Context, object client.Object) ([]types.NamespacedName, error)) handler.MapFunc {
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

// gathered is a handler that lets a delay pass, so that many changes cost one reconcile. On an update it maps the object
// as it was and as it is.
func gathered(delay time.Duration, mapped handler.MapFunc) handler.EventHandler {
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

// policyEventGatherer enqueues the users of changed RetryPolicies, one after the other. Of a change it notes only whose it is: to look for users takes
// milliseconds where policies include each other, and what others change would wait meanwhile.
type policyEventGatherer struct {
	users func(ctx context.Context, policies ...types.NamespacedName) ([]types.NamespacedName, error)

	mu sync.Mutex
	// changed are the policies that are gathered, by namespace.
	changed map[string]map[types.NamespacedName]bool
}

// handler is told of the changes. Where the operator begins, the Transports look by themselves.
func (w *policyEventGatherer) handler() handler.EventHandler {
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

func (w *policyEventGatherer) note(ctx context.Context, policy client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	namespace := policy.GetNamespace()
	if w.changed[namespace] == nil {
		w.changed[namespace] = map[types.NamespacedName]bool{}
		time.AfterFunc(gatherPolicies, func() { w.wake(ctx, namespace, q) })
	}
	w.changed[namespace][client.ObjectKeyFromObject(policy)] = true
}

func (w *policyEventGatherer) wake(ctx context.Context, namespace string, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
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
