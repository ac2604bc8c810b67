package retry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
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

// unlimitedRetries is the limit of what has none.
const unlimitedRetries = math.MaxInt64

// Policy is a compiled RetryPolicy. It is immutable and safe for concurrent use.
type Policy struct {
	name       string
	maxRetries int64
	maxAge     time.Duration
	backoff    backoff
	immediate  int64
	priority   v1alpha1.RetryPriority
	// followsAdvice is true where the handler's advice is asked before the strategies.
	followsAdvice bool
	// strategies in the order in which they are asked.
	strategies []strategy
	schema     *schema
	decode     bodyDecoder
}

// strategy is a compiled strategy of a policy.
type strategy struct {
	name     string
	priority int32
	action   v1alpha1.Action
	when     *expression
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
// The error joins everything that is wrong, of 32 strategies at most: an *ExpressionError for each mistake in an expression, and a plain error for
// each value that the API's validation would have refused.
func Compile(name string, spec v1alpha1.RetryPolicySpec) (*Policy, error) {
	c, err := NewCompiler()
	if err != nil {
		return nil, fmt.Errorf("policy %q: %w", name, err)
	}
	return c.Compile(name, spec)
}

// Compiler compiles expressions that belong together: those of one Transport and its policies, or of one policy alone. It bounds what all of
// them come to. It is not safe for concurrent use; what it compiles is.
type Compiler struct {
	policies, messages *environment
	// seen are the expressions so far, and texts and steps what they come to; room is how many nodes there may still be. An environment forgets
	// what it has no room for, and would compile anew what stands in many policies.
	seen               map[seenProgram]verdict
	texts, steps, room int
}

// verdict is an expression that was compiled, or what is wrong with it.
type verdict struct {
	program *program
	wrong   error
}

// seenProgram identifies an expression of a Compiler.
type seenProgram struct {
	environment *environment
	knownProgram
}

// Bounds of what a Compiler compiles: what is compiled takes up to 300 times the memory of its text. All nodes together take a second and some 30 MB;
// 128 strategies of 2,000 characters that compare fields and headers have half as many.
const (
	maxTexts        = 256 << 10
	maxNodes        = 100_000
	maxPatternSteps = 50_000
)

// maxWrong is how many strategies of a policy are said to be wrong: nobody reads on.
const maxWrong = 32

// ErrTooMuch says that the expressions so far have no room for further ones: all that follows is refused too.
var ErrTooMuch = fmt.Errorf("the expressions of all policies, rules and keys together are too large: "+
	"%d bytes of text are allowed, %d steps in patterns of matches, and %d nodes, which all values, calls and macros come to",
	maxTexts, maxPatternSteps, maxNodes)

// NewCompiler makes a compiler that has compiled nothing yet.
func NewCompiler() (*Compiler, error) {
	policies, err := forPolicies()
	if err != nil {
		return nil, err
	}
	messages, err := forMessages()
	if err != nil {
		return nil, err
	}
	return &Compiler{policies: policies, messages: messages, seen: map[seenProgram]verdict{}, room: maxNodes}, nil
}

// compile counts an expression once, and checks it.
func (c *Compiler) compile(env *environment, o origin, text string, want result) (*expression, error) {
	known := seenProgram{env, knownProgram{text, want}}
	before, isKnown := c.seen[known]
	switch {
	case before.program != nil:
		return &expression{program: before.program, origin: o}, nil
	case isKnown:
		return nil, o.of(before.wrong)
	}
	if c.texts += len(text); c.texts > maxTexts || c.steps > maxPatternSteps || c.room < 0 {
		return nil, o.error(ErrTooMuch, 0, 0)
	}
	compiled, err := env.compile(o, text, want, &c.room)
	if err != nil {
		c.seen[known] = verdict{wrong: err}
		return nil, err
	}
	if c.steps += compiled.patterns; c.steps > maxPatternSteps {
		return nil, o.error(ErrTooMuch, 0, 0)
	}
	c.seen[known] = verdict{program: compiled.program}
	return compiled, nil
}

// Compile does what the function Compile does.
func (c *Compiler) Compile(name string, spec v1alpha1.RetryPolicySpec) (*Policy, error) {
	p := &Policy{
		name:       name,
		maxRetries: defaultMaxRetries,
		maxAge:     defaultMaxAge,
		priority:   cmp.Or(spec.RetryPriority, v1alpha1.RetryPrioritySame),
		schema:     c.policies.schema,
		decode:     decodeJSON,
	}
	p.followsAdvice = spec.HandlerAdvice != v1alpha1.HandlerAdviceIgnore
	var errs []error
	invalid := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("policy %q: %w", name, err))
		}
	}
	if spec.MaxRetries != nil {
		p.maxRetries = int64(*spec.MaxRetries)
	}
	if spec.Unlimited != nil && *spec.Unlimited {
		p.maxRetries = unlimitedRetries
	}
	if spec.MaxAge != nil {
		p.maxAge = spec.MaxAge.Duration.Duration
	}
	if spec.Immediate != nil {
		p.immediate = int64(*spec.Immediate)
	}
	if !slices.Contains([]v1alpha1.HandlerAdvice{"", v1alpha1.HandlerAdviceFollow, v1alpha1.HandlerAdviceIgnore}, spec.HandlerAdvice) {
		invalid(fmt.Errorf("handlerAdvice is unknown: %q", spec.HandlerAdvice))
	}
	if p.immediate < 0 {
		invalid(fmt.Errorf("immediate is negative: %d", p.immediate))
	}
	if p.maxRetries < 0 {
		invalid(fmt.Errorf("maxRetries is negative: %d", p.maxRetries))
	}
	if p.maxAge <= 0 {
		invalid(fmt.Errorf("maxAge is not positive: %s", p.maxAge))
	}
	var err error
	p.backoff, err = compileBackoff(spec.Backoff)
	invalid(err)

	ordered := slices.Clone(spec.Strategies)
	slices.SortStableFunc(ordered, func(a, b v1alpha1.Strategy) int { return cmp.Compare(priority(b), priority(a)) })
	for i := range ordered {
		s, err := compileStrategy(c, name, &ordered[i])
		if err != nil {
			errs = append(errs, err)
		}
		if errors.Is(err, ErrTooMuch) || len(errs) >= maxWrong {
			break
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

// MaxRetries is the number of retries that the policy allows where no strategy says otherwise; NoLimit where it sets no limit.
func (p *Policy) MaxRetries() int64 {
	if p.maxRetries == unlimitedRetries {
		return NoLimit
	}
	return p.maxRetries
}

// Immediate is the number of tries at once before the first retry.
func (p *Policy) Immediate() int64 { return p.immediate }

// RetryPriority is the AMQP priority of a message that comes back for a retry, beside the producer's.
func (p *Policy) RetryPriority() v1alpha1.RetryPriority { return p.priority }

// HandlerAdvice says whether the handler's advice decides before the strategies.
func (p *Policy) HandlerAdvice() v1alpha1.HandlerAdvice {
	if p.followsAdvice {
		return v1alpha1.HandlerAdviceFollow
	}
	return v1alpha1.HandlerAdviceIgnore
}

// StrategyNames are the names of the strategies in the order in which they are asked.
func (p *Policy) StrategyNames() []string {
	names := make([]string, len(p.strategies))
	for i := range p.strategies {
		names[i] = p.strategies[i].name
	}
	return names
}

// UnlimitedStrategy names a strategy that retries without a limit; empty where there is none.
func (p *Policy) UnlimitedStrategy() string {
	for i := range p.strategies {
		if p.strategies[i].unlimited {
			return p.strategies[i].name
		}
	}
	return ""
}

// MostRetries is the number of retries that a message needs to use up the limits of the policy and of every strategy that
// has one of its own: those count for themselves, so that they add up. Only failures that go back and forth between such
// strategies, whose streaks begin anew each time, could ask for more. It says nothing of unlimited strategies.
func (p *Policy) MostRetries() int64 {
	most := p.maxRetries
	for i := range p.strategies {
		if s := &p.strategies[i]; s.action == v1alpha1.ActionRetry && s.maxRetries != nil {
			most = min(most, unlimitedRetries-*s.maxRetries) + *s.maxRetries
		}
	}
	return most
}

// LongestDelay is the longest delay that the policy can ask for; of schedules with more than 128 different delays, and
// only there, it may be one that maxAge does not let happen.
func (p *Policy) LongestDelay() time.Duration {
	longest, most := p.backoff.longest(p.maxRetries, p.maxAge), p.MostRetries()
	for i := range p.strategies {
		s := &p.strategies[i]
		if s.action != v1alpha1.ActionRetry {
			continue
		}
		b, limit := p.backoffOf(s)
		reached := limit
		if s.backoff == nil && s.maxRetries != nil && !s.unlimited && limit > 0 {
			reached = most // the policy's backoff counts by all retries before, whoever decided on them
		}
		longest = max(longest, b.longest(reached, p.maxAge))
		if s.delayFrom != nil && limit > 0 {
			longest = max(longest, min(s.maxDelay, p.maxAge))
		}
	}
	return longest
}

// LongestWait is the longest delay of a retry or a release: the policy's, or one that the handler asks for.
func (p *Policy) LongestWait() time.Duration {
	longest := p.LongestDelay()
	if p.followsAdvice {
		longest = max(longest, min(maxAdvisedDelay, p.maxAge))
	}
	return longest
}

// backoffOf gives the backoff that holds for a strategy that retries, and how often it may.
func (p *Policy) backoffOf(s *strategy) (b *backoff, limit int64) {
	b, limit = &p.backoff, p.maxRetries
	if s.backoff != nil {
		b = s.backoff
	}
	switch {
	case s.unlimited:
		limit = unlimitedRetries
	case s.maxRetries != nil:
		limit = *s.maxRetries
	}
	return b, limit
}

func priority(s v1alpha1.Strategy) int32 {
	if s.Priority == nil {
		return 0
	}
	return *s.Priority
}

func compileStrategy(c *Compiler, policy string, spec *v1alpha1.Strategy) (strategy, error) {
	s := strategy{
		name:      spec.Name,
		priority:  priority(*spec),
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
	if s.when, err = c.compile(c.policies, at("when"), spec.When, resultBool); err != nil {
		errs = append(errs, err)
	}
	if spec.DelayFrom != nil {
		if s.delayFrom, err = c.compile(c.policies, at("delayFrom"), *spec.DelayFrom, resultDuration); err != nil {
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
