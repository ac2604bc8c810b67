// Package local runs Transports without Kubernetes, in one process: it makes the topology on the broker, keeps it so, and
// runs the workers. It is the machinery behind `redrive run`.
package local

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// Cluster stands for the cluster in the owner marks of objects that are made without one.
const Cluster = "local"

// Unit is a Transport with everything that follows from it and its policies.
type Unit struct {
	Transport *v1alpha1.Transport
	// Compiled are the lanes and the configuration of each worker group.
	Compiled *compile.Result
	// Objects that the broker needs, owned by the cluster that Prepare was told.
	Objects topology.Objects
	// Files are what the handler of each worker group takes from Secrets; TakeSecrets fills them in.
	Files map[string]Files
	// Advice is what a valid Transport may not mean as its author believes.
	Advice []topology.Finding
}

// Name of the Transport.
func (u *Unit) Name() types.NamespacedName {
	return types.NamespacedName{Namespace: u.Transport.Namespace, Name: u.Transport.Name}
}

// Prepare compiles all Transports of a set, in the order of their names. It also compiles the policies that no Transport
// uses. The error lists everything that is wrong, by object and field.
func Prepare(set *manifest.Set) ([]Unit, error) {
	var problems []error
	wrong := map[types.NamespacedName]bool{}
	for _, name := range sorted(set.RetryPolicies) {
		if err := checkPolicy(set.RetryPolicies[name], policiesOf(set, name.Namespace)); err != nil {
			wrong[name] = true
			problems = append(problems, set.Locate("RetryPolicy", name, err))
		}
	}
	units := make([]Unit, 0, len(set.Transports))
	for _, name := range sorted(set.Transports) {
		unit, err := prepare(set.Transports[name], policiesOf(set, name.Namespace))
		if invalid := new(compile.Error); errors.As(err, &invalid) && invalid.Reason == v1alpha1.ReasonPolicyInvalid && usesOneOf(set.Transports[name], wrong) {
			continue // said already, of the policy itself; others may be wrong only together
		}
		if err != nil {
			problems = append(problems, set.Locate("Transport", name, reasonless(err)))
			continue
		}
		units = append(units, unit)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return units, nil
}

// usesOneOf is true for a Transport that refers to one of some policies.
func usesOneOf(t *v1alpha1.Transport, policies map[types.NamespacedName]bool) bool {
	return slices.ContainsFunc(compile.References(t), func(policy string) bool {
		return policies[types.NamespacedName{Namespace: t.Namespace, Name: policy}]
	})
}

// Describe names an object of a set and where it stands: "shop.yaml:12: Transport default/async".
func Describe(set *manifest.Set, kind string, name types.NamespacedName) string {
	if place := set.Place(kind, name); place != "" {
		return fmt.Sprintf("%s: %s %s", place, kind, name)
	}
	return fmt.Sprintf("%s %s", kind, name)
}

// reasonless takes the reason off an error, which is for a condition.
func reasonless(err error) error {
	if compiling, ok := errors.AsType[*compile.Error](err); ok {
		return compiling.Err
	}
	return err
}

func checkPolicy(policy *v1alpha1.RetryPolicy, others map[string]*v1alpha1.RetryPolicy) error {
	spec, err := compile.Resolve(policy, others)
	if err != nil {
		return err
	}
	_, err = retry.Compile(policy.Name, spec)
	return err
}

func prepare(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (Unit, error) {
	if size := compile.SizeOf(&t.Spec); size > compile.MaxSpec {
		return Unit{}, compile.TooLarge(size)
	}
	compiled, err := compile.Compile(t, policies)
	if err != nil {
		return Unit{}, err
	}
	objects, err := topology.Desired(t, compiled.Needs, Owner(Cluster, t))
	if err != nil {
		return Unit{}, err
	}
	advice := topology.Advice(t)
	if merged := compiled.Merged(); merged != "" {
		fallback := topology.Ref{Kind: topology.KindExchange, Name: compile.NamesOf(t).Fallback()}
		advice = append(advice, topology.Finding{Object: fallback, Message: merged})
	}
	return Unit{Transport: t, Compiled: compiled, Objects: objects, Advice: advice}, nil
}

// Owner is the value of the owner mark on the objects of a Transport.
func Owner(cluster string, t *v1alpha1.Transport) string {
	return cluster + "/" + t.Namespace + "/" + t.Name
}

func policiesOf(set *manifest.Set, namespace string) map[string]*v1alpha1.RetryPolicy {
	policies := map[string]*v1alpha1.RetryPolicy{}
	for name, policy := range set.RetryPolicies {
		if name.Namespace == namespace {
			policies[name.Name] = policy
		}
	}
	return policies
}

func sorted[V any](objects map[types.NamespacedName]V) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(objects), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
