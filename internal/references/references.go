// Package references finds in the operator's cache what refers to what: Transports and RetryPolicies to RetryPolicies, Transports to exchanges.
package references

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
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

// Index makes references findable from their target.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.Transport{}, byPolicy, of)
	if err != nil {
		return fmt.Errorf("index Transports by policy: %w", err)
	}
	err = indexer.IndexField(ctx, &v1alpha1.RetryPolicy{}, byInclude, of)
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

// Sharing are the Transports with an exchange of that name, on any broker. They are those of the cache, and nobody may change them.
func Sharing(ctx context.Context, c client.Reader, exchange string) ([]v1alpha1.Transport, error) {
	var list v1alpha1.TransportList
	if err := c.List(ctx, &list, client.MatchingFields{byExchange: exchange}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Transports with the same exchange: %w", err)
	}
	return list.Items, nil
}

// of are the names of the RetryPolicies that a resource refers to itself.
func of(object client.Object) []string {
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

// Includers are the RetryPolicies that include one.
func Includers(ctx context.Context, c client.Reader, policy types.NamespacedName) ([]types.NamespacedName, error) {
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

// Users are the Transports whose retries some RetryPolicies have a part in: those that refer to one, and those that refer to a
// policy that includes one.
func Users(ctx context.Context, c client.Reader, policies ...types.NamespacedName) ([]types.NamespacedName, error) {
	parts := map[types.NamespacedName]struct{}{}
	for _, policy := range policies {
		including, err := Includers(ctx, c, policy)
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

// UsedBy are the policies that a Transport or a policy refers to, and those that these include.
func UsedBy(ctx context.Context, c client.Reader, object client.Object) ([]types.NamespacedName, error) {
	var names []types.NamespacedName
	for _, name := range of(object) {
		key := types.NamespacedName{Namespace: object.GetNamespace(), Name: name}
		names = append(names, key)
		if _, isPolicy := object.(*v1alpha1.RetryPolicy); isPolicy {
			continue
		}
		policy := &v1alpha1.RetryPolicy{}
		if err := c.Get(ctx, key, policy, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read RetryPolicy %s: %w", key, err)
		}
		for _, include := range of(policy) {
			names = append(names, types.NamespacedName{Namespace: object.GetNamespace(), Name: include})
		}
	}
	return names, nil
}

// Policies reads the RetryPolicies of a namespace. They are those of the cache, and nobody may change them: copies of all of them, at each look, would
// take more memory than the operator has.
func Policies(ctx context.Context, c client.Reader, namespace string) (map[string]*v1alpha1.RetryPolicy, error) {
	var list v1alpha1.RetryPolicyList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the RetryPolicies of namespace %s: %w", namespace, err)
	}
	policies := make(map[string]*v1alpha1.RetryPolicy, len(list.Items))
	for i := range list.Items {
		policies[list.Items[i].Name] = &list.Items[i]
	}
	return policies, nil
}
