package retry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// What a policy and a strategy are where their fields are left out.
const (
	defaultMaxRetries   = 3
	defaultMaxAge       = 24 * time.Hour
	defaultDelayFromMax = time.Hour
)

// Policy is a compiled RetryPolicy. It is immutable and safe for concurrent use.
type Policy struct {
	name       string
	maxRetries int64
	maxAge     time.Duration
	backoff    backoff
	// strategies in the order in which they are asked.
	strategies []strategy
	schema     *schema
	decode     bodyDecoder
}

// strategy is a compiled strategy of a policy.
type strategy struct {
	name   string
	action v1alpha1.Action
	when   *expression
	// delayFrom is nil where the backoff alone decides; maxDelay bounds what it gives.
	delayFrom *expression
	maxDelay  time.Duration
	unlimited bool
	// maxRetries is nil where the policy's holds.
	maxRetries *int64
	// backoff is nil where the policy's holds.
	backoff *backoff
}

// Compile makes a policy from its spec, in which the included strategies already stand after the own ones. It fills what
// is left out and orders the strategies by priority, equal ones as they stand.
//
// The error joins everything that is wrong: an *ExpressionError for each mistake in an expression, and a plain error for
// each value that the API's validation would have refused.
func Compile(name string, spec v1alpha1.RetryPolicySpec) (*Policy, error) {
	env, err := newEnvironment(policyVariables())
	if err != nil {
		return nil, fmt.Errorf("policy %q: %w", name, err)
	}
	p := &Policy{
		name:       name,
		maxRetries: defaultMaxRetries,
		maxAge:     defaultMaxAge,
		schema:     env.schema,
		decode:     decodeJSON,
	}
	var errs []error
	invalid := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("policy %q: %w", name, err))
		}
	}
	if spec.MaxRetries != nil {
		p.maxRetries = int64(*spec.MaxRetries)
	}
	if spec.MaxAge != nil {
		p.maxAge = spec.MaxAge.Duration.Duration
	}
	if p.maxRetries < 0 {
		invalid(fmt.Errorf("maxRetries is negative: %d", p.maxRetries))
	}
	if p.maxAge <= 0 {
		invalid(fmt.Errorf("maxAge is not positive: %s", p.maxAge))
	}
	p.backoff, err = compileBackoff(spec.Backoff)
	invalid(err)

	ordered := slices.Clone(spec.Strategies)
	slices.SortStableFunc(ordered, func(a, b v1alpha1.Strategy) int { return cmp.Compare(priority(b), priority(a)) })
	for i := range ordered {
		s, err := compileStrategy(env, name, &ordered[i])
		if err != nil {
			errs = append(errs, err)
		}
		p.strategies = append(p.strategies, s)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// Name of the policy.
func (p *Policy) Name() string { return p.name }

// MaxAge is the longest time from a message's first failure to its last retry.
func (p *Policy) MaxAge() time.Duration { return p.maxAge }

func priority(s v1alpha1.Strategy) int32 {
	if s.Priority == nil {
		return 0
	}
	return *s.Priority
}

func compileStrategy(env *environment, policy string, spec *v1alpha1.Strategy) (strategy, error) {
	s := strategy{
		name:      spec.Name,
		action:    cmp.Or(spec.Action, v1alpha1.ActionRetry),
		maxDelay:  defaultDelayFromMax,
		unlimited: spec.Unlimited != nil && *spec.Unlimited,
	}
	at := func(field string) origin { return origin{policy: policy, strategy: spec.Name, field: field} }
	var errs []error
	invalid := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("policy %q, strategy %q: %w", policy, spec.Name, err))
		}
	}
	var err error
	if s.when, err = env.compile(at("when"), spec.When, resultBool); err != nil {
		errs = append(errs, err)
	}
	if spec.DelayFrom != nil {
		if s.delayFrom, err = env.compile(at("delayFrom"), *spec.DelayFrom, resultDuration); err != nil {
			errs = append(errs, err)
		}
	}
	if !slices.Contains([]v1alpha1.Action{v1alpha1.ActionRetry, v1alpha1.ActionFail, v1alpha1.ActionDrop}, s.action) {
		invalid(fmt.Errorf("action is unknown: %q", s.action))
	}
	if spec.MaxDelay != nil {
		s.maxDelay = spec.MaxDelay.Duration.Duration
	}
	if s.maxDelay < 0 {
		invalid(fmt.Errorf("maxDelay is negative: %s", s.maxDelay))
	}
	s.maxDelay = min(s.maxDelay, longest)
	if spec.MaxRetries != nil {
		limit := int64(*spec.MaxRetries)
		if limit < 0 {
			invalid(fmt.Errorf("maxRetries is negative: %d", limit))
		}
		s.maxRetries = &limit
	}
	if spec.Backoff != nil {
		own, err := compileBackoff(spec.Backoff)
		invalid(err)
		s.backoff = &own
	}
	return s, errors.Join(errs...)
}
