package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/status"
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
				"messages go that no queue takes: %s; give each an exchange of its own, or each team a vhost", t.Spec.Exchange.Name, status.Joined(others)))
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
