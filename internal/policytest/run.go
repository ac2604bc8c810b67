package policytest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// Result is the answer to a case.
type Result struct {
	// Name, File and Line of the case.
	Name string `json:"name"`
	File string `json:"file"`
	Line int    `json:"line"`
	// Policy that was asked.
	Policy string `json:"policy"`
	Got    Got    `json:"got"`
	// Differences from what is expected; none where the case holds.
	Differences []string `json:"differences,omitempty"`
	// Problems are expressions that failed on the message. They match nothing, and are no difference by themselves.
	Problems []string `json:"problems,omitempty"`
	// Took is the time for the answer.
	Took time.Duration `json:"-"`
}

// Holds says whether the case is answered as expected.
func (r *Result) Holds() bool { return len(r.Differences) == 0 }

// Got is a verdict.
type Got struct {
	Action v1alpha1.Action `json:"action"`
	// Delay before jitter, and Min and Max of the range that jitter draws from; empty where there is none.
	Delay string `json:"delay,omitempty"`
	Min   string `json:"min,omitempty"`
	Max   string `json:"max,omitempty"`
	// Drawn is the delay that the seed gives.
	Drawn       string       `json:"drawn,omitempty"`
	Strategy    string       `json:"strategy"`
	Reason      retry.Reason `json:"reason"`
	Explanation string       `json:"explanation"`
}

// String is the verdict in a line.
func (g Got) String() string {
	text := string(g.Action)
	switch {
	case g.Reason == retry.ReasonImmediate:
		text += " at once"
	case g.Min != g.Max:
		text += fmt.Sprintf(" in %s to %s, drawn %s", g.Min, g.Max, g.Drawn)
	case g.Delay != "":
		text += " in " + g.Delay
	default:
		text += ", " + string(g.Reason)
	}
	if g.Strategy != "" {
		text += ", by " + g.Strategy
	}
	return text
}

// Run answers all cases. Forced is the policy to ask in place of the one that each case would have; empty, there is none.
// The same seed gives the same delays, whichever other cases there are. The error lists the cases that cannot be asked.
func (s *Suite) Run(cases []Case, forced string, seed uint64) ([]Result, error) {
	if forced != "" {
		if _, err := s.Policy(forced); err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
	}
	results := make([]Result, len(cases))
	var errs []error
	for i := range cases {
		c := &cases[i]
		began := time.Now()
		policy, problems, err := s.choose(c, forced)
		if err != nil {
			errs = append(errs, c.wrong(err))
			continue
		}
		if err := c.wrong(s.unknown(c, policy, forced)...); err != nil {
			errs = append(errs, err)
			continue
		}
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated, not to be unforeseen
		verdict := policy.Decide(c.failure(), c.message(), c.history(), c.now(), random)
		results[i] = Result{
			Name: c.Name, File: c.File, Line: c.Line, Policy: policy.Name(), Got: got(verdict),
			Differences: c.Expect.compare(policy, verdict), Took: time.Since(began),
		}
		for _, problem := range append(problems, verdict.Problems...) {
			results[i].Problems = append(results[i].Problems, problem.Error())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return results, nil
}

// unknown finds the names of a case that nothing has. A streak of such a strategy would count for nothing and nobody would see
// it, and a case that expects such a name could never hold.
func (s *Suite) unknown(c *Case, asked *retry.Policy, forced string) []error {
	var errs []error
	if name := c.Streak.Strategy; name != "" && !decides(asked, name) {
		errs = append(errs, unknownStrategy("streak.strategy", name, asked))
	}
	expected := []*retry.Policy{asked}
	switch {
	case c.Expect.Policy != nil:
		if expected = s.called(*c.Expect.Policy); len(expected) == 0 {
			return append(errs, fmt.Errorf("expect.policy is %q: the policies are %s", *c.Expect.Policy, strings.Join(s.policyNames(), ", ")))
		}
	case forced == "" && c.Policy == "":
		// The message chose. That it should have chosen another policy is a difference.
		expected = slices.AppendSeq(expected, maps.Values(s.policies))
	}
	if name := c.Expect.Strategy; name != nil && *name != "" && !slices.ContainsFunc(expected, func(p *retry.Policy) bool {
		return decides(p, *name)
	}) {
		errs = append(errs, unknownStrategy("expect.strategy", *name, expected[0]))
	}
	return errs
}

// decides is true where a policy has a strategy of that name; the handler decides under any policy.
func decides(policy *retry.Policy, name string) bool {
	return name == retry.ByHandler || slices.Contains(policy.StrategyNames(), name)
}

func unknownStrategy(field, name string, policy *retry.Policy) error {
	known := cmp.Or(strings.Join(policy.StrategyNames(), ", "), "none")
	return fmt.Errorf("%s is %q: the strategies of policy %s are %s", field, name, policy.Name(), known)
}

// called finds the policies of a name as cases expect it, without a namespace.
func (s *Suite) called(name string) []*retry.Policy {
	var found []*retry.Policy
	for _, full := range s.Policies() {
		if full.Name == name {
			found = append(found, s.policies[full])
		}
	}
	if name == s.defaults.Name() {
		found = append(found, s.defaults)
	}
	return found
}

// policyNames are the names by which cases expect policies.
func (s *Suite) policyNames() []string {
	policies := s.Policies()
	names := make([]string, len(policies), len(policies)+1)
	for i, full := range policies {
		names[i] = full.Name
	}
	names = append(names, s.defaults.Name())
	slices.Sort(names)
	return slices.Compact(names)
}

func got(v retry.Verdict) Got {
	g := Got{Action: v.Action, Strategy: v.Strategy, Reason: v.Reason, Explanation: v.Explanation}
	if v.Reason == retry.ReasonRetry {
		g.Delay, g.Drawn = retry.Readable(v.Range.Nominal), retry.Readable(v.Delay)
		g.Min, g.Max = retry.Readable(v.Range.Min), retry.Readable(v.Range.Max)
	}
	return g
}

// compare says where a verdict is not what is expected.
func (e *Expect) compare(policy *retry.Policy, v retry.Verdict) []string {
	var differences []string
	differ := func(field string, got, want any) {
		differences = append(differences, fmt.Sprintf("%s is %v, not %v", field, got, want))
	}
	if v.Action != e.Action {
		differences = append(differences, fmt.Sprintf("action is %s, not %s: %s", v.Action, e.Action, v.Explanation))
	}
	if e.Delay != nil && v.Action == v1alpha1.ActionRetry {
		if difference := e.Delay.compare(v.Range); difference != "" {
			differences = append(differences, difference)
		}
	}
	if e.Strategy != nil && v.Strategy != *e.Strategy {
		differ("strategy", quoted(v.Strategy), quoted(*e.Strategy))
	}
	if e.Reason != nil && v.Reason != *e.Reason {
		differ("reason", v.Reason, *e.Reason)
	}
	if e.Policy != nil && policy.Name() != *e.Policy {
		differ("policy", policy.Name(), *e.Policy)
	}
	return differences
}

// precision is that of delays as they are shown.
const precision = time.Millisecond

// compare is empty where the delay is as expected.
func (d *Delay) compare(drawnFrom retry.DelayRange) string {
	switch {
	case d.Exact == nil && (drawnFrom.Min < d.Min || drawnFrom.Max > d.Max):
		return fmt.Sprintf("delay is %s, not %s", spread(drawnFrom.Min, drawnFrom.Max), d)
	case d.Exact != nil && drawnFrom.Nominal.Truncate(precision) != d.Exact.Truncate(precision):
		return fmt.Sprintf("delay is %s, not %s", retry.Readable(drawnFrom.Nominal), d)
	default:
		return ""
	}
}

func quoted(strategy string) string {
	if strategy == "" {
		return "none"
	}
	return fmt.Sprintf("%q", strategy)
}
