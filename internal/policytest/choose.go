package policytest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/retry"
)

// Suite are the policies of some manifests, and the Transports that choose among them.
type Suite struct {
	policies   map[types.NamespacedName]*retry.Policy
	transports []*transport
	// defaults hold where a Transport refers to no policy.
	defaults *retry.Policy
}

// transport is what chooses a policy by message.
type transport struct {
	*v1alpha1.Transport

	rules *retry.Rules
}

// NewSuite compiles the policies and rules of manifests that are valid in themselves. The error lists everything that is wrong.
func NewSuite(set *manifest.Set) (*Suite, error) {
	s := &Suite{policies: map[types.NamespacedName]*retry.Policy{}}
	var errs []error
	var err error
	if s.defaults, err = retry.Compile(compile.Defaults, v1alpha1.RetryPolicySpec{}); err != nil {
		return nil, fmt.Errorf("compile the defaults: %w", err)
	}
	for _, name := range sorted(set.RetryPolicies) {
		if s.policies[name], err = compilePolicy(set, name); err != nil {
			errs = append(errs, set.Locate("RetryPolicy", name, err))
		}
	}
	for _, name := range sorted(set.Transports) {
		t, err := s.compileTransport(set.Transports[name])
		if err != nil {
			errs = append(errs, set.Locate("Transport", name, err))
			continue
		}
		s.transports = append(s.transports, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

func compilePolicy(set *manifest.Set, name types.NamespacedName) (*retry.Policy, error) {
	others := map[string]*v1alpha1.RetryPolicy{}
	for other, policy := range set.RetryPolicies {
		if other.Namespace == name.Namespace {
			others[other.Name] = policy
		}
	}
	spec, err := compile.Resolve(set.RetryPolicies[name], others)
	if err != nil {
		return nil, err
	}
	return retry.Compile(name.Name, spec)
}

func (s *Suite) compileTransport(t *v1alpha1.Transport) (*transport, error) {
	var errs []error
	for _, name := range compile.References(t) {
		if _, there := s.policies[types.NamespacedName{Namespace: t.Namespace, Name: name}]; !there {
			errs = append(errs, fmt.Errorf("it refers to RetryPolicy %q, which is not in the files: name its file with -f too", name))
		}
	}
	whens := make([]string, len(t.Spec.RetryPolicies))
	for i, rule := range t.Spec.RetryPolicies {
		whens[i] = rule.When
	}
	rules, err := retry.CompileRules("spec.retryPolicies", whens)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return &transport{Transport: t, rules: rules}, nil
}

// Policies are the names of the policies, sorted.
func (s *Suite) Policies() []types.NamespacedName { return sorted(s.policies) }

// Policy finds a policy by its name, or by its namespace and name where several namespaces have one of that name.
func (s *Suite) Policy(name string) (*retry.Policy, error) {
	var found []types.NamespacedName
	for _, full := range s.Policies() {
		if full.Name == name || full.String() == name {
			found = append(found, full)
		}
	}
	switch len(found) {
	case 1:
		return s.policies[found[0]], nil
	case 0:
		return nil, fmt.Errorf("there is no RetryPolicy %q in the files, which have %s", name, names(s.Policies()))
	default:
		return nil, fmt.Errorf("there are several RetryPolicies %q: say which of %s", name, names(found))
	}
}

// choose finds the policy of a case, and the rules that failed on its message. The case's queue is filled in where its
// Transport has only one.
func (s *Suite) choose(c *Case, forced string) (*retry.Policy, []error, error) {
	if name := cmp.Or(forced, c.Policy); name != "" {
		policy, err := s.Policy(name)
		return policy, nil, err
	}
	t, err := s.transportOf(c)
	if err != nil {
		return nil, nil, err
	}
	if t != nil {
		return s.byMessage(t, c)
	}
	if all := s.Policies(); len(all) != 1 {
		return nil, nil, fmt.Errorf("which policy? Set `policy` to one of %s, or add the Transport to the files", names(all))
	}
	return s.policies[s.Policies()[0]], nil, nil
}

// transportOf finds the Transport of a case, nil where the files hold none.
func (s *Suite) transportOf(c *Case) (*transport, error) {
	candidates := s.transports
	if c.Transport != "" {
		candidates = filter(s.transports, func(t *transport) bool { return c.Transport == t.Name || c.Transport == t.Namespace+"/"+t.Name })
		if len(candidates) == 0 {
			return nil, fmt.Errorf("there is no Transport %q in the files, which have %s", c.Transport, transportNames(s.transports))
		}
	}
	if len(candidates) > 1 && c.Message.Queue != "" {
		having := filter(candidates, func(t *transport) bool { return slices.Contains(t.queues(), c.Message.Queue) })
		if len(having) == 0 {
			return nil, fmt.Errorf("no Transport in the files has the queue %q", c.Message.Queue)
		}
		candidates = having
	}
	switch len(candidates) {
	case 0:
		return nil, nil //nolint:nilnil // there is none
	case 1:
		return candidates[0], nil
	default:
		return nil, fmt.Errorf("which Transport? Set `transport` to one of %s, or message.queue to a queue of one of them", transportNames(candidates))
	}
}

// byMessage chooses as a worker does: the first rule that matches, else the queue's policy, else the Transport's.
func (s *Suite) byMessage(t *transport, c *Case) (*retry.Policy, []error, error) {
	queues := t.queues()
	switch {
	case c.Message.Queue == "" && len(queues) == 1:
		c.Message.Queue = queues[0]
	case c.Message.Queue == "" && t.queuesDiffer():
		return nil, nil, fmt.Errorf("which queue? Those of Transport %s have different policies: set message.queue to one of %s", t.Name, strings.Join(queues, ", "))
	case c.Message.Queue != "" && !slices.Contains(queues, c.Message.Queue):
		return nil, nil, fmt.Errorf("message.queue is %q: Transport %s has %s", c.Message.Queue, t.Name, strings.Join(queues, ", "))
	}
	index, problems := t.rules.First(c.message())
	ref := t.Spec.RetryPolicyRef
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		if queue.RetryPolicyRef != nil && (queue.Name == c.Message.Queue || c.Message.Queue == "") {
			ref = queue.RetryPolicyRef
		}
		c.strict = c.strict || queue.Name == c.Message.Queue && compile.IsStrict(queue)
	}
	if index >= 0 {
		ref = &t.Spec.RetryPolicies[index].RetryPolicyRef
	}
	if ref == nil {
		return s.defaults, problems, nil
	}
	return s.policies[types.NamespacedName{Namespace: t.Namespace, Name: ref.Name}], problems, nil
}

func (t *transport) queues() []string {
	queues := make([]string, len(t.Spec.Queues))
	for i := range t.Spec.Queues {
		queues[i] = t.Spec.Queues[i].Name
	}
	return queues
}

// queuesDiffer is true where the queue of a message tells which policy it has.
func (t *transport) queuesDiffer() bool {
	policies := map[string]bool{}
	for i := range t.Spec.Queues {
		name := ""
		if ref := cmp.Or(t.Spec.Queues[i].RetryPolicyRef, t.Spec.RetryPolicyRef); ref != nil {
			name = ref.Name
		}
		policies[name] = true
	}
	return len(policies) > 1
}

func filter[T any](all []T, keep func(T) bool) []T {
	var kept []T
	for _, item := range all {
		if keep(item) {
			kept = append(kept, item)
		}
	}
	return kept
}

func sorted[V any](objects map[types.NamespacedName]V) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(objects), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// names lists objects, with their namespaces where there are several.
func names(all []types.NamespacedName) string {
	if len(all) == 0 {
		return "none"
	}
	different := slices.ContainsFunc(all, func(n types.NamespacedName) bool { return n.Namespace != all[0].Namespace })
	texts := make([]string, len(all))
	for i, name := range all {
		texts[i] = name.Name
		if different {
			texts[i] = name.String()
		}
	}
	return strings.Join(texts, ", ")
}

func transportNames(transports []*transport) string {
	all := make([]types.NamespacedName, len(transports))
	for i, t := range transports {
		all[i] = types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
	}
	return names(all)
}
