// Package compile turns a Transport and its RetryPolicies into the configuration of its workers, and is the one place
// where the operator and the workers meet: a versioned JSON document, in which every policy stands once with its included
// strategies resolved.
package compile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

const (
	// Defaults is the name of the policy that holds where none is referred to. No RetryPolicy can have it.
	Defaults = "(defaults)"

	defaultConcurrency = 10
	defaultTimeout     = 30 * time.Second
)

// Error says why a Transport has no configuration. Reason is one of the condition reasons of the API.
type Error struct {
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Result is what a Transport and its policies come to.
type Result struct {
	// Lanes of the Transport.
	Lanes retry.Lanes
	// MergedDelays counts the delays of the schedules that found no lane of their own and share others'.
	MergedDelays int
	// Workers holds the configuration of each worker group, in the order of the spec.
	Workers []Config
}

// Compile resolves and checks the policies of a Transport and gives the lanes and the configuration of each worker.
// policies holds the RetryPolicies of the Transport's namespace by name. An error is an *Error.
func Compile(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (*Result, error) {
	resolved, err := resolveAll(t, policies)
	if err != nil {
		return nil, err
	}
	compiled, err := compileAll(t, resolved)
	if err != nil {
		return nil, err
	}
	result := &Result{}
	result.Lanes, result.MergedDelays = retry.PlanLanes(compiled, retry.LaneLimit(t.Spec.Lanes))
	for i := range t.Spec.Workers {
		config := workerConfig(t, &t.Spec.Workers[i], resolved, result.Lanes)
		if err := checkPrefetch(&config); err != nil {
			return nil, &Error{Reason: v1alpha1.ReasonInvalid, Err: fmt.Errorf("spec.workers[%d]: %w", i, err)}
		}
		result.Workers = append(result.Workers, config)
	}
	return result, nil
}

// References lists the names of the RetryPolicies that a Transport refers to itself, sorted and without repetition.
// What those policies include is not among them.
func References(t *v1alpha1.Transport) []string {
	var names []string
	if ref := t.Spec.RetryPolicyRef; ref != nil {
		names = append(names, ref.Name)
	}
	for _, rule := range t.Spec.RetryPolicies {
		names = append(names, rule.RetryPolicyRef.Name)
	}
	for _, queue := range t.Spec.Queues {
		if queue.RetryPolicyRef != nil {
			names = append(names, queue.RetryPolicyRef.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func resolveAll(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (map[string]v1alpha1.RetryPolicySpec, error) {
	resolved := map[string]v1alpha1.RetryPolicySpec{}
	if usesDefaults(t) {
		resolved[Defaults] = v1alpha1.RetryPolicySpec{}
	}
	var missing []error
	for _, name := range References(t) {
		policy, ok := policies[name]
		if !ok {
			missing = append(missing, fmt.Errorf("RetryPolicy %q does not exist in namespace %q", name, t.Namespace))
			continue
		}
		spec, err := Resolve(policy, policies)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		resolved[name] = spec
	}
	if len(missing) > 0 {
		return nil, &Error{Reason: v1alpha1.ReasonPolicyNotFound, Err: join(missing)}
	}
	return resolved, nil
}

// Resolve gives a policy's spec with the strategies of the policies that it includes, after its own and named
// "policy/strategy". What those include is not followed. It fails when an included policy does not exist.
func Resolve(policy *v1alpha1.RetryPolicy, policies map[string]*v1alpha1.RetryPolicy) (v1alpha1.RetryPolicySpec, error) {
	spec := *policy.Spec.DeepCopy()
	spec.IncludeStrategies = nil
	var missing []error
	for i, include := range policy.Spec.IncludeStrategies {
		other, ok := policies[include.Name]
		if !ok {
			missing = append(missing, fmt.Errorf("RetryPolicy %q, spec.includeStrategies[%d]: RetryPolicy %q does not exist in namespace %q",
				policy.Name, i, include.Name, policy.Namespace))
			continue
		}
		for j := range other.Spec.Strategies {
			strategy := *other.Spec.Strategies[j].DeepCopy()
			strategy.Name = include.Name + "/" + strategy.Name
			spec.Strategies = append(spec.Strategies, strategy)
		}
	}
	return spec, join(missing)
}

func usesDefaults(t *v1alpha1.Transport) bool {
	return t.Spec.RetryPolicyRef == nil &&
		slices.ContainsFunc(t.Spec.Queues, func(q v1alpha1.Queue) bool { return q.RetryPolicyRef == nil })
}

func compileAll(t *v1alpha1.Transport, specs map[string]v1alpha1.RetryPolicySpec) ([]*retry.Policy, error) {
	var invalid []error
	compiled := make([]*retry.Policy, 0, len(specs))
	for _, name := range sortedKeys(specs) {
		policy, err := retry.Compile(name, specs[name])
		if err != nil {
			invalid = append(invalid, err)
			continue
		}
		compiled = append(compiled, policy)
	}
	if len(invalid) > 0 {
		return nil, &Error{Reason: v1alpha1.ReasonPolicyInvalid, Err: join(invalid)}
	}
	for i, rule := range t.Spec.RetryPolicies {
		if _, err := retry.CompileMatch(fmt.Sprintf("spec.retryPolicies[%d].when", i), rule.When); err != nil {
			invalid = append(invalid, err)
		}
	}
	if len(invalid) > 0 {
		return nil, &Error{Reason: v1alpha1.ReasonInvalidExpression, Err: join(invalid)}
	}
	return compiled, nil
}

func workerConfig(t *v1alpha1.Transport, w *v1alpha1.Worker, policies map[string]v1alpha1.RetryPolicySpec, lanes retry.Lanes) Config {
	names := NamesOf(t)
	config := Config{
		Version:     Version,
		Transport:   t.Namespace + "/" + t.Name,
		Worker:      w.Name,
		Exchanges:   Exchanges{Fallback: names.Fallback(), Return: names.Return(), Failed: names.Failed()},
		Lanes:       lanes,
		Policies:    policies,
		Concurrency: defaultConcurrency,
		Timeout:     *v1alpha1.NewDuration(defaultTimeout),
		Handler:     w.Handler,
	}
	if t.Spec.Broker.VHost != nil {
		config.VHost = *t.Spec.Broker.VHost
	}
	if w.Concurrency != nil {
		config.Concurrency = int(*w.Concurrency)
	}
	if w.Timeout != nil {
		config.Timeout = *w.Timeout
	}
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		if len(w.Queues) == 0 || slices.Contains(w.Queues, queue.Name) {
			config.Queues = append(config.Queues, Queue{
				Name:                 queue.Name,
				Policy:               policyOf(t, queue),
				SingleActiveConsumer: queue.SingleActiveConsumer != nil && *queue.SingleActiveConsumer,
			})
		}
	}
	for _, rule := range t.Spec.RetryPolicies {
		config.Rules = append(config.Rules, Rule{When: rule.When, Policy: rule.RetryPolicyRef.Name})
	}
	return config
}

func policyOf(t *v1alpha1.Transport, queue *v1alpha1.Queue) string {
	switch {
	case queue.RetryPolicyRef != nil:
		return queue.RetryPolicyRef.Name
	case t.Spec.RetryPolicyRef != nil:
		return t.Spec.RetryPolicyRef.Name
	default:
		return Defaults
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// join is errors.Join on one line, as conditions show it.
func join(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
