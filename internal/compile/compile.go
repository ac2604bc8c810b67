// Package compile turns a Transport and its RetryPolicies into the configuration of its workers, and is the one place
// where the operator and the workers meet: a versioned JSON document, in which every policy stands once with its included
// strategies resolved.
package compile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

const (
	// Defaults is the name of the policy that holds where none is referred to. No RetryPolicy can have it.
	Defaults = "(defaults)"

	// DefaultTimeout is that of an attempt where the spec gives none.
	DefaultTimeout = 30 * time.Second

	defaultConcurrency = 10
	defaultWeight      = 1

	// MaxStrategies is how many strategies the policies of one Transport have together, where those of a policy that others include count for each
	// of these: as many as 256 policies, one for each rule of a Transport, have of their own. Includes multiply: without a bound 16 policies, and some
	// hundreds that include them all, come to 600,000.
	MaxStrategies = 256 * 128

	// maxInvalid is how many policies or rules are said to be wrong.
	maxInvalid = 16
)

// Error says why a Transport has no configuration. Reason is one of the condition reasons of the API.
type Error struct {
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Needs are what a Transport's policies ask of its topology.
type Needs struct {
	// Lanes of the Transport.
	Lanes retry.Lanes
	// HighLanes are those of them that have a twin for messages of high priority: all, or none.
	HighLanes retry.Lanes
	// Deliveries of a message that a strictly ordered queue must allow for, by the queue's name.
	Deliveries map[string]int64
}

// Result is what a Transport and its policies come to.
type Result struct {
	Needs

	// MergedDelays counts the delays of the schedules that found no lane of their own and share others'.
	MergedDelays int
	// Workers holds the configuration of each worker group, in the order of the spec.
	Workers []Config
}

// Merged warns of delays that share lanes; it is empty where each has its own.
func (r *Result) Merged() string {
	if r.MergedDelays == 0 {
		return ""
	}
	return fmt.Sprintf("%d delays of the retry policies have no fallback queue of their own and are made of shorter ones: "+
		"set spec.lanes to Fine, or use fewer different delays", r.MergedDelays)
}

// Compile resolves and checks the policies of a Transport and gives the lanes and the configuration of each worker.
// policies holds the RetryPolicies of the Transport's namespace by name. An error is an *Error.
func Compile(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (*Result, error) {
	result, _, err := again(t, policies, nil)
	return result, err
}

func compileBy(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy, known *finding) (*Result, *finding, error) {
	resolved, err := resolveAll(t, policies)
	if err != nil {
		return nil, nil, err
	}
	var compiler *retry.Compiler // nil where all expressions are known to be right
	if known == nil {
		if compiler, err = retry.NewCompiler(); err != nil {
			return nil, nil, &Error{Reason: v1alpha1.ReasonPolicyInvalid, Err: err}
		}
		if known, err = judge(compiler, t, resolved); err != nil {
			return nil, nil, err
		}
	}
	result := &Result{Needs: known.needs, MergedDelays: known.merged}
	for i := range t.Spec.Workers {
		config, err := workerConfig(compiler, t, &t.Spec.Workers[i], resolved, result.Needs)
		if err != nil {
			return nil, nil, &Error{Reason: v1alpha1.ReasonInvalidExpression, Err: fmt.Errorf("spec.workers[%d].%w", i, err)}
		}
		if err := checkPrefetch(&config); err != nil {
			return nil, nil, &Error{Reason: v1alpha1.ReasonInvalid, Err: fmt.Errorf("spec.workers[%d]: %w", i, err)}
		}
		result.Workers = append(result.Workers, config)
	}
	return result, known, nil
}

// judge compiles the policies and plans the lanes.
func judge(compiler *retry.Compiler, t *v1alpha1.Transport, resolved map[string]v1alpha1.RetryPolicySpec) (*finding, error) {
	compiled, err := compileAll(compiler, t, resolved)
	if err != nil {
		return nil, err
	}
	if err := checkStrict(t, compiled); err != nil {
		return nil, &Error{Reason: v1alpha1.ReasonInvalid, Err: err}
	}
	if err := checkScaling(t); err != nil {
		return nil, &Error{Reason: v1alpha1.ReasonInvalid, Err: err}
	}
	found := &finding{needs: Needs{Deliveries: deliveries(t, compiled)}}
	limit, high := retry.LaneLimit(t.Spec.Lanes), anyHigher(compiled)
	if high {
		limit /= 2 // each has a twin
	}
	found.needs.Lanes, found.merged = retry.PlanLanes(sorted(compiled), limit, releases(t))
	if high {
		found.needs.HighLanes = found.needs.Lanes
	}
	return found, nil
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

// Strategies counts those of all policies that a Transport refers to, with what they include. It costs little, whatever there are.
func Strategies(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (all int) {
	for _, name := range References(t) {
		policy, ok := policies[name]
		if !ok {
			continue
		}
		all += len(policy.Spec.Strategies)
		for _, include := range policy.Spec.IncludeStrategies {
			if included, err := strategiesOf(include, policies); err == nil {
				all += len(included)
			}
		}
	}
	return all
}

func resolveAll(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (map[string]v1alpha1.RetryPolicySpec, error) {
	if all := Strategies(t, policies); all > MaxStrategies {
		return nil, &Error{Reason: v1alpha1.ReasonInvalid, Err: fmt.Errorf("spec.retryPolicies: the policies of the Transport have %d strategies together, "+
			"and %d are allowed; what a policy includes counts for each policy that includes it: name fewer policies, or let fewer of them include that many",
			all, MaxStrategies)}
	}
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
		if unread, is := errors.AsType[*Error](err); is {
			return nil, unread
		}
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

// Resolve gives a policy's spec with the strategies of the policies and presets that it includes, after its own and named
// "policy/strategy" or "preset/strategy". What those include is not followed. It fails when an included policy does not exist. What strategies lead
// to is shared with the policies that they come from, which many include: it must not be altered. Where the operator's cache lacks the spec of one of them,
// the error is an *Error.
func Resolve(policy *v1alpha1.RetryPolicy, policies map[string]*v1alpha1.RetryPolicy) (v1alpha1.RetryPolicySpec, error) {
	if err := unread(policy, policies); err != nil {
		return v1alpha1.RetryPolicySpec{}, err
	}
	spec := policy.Spec
	spec.IncludeStrategies, spec.Strategies = nil, slices.Clip(spec.Strategies)
	var missing []error
	for i, include := range policy.Spec.IncludeStrategies {
		included, err := strategiesOf(include, policies)
		if err != nil {
			missing = append(missing, fmt.Errorf("RetryPolicy %q, spec.includeStrategies[%d]: %w in namespace %q", policy.Name, i, err, policy.Namespace))
			continue
		}
		spec.Strategies = slices.Grow(spec.Strategies, len(included))
		for _, strategy := range included {
			strategy.Name = cmp.Or(include.Name, string(include.Preset)) + "/" + strategy.Name
			spec.Strategies = append(spec.Strategies, strategy)
		}
	}
	return spec, join(missing)
}

// unread refuses a policy where the operator's cache lacks its spec, or that of one that it includes: it is not empty for that.
func unread(policy *v1alpha1.RetryPolicy, policies map[string]*v1alpha1.RetryPolicy) error {
	parts := []*v1alpha1.RetryPolicy{policy}
	for _, include := range policy.Spec.IncludeStrategies {
		if included, ok := policies[include.Name]; ok {
			parts = append(parts, included)
		}
	}
	for _, part := range parts {
		if part.Annotations[NoRoom] != "" {
			return &Error{Reason: v1alpha1.ReasonPolicyInvalid, Err: fmt.Errorf("RetryPolicy %q is not read, because the operator's memory has no room for it, "+
				"and nothing is changed until it has: the conditions of the policy say what to do", part.Name)}
		}
	}
	return nil
}

// strategiesOf are the strategies that an include names.
func strategiesOf(include v1alpha1.StrategyInclude, policies map[string]*v1alpha1.RetryPolicy) ([]v1alpha1.Strategy, error) {
	if include.Name == "" {
		return retry.Preset(include.Preset)
	}
	policy, ok := policies[include.Name]
	if !ok {
		return nil, fmt.Errorf("RetryPolicy %q does not exist", include.Name)
	}
	return policy.Spec.Strategies, nil
}

func usesDefaults(t *v1alpha1.Transport) bool {
	return t.Spec.RetryPolicyRef == nil &&
		slices.ContainsFunc(t.Spec.Queues, func(q v1alpha1.Queue) bool { return q.RetryPolicyRef == nil })
}

func compileAll(compiler *retry.Compiler, t *v1alpha1.Transport, specs map[string]v1alpha1.RetryPolicySpec) (map[string]*retry.Policy, error) {
	var invalid []error
	compiled := make(map[string]*retry.Policy, len(specs))
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		policy, err := compiler.Compile(name, specs[name])
		if err != nil {
			invalid = append(invalid, err)
			if errors.Is(err, retry.ErrTooMuch) || len(invalid) >= maxInvalid {
				break // so would be said of each that follows, or nobody reads on
			}
			continue
		}
		compiled[name] = policy
	}
	if len(invalid) > 0 {
		return nil, &Error{Reason: v1alpha1.ReasonPolicyInvalid, Err: join(invalid)}
	}
	for i, rule := range t.Spec.RetryPolicies {
		_, err := compiler.CompileMatch(fmt.Sprintf("spec.retryPolicies[%d].when", i), rule.When)
		if err != nil {
			invalid = append(invalid, err)
		}
		if errors.Is(err, retry.ErrTooMuch) || len(invalid) >= maxInvalid {
			break
		}
	}
	if len(invalid) > 0 {
		return nil, &Error{Reason: v1alpha1.ReasonInvalidExpression, Err: join(invalid)}
	}
	return compiled, nil
}

func workerConfig(
	compiler *retry.Compiler, t *v1alpha1.Transport, w *v1alpha1.Worker, policies map[string]v1alpha1.RetryPolicySpec, needs Needs,
) (Config, error) {
	names := NamesOf(t)
	config := Config{
		Transport:   t.Namespace + "/" + t.Name,
		Worker:      w.Name,
		Exchanges:   Exchanges{Fallback: names.Fallback(), Return: names.Return(), Failed: names.Failed()},
		Lanes:       needs.Lanes,
		HighLanes:   len(needs.HighLanes) > 0,
		Policies:    policies,
		Concurrency: int(ptr.Deref(w.Concurrency, defaultConcurrency)),
		Timeout:     ptr.Deref(w.Timeout, *v1alpha1.NewDuration(DefaultTimeout)),
		Handler:     w.Handler,
		MadeFor:     MadeFor(&w.Handler, TemplateDigest(w)),
		VHost:       ptr.Deref(t.Spec.Broker.VHost, ""),
		MaxCrashes:  maxCrashes(t),
	}
	if t.Spec.Exchange != nil {
		config.Exchanges.Work = t.Spec.Exchange.Name
	}
	config.Version = config.version()
	config.ConsumerTimeout = ptr.Deref(t.Spec.Broker.ConsumerTimeout, *v1alpha1.NewDuration(defaultConsumerTimeout))
	for _, queue := range queuesOf(t, w) {
		config.Queues = append(config.Queues, workQueue(t, queue, names))
	}
	for _, rule := range t.Spec.RetryPolicies {
		config.Rules = append(config.Rules, Rule{When: rule.When, Policy: rule.RetryPolicyRef.Name})
	}
	return config, protect(compiler, &config, w)
}

func workQueue(t *v1alpha1.Transport, queue *v1alpha1.Queue, names Names) Queue {
	q := Queue{
		Name:                 queue.Name,
		Policy:               policyOf(t, queue),
		SingleActiveConsumer: ptr.Deref(queue.SingleActiveConsumer, false),
		Weight:               int(ptr.Deref(queue.Weight, defaultWeight)),
	}
	if IsStrict(queue) {
		q.Strict = cmp.Or(queue.Ordering.OnFailure, v1alpha1.OnFailureContinue)
	} else {
		// In a strictly ordered queue each message runs alone anyway.
		q.Quarantine = names.Quarantine(queue.Name)
	}
	return q
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

// anyHigher is true where a policy lets retries overtake. A quorum queue of RabbitMQ 4.0 to 4.2 gives out what has expired in
// the order of two priorities, high ones twice as often: a message of low priority would wait in a lane behind those of
// high priority that have not expired, so that these need lanes of their own.
func anyHigher(policies map[string]*retry.Policy) bool {
	for _, p := range policies {
		if p.RetryPriority() == v1alpha1.RetryPriorityHigher {
			return true
		}
	}
	return false
}

// LaneKeys are the values of the header redrive-lane, each with the delay of its lane, the shortest first.
func (n Needs) LaneKeys() []LaneKey {
	keys, high := make([]LaneKey, 0, len(n.Lanes)+len(n.HighLanes)), map[time.Duration]bool{}
	for _, delay := range n.HighLanes {
		high[delay] = true
	}
	for _, delay := range n.Lanes {
		keys = append(keys, LaneKey{Key: retry.LaneKey(delay), Delay: delay})
		if high[delay] {
			keys = append(keys, LaneKey{Key: retry.HighLaneKey(delay), Delay: delay})
		}
	}
	return keys
}

// LaneKey is a lane by its header and its delay.
type LaneKey struct {
	Key   string
	Delay time.Duration
}

// sorted are the policies in the order of their names.
func sorted(policies map[string]*retry.Policy) []*retry.Policy {
	all := make([]*retry.Policy, 0, len(policies))
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		all = append(all, policies[name])
	}
	return all
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
