package compile

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
)

// Transports are looked at again and again, and compiling one takes seconds where somebody wants that.
func TestCache_CompilesATransportOnceUntilItOrAPolicyChanges(t *testing.T) {
	t.Parallel()
	policy := func(name string, includes ...string) *v1alpha1.RetryPolicy {
		p := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, include := range includes {
			p.Spec.IncludeStrategies = append(p.Spec.IncludeStrategies, v1alpha1.StrategyInclude{Name: include})
		}
		return p
	}
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	transport.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "policy"}
	policies := map[string]*v1alpha1.RetryPolicy{"policy": policy("policy", "shared"), "shared": policy("shared"), "other": policy("other")}
	cache := NewCache()
	compiled := func(want bool) {
		t.Helper()
		name := types.NamespacedName{Namespace: transport.Namespace, Name: transport.Name}
		before := cache.all[name].finding
		if _, err := cache.Compile(transport, policies); err != nil && policies["shared"] != nil {
			t.Fatal(err)
		}
		if after := cache.all[name].finding; after == nil || (after != before) != want {
			t.Errorf("compiled anew: %v, want %v", after != before, want)
		}
	}
	compiled(true)
	compiled(false)
	transport.ResourceVersion, policies["policy"].ResourceVersion = "9", "9" // of its status
	compiled(false)
	policies["other"].Spec.MaxRetries = new(int32(9))
	compiled(false)
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "main"}} // with the generation that it had, as in an etcd that was restored
	compiled(true)
	policies["policy"].Spec.MaxRetries = new(int32(9))
	compiled(true)
	policies["shared"].Spec.MaxRetries = new(int32(9))
	compiled(true)
	policies["shared"] = nil
	delete(policies, "shared")
	compiled(true)
	compiled(false)
	policies["shared"] = policy("shared")
	compiled(true)
	cache.Forget(types.NamespacedName{Namespace: transport.Namespace, Name: transport.Name})
	if len(cache.all) != 0 {
		t.Error("it is kept of a Transport that is gone")
	}
}

// The operator's cache lacks the spec of a policy where large ones take too much together. It has the spec of none then, and not the defaults.
func TestCache_CompilesNoTransportByAPolicyThatIsNotRead(t *testing.T) {
	t.Parallel()
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	transport.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "policy"}
	own, shared := &v1alpha1.RetryPolicy{}, &v1alpha1.RetryPolicy{}
	own.Name, shared.Name, own.Spec.IncludeStrategies = "policy", "shared", []v1alpha1.StrategyInclude{{Name: "shared"}}
	cache, policies := NewCache(), map[string]*v1alpha1.RetryPolicy{"policy": own, "shared": shared}
	for range 2 {
		if _, err := cache.Compile(transport, policies); err != nil {
			t.Fatal(err)
		}
		for _, policy := range policies {
			policy.Annotations = map[string]string{NoRoom: "40000"}
			_, err := cache.Compile(transport, policies)
			if refused, is := errors.AsType[*Error](err); !is || refused.Reason != v1alpha1.ReasonPolicyInvalid {
				t.Errorf("%s is not read: %v", policy.Name, err)
			}
			policy.Annotations = nil
		}
	}
}
