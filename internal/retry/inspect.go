package retry

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"

	"redrive.dev/redrive/api/v1alpha1"
)

// StrategyView is a strategy of a compiled policy, for people.
type StrategyView struct {
	// Name of the strategy: "policy/strategy" where it was included.
	Name     string
	Priority int32
	Action   v1alpha1.Action
	// When it decides, as an expression.
	When string
	// DelayFrom is the expression that gives its delay, and MaxDelay the bound on that; empty and zero where there is none.
	DelayFrom string
	MaxDelay  time.Duration
	// Limit says how often it retries: "3 (the policy's)", "10 in a row", "unlimited". It is empty where it does not.
	Limit string
	// Schedule shows the delays of its backoff in words. It is empty where it does not retry.
	Schedule string
	// Heavy are the fields of those of its expressions whose work grows with the message: they go through its body or its headers, or
	// make texts of them. They are counted against DecisionSteps.
	Heavy []string
	// Warnings say what its author may not have meant.
	Warnings []string
}

// Strategies are those of the policy in the order in which they are asked, each with what can be proved against it. That
// nothing is said of a strategy does not mean that some message reaches it.
func (p *Policy) Strategies() ([]StrategyView, error) {
	// Without the calls of macros their expressions could not be written down again.
	env, err := newEnvironment(append(policyVariables(), cel.EnableMacroCallTracking()))
	if err != nil {
		return nil, fmt.Errorf("policy %q: %w", p.name, err)
	}
	views := make([]StrategyView, len(p.strategies))
	conditions := make([]condition, len(p.strategies))
	for i := range p.strategies {
		s := &p.strategies[i]
		views[i] = p.view(s)
		if conditions[i], err = env.condition(s.when.text); err != nil {
			return nil, fmt.Errorf("policy %q, strategy %q: %w", p.name, s.name, err)
		}
		if why := p.unreachable(i, conditions); why != "" {
			views[i].Warnings = append([]string{why}, views[i].Warnings...)
		}
	}
	return views, nil
}

// Warnings say of the policy's own schedule what its author may not have meant.
func (p *Policy) Warnings() []string {
	return p.cutOff(&p.backoff, p.maxRetries)
}

func (p *Policy) view(s *strategy) StrategyView {
	v := StrategyView{Name: s.name, Priority: s.priority, Action: s.action, When: s.when.text}
	if !s.when.light {
		v.Heavy = append(v.Heavy, "when")
	}
	if s.action != v1alpha1.ActionRetry {
		return v
	}
	b, limit := p.backoffOf(s)
	v.Schedule, _ = b.schedule(limit, p.maxAge)
	switch {
	case s.unlimited:
		v.Limit = "unlimited"
	case s.maxRetries != nil:
		v.Limit = fmt.Sprintf("%d in a row", limit)
		v.Warnings = p.cutOff(b, limit)
	default:
		v.Limit = readableLimit(limit) + " (the policy's)"
		if s.backoff != nil {
			v.Warnings = p.cutOff(b, limit)
		}
	}
	if s.unlimited && b.at(0) > p.maxAge {
		v.Warnings = p.cutOff(b, manyRetries)
	}
	if s.delayFrom != nil {
		v.DelayFrom, v.MaxDelay = s.delayFrom.text, s.maxDelay
		if !s.delayFrom.light {
			v.Heavy = append(v.Heavy, "delayFrom")
		}
		if s.maxDelay > p.maxAge {
			v.Warnings = append(v.Warnings, fmt.Sprintf("its maxDelay %s is longer than maxAge %s: a delay over maxAge is not waited for, the "+
				"message fails at once", short(s.maxDelay), short(p.maxAge)))
		}
	}
	return v
}

// readableLimit is a number of retries for people.
func readableLimit(limit int64) string {
	if limit > manyRetries {
		return "unlimited"
	}
	return strconv.FormatInt(limit, 10)
}

// cutOff warns of retries that maxAge does not let happen.
func (p *Policy) cutOff(b *backoff, limit int64) []string {
	_, retries := b.schedule(limit, p.maxAge)
	switch {
	case limit == 0 || retries >= limit || limit > manyRetries && retries > 0:
		return nil
	case retries == 0:
		return []string{fmt.Sprintf("there is no retry: the first delay is longer than maxAge %s", short(p.maxAge))}
	default:
		return []string{fmt.Sprintf("at most %d of %d retries happen before maxAge %s", retries, limit, short(p.maxAge))}
	}
}

// unreachable says why no message reaches the i-th strategy, empty where that is not known.
func (p *Policy) unreachable(i int, conditions []condition) string {
	if conditions[i].never() {
		return "it never decides: its expression is always false"
	}
	for j := range i {
		earlier, name := conditions[j], p.strategies[j].name
		switch {
		case earlier.always():
			return fmt.Sprintf("it is never asked: strategy %q before it always decides", name)
		case earlier.text == conditions[i].text:
			return fmt.Sprintf("it is never asked: strategy %q before it has the same expression", name)
		case implies(conditions[i], earlier):
			return fmt.Sprintf("it never decides: strategy %q before it decides whenever it would", name)
		}
	}
	return ""
}

// condition is an expression in a form in which equal ones are equal text.
type condition struct {
	text string
	// all must be true where the condition is; any one of some makes it true.
	all, some []string
}

func (c condition) always() bool { return c.text == strconv.FormatBool(true) }
func (c condition) never() bool  { return c.text == strconv.FormatBool(false) }

// implies is true where, whenever c is true, other is. Where it is false, nothing is known.
func implies(c, other condition) bool {
	return slices.ContainsFunc(c.all, func(part string) bool { return slices.Contains(other.some, part) })
}

// condition folds what is constant in an expression, and takes its ands and ors apart.
func (e *environment) condition(text string) (condition, error) {
	ast, issues := e.cel.Compile(text)
	if issues.Err() != nil {
		return condition{}, issues.Err() //nolint:wrapcheck // it was compiled before, so this does not happen
	}
	folder, err := cel.NewConstantFoldingOptimizer()
	if err != nil {
		return condition{}, fmt.Errorf("fold constants: %w", err)
	}
	optimizer, err := cel.NewStaticOptimizer(folder)
	if err != nil {
		return condition{}, fmt.Errorf("fold constants: %w", err)
	}
	// What does not fold, such as a division by zero, stands for itself.
	if folded, issues := optimizer.Optimize(e.cel, ast); issues.Err() == nil {
		ast = folded
	}
	root, info := ast.NativeRep().Expr(), ast.NativeRep().SourceInfo()
	c := condition{all: parts(root, info, operators.LogicalAnd), some: parts(root, info, operators.LogicalOr)}
	if c.text, err = cel.ExprToString(root, info); err != nil {
		return condition{}, fmt.Errorf("write the expression: %w", err)
	}
	c.all, c.some = append(c.all, c.text), append(c.some, c.text)
	return c, nil
}

// parts are the texts of the operands of a chain of ands or ors; none where the expression is no such chain.
func parts(e celast.Expr, info *celast.SourceInfo, operator string) []string {
	if e.Kind() != celast.CallKind || e.AsCall().FunctionName() != operator {
		return nil
	}
	var texts []string
	for _, operand := range e.AsCall().Args() {
		if chain := parts(operand, info, operator); len(chain) > 0 {
			texts = append(texts, chain...)
			continue
		}
		if text, err := cel.ExprToString(operand, info); err == nil {
			texts = append(texts, text)
		}
	}
	return texts
}
