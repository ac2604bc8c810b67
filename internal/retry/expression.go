package retry

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// maxErrorText bounds the text of an error, which may repeat much of an expression.
const maxErrorText = 256

// errAbsent is what reading the only optional field gives where there is none.
var errAbsent = plainError("error.retryAfter: it is absent: ask has() first")

// ExpressionError is a mistake in an expression, found when it was compiled or when it ran.
type ExpressionError struct {
	// Policy and Strategy that the expression belongs to; empty where it belongs to none.
	Policy, Strategy string
	// Field that holds the expression, such as "when", "delayFrom" or "retryPolicies[2].when".
	Field string
	// Line and Column of the mistake, from 1; 0 where they are not known.
	Line, Column int
	// Err says what is wrong.
	Err error
}

// Error gives the place and CEL's text in one line, the text shortened where it is long.
func (e *ExpressionError) Error() string {
	var b strings.Builder
	if e.Policy != "" {
		fmt.Fprintf(&b, "policy %q, ", e.Policy)
	}
	if e.Strategy != "" {
		fmt.Fprintf(&b, "strategy %q, ", e.Strategy)
	}
	b.WriteString(e.Field)
	if e.Line > 0 {
		fmt.Fprintf(&b, ", %d:%d", e.Line, e.Column)
	}
	b.WriteString(": ")
	b.WriteString(shorten(e.Err.Error()))
	return b.String()
}

// Unwrap gives Err.
func (e *ExpressionError) Unwrap() error { return e.Err }

func shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxErrorText {
		return text
	}
	return cut(text, maxErrorText) + "…"
}

// cut is the beginning of a text, at most limit bytes of it, and no half of a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// origin is the place of an expression in the configuration.
type origin struct {
	policy, strategy, field string
}

// error places err at line and column, both from 1, where line is 0 if the place is not known.
func (o origin) error(err error, line, column int) *ExpressionError {
	e := &ExpressionError{Policy: o.policy, Strategy: o.strategy, Field: o.field, Err: err}
	if line > 0 {
		e.Line, e.Column = line, max(column, 1)
	}
	return e
}

// of is an error of compile, told of the same text in this place.
func (o origin) of(err error) error {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	told := make([]error, len(errs))
	for i, err := range errs {
		told[i] = err
		if its, ok := errors.AsType[*ExpressionError](err); ok {
			told[i] = o.error(its.Err, its.Line, its.Column)
		}
	}
	return errors.Join(told...)
}

// expression is a compiled expression in its place. It is immutable and safe for concurrent use.
type expression struct {
	*program

	origin origin
}

// program is an expression that is compiled and type-checked, wherever it stands.
type program struct {
	// text as it was written, its nodes and what it weighs, in nodes, and what its regular expressions take in memory, in steps.
	text                    string
	nodes, weight, patterns int
	// run is what evaluates it. It counts what that costs, unless it is light: then it cannot cost more than cost, in steps.
	run   cel.Program
	light bool
	cost  int64
	// counted counts in any case. It is rarely needed, and not small.
	counted func() (cel.Program, error)
	// source finds the position of what failed at run time.
	source *celast.SourceInfo
}

// result is the type that an expression must give.
type result int

const (
	// resultBool also allows dyn, the type of headers and body, which is checked at run time.
	resultBool result = iota
	// resultDuration does not allow dyn: no header and no JSON value is a duration, so that it would always fail.
	resultDuration
	// resultText also allows dyn, the type of headers and body, whose texts, numbers and bools are all taken as text.
	resultText
)

func (r result) check(t *cel.Type) error {
	switch {
	case r == resultBool && !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType):
		return fmt.Errorf("must give a bool, but gives %s", cel.FormatCELType(t))
	case r == resultDuration && t.IsExactType(cel.DynType):
		return errors.New("must give a duration, but gives dyn: wrap it in duration(…)")
	case r == resultDuration && !t.IsExactType(cel.DurationType):
		return fmt.Errorf("must give a duration, but gives %s", cel.FormatCELType(t))
	case r == resultText && !t.IsExactType(cel.StringType) && !t.IsExactType(cel.DynType):
		return fmt.Errorf("must give a string, but gives %s: wrap it in string(…)", cel.FormatCELType(t))
	default:
		return nil
	}
}

// compile checks an expression, if room has as many nodes left, and takes them. The error joins an *ExpressionError for each mistake.
func (e *environment) compile(o origin, text string, want result, room *int) (*expression, error) {
	known := knownProgram{text, want}
	if p := e.programs.find(known); p != nil {
		if *room -= p.weight; *room < 0 {
			return nil, o.error(ErrTooMuch, 0, 0)
		}
		return &expression{program: p, origin: o}, nil
	}
	ast, issues := e.cel.Parse(text)
	var nodes, weight int
	if issues.Err() == nil {
		nodes, weight = e.weigh(ast)
		if *room -= weight; *room < 0 {
			return nil, o.error(ErrTooMuch, 0, 0)
		}
		ast, issues = e.cel.Check(ast)
	}
	if issues.Err() != nil {
		errs := make([]error, 0, len(issues.Errors()))
		for _, issue := range issues.Errors() {
			errs = append(errs, o.error(errors.New(e.hint(issue.Message, text)), issue.Location.Line(), issue.Location.Column()+1))
			if isAssignment(issue.Message) {
				break // the parser stumbles over the rest
			}
		}
		return nil, errors.Join(errs...)
	}
	if err := want.check(ast.OutputType()); err != nil {
		return nil, o.error(err, 1, 1)
	}
	p, err := e.plan(text, ast)
	if err != nil {
		return nil, o.error(err, 0, 0)
	}
	p.nodes, p.weight = nodes, weight
	return &expression{program: e.programs.keep(known, p), origin: o}, nil
}

// plan makes a program of a checked expression.
func (e *environment) plan(text string, ast *cel.Ast) (*program, error) {
	p := &program{text: text, patterns: patternWeight(ast), source: ast.NativeRep().SourceInfo()}
	p.cost, p.light = e.costOf(ast)
	p.counted = sync.OnceValues(func() (cel.Program, error) {
		return e.cel.Program(ast, cel.CustomDecoratorV2(tariffOf(ast.NativeRep()).decorate), cel.EvalOptions(cel.OptOptimize))
	})
	var err error
	if p.light {
		p.run, err = e.cel.Program(ast, cel.EvalOptions(cel.OptOptimize))
	} else {
		p.run, err = p.counted()
	}
	return p, err
}

// eval evaluates the expression, and counts what it costs only where that could be too much.
func (p *program) eval(s *scope) (ref.Val, error) {
	if p.light && s.short {
		if err := s.budget.left(); err != nil {
			return nil, err
		}
		s.budget.steps += p.cost
		value, _, err := p.run.Eval(s)
		return value, err //nolint:wrapcheck // the callers give it its place
	}
	run, err := p.counted()
	if err != nil {
		return nil, err
	}
	value, err := s.inTurn(run)
	if s.wantsBody {
		s.wantsBody = false
		_, _ = s.readBody() // the expression reads it again, and what was wrong with it
		value, err = s.inTurn(run)
	}
	return value, err
}

// matches evaluates an expression that gives a bool. The error is an *ExpressionError.
func (e *expression) matches(s *scope) (bool, error) {
	value, err := e.eval(s)
	if err != nil {
		return false, e.failed(err)
	}
	matches, ok := value.(types.Bool)
	if !ok {
		return false, e.failed(gave("a bool", value.Type()))
	}
	return bool(matches), nil
}

// duration evaluates an expression that gives a duration. It gives none, and no error, where the expression gives null or
// reads an optional field that is absent. The error is an *ExpressionError.
func (e *expression) duration(s *scope) (d time.Duration, given bool, err error) {
	value, err := e.eval(s)
	switch {
	case errors.Is(err, errAbsent):
		return 0, false, nil
	case err != nil:
		return 0, false, e.failed(err)
	}
	switch value := value.(type) {
	case types.Duration:
		return value.Duration, true, nil
	case types.Null:
		return 0, false, nil
	default:
		return 0, false, e.failed(gave("a duration", value.Type()))
	}
}

// failed is what is told of an error of CEL's run time: its place and its kind.
func (e *expression) failed(err error) error {
	var at *types.Err
	if !errors.As(err, &at) {
		return e.origin.error(kindOf(err), 0, 0)
	}
	place := e.source.GetStartLocation(at.NodeID())
	return e.origin.error(kindOf(err), place.Line(), place.Column()+1)
}

// Match is a compiled expression that chooses messages. It is immutable and safe for concurrent use.
type Match struct {
	expression *expression
	schema     *schema
	decode     bodyDecoder
}

// CompileMatch compiles an expression over message alone that gives a bool. Field names the place that it stands in, for
// errors: "retryPolicies[2].when". The error joins an *ExpressionError for each mistake.
func CompileMatch(field, expr string) (*Match, error) {
	c, err := NewCompiler()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return c.CompileMatch(field, expr)
}

// CompileMatch does what the function CompileMatch does.
func (c *Compiler) CompileMatch(field, expr string) (*Match, error) {
	return c.compileMatch(field, expr, resultBool)
}

func (c *Compiler) compileMatch(field, expr string, want result) (*Match, error) {
	compiled, err := c.compile(c.messages, origin{field: field}, expr, want)
	if err != nil {
		return nil, err
	}
	return &Match{expression: compiled, schema: c.messages.schema, decode: decodeJSON}, nil
}

// Matches says whether the expression chooses the message. The error, an *ExpressionError, says that it failed at run
// time, which counts as no match.
func (m *Match) Matches(msg Message) (bool, error) {
	s := m.schema.scope(m.decode, msg)
	defer s.release()
	return m.expression.matches(s)
}

// Key is a compiled expression that sorts messages by a text, such as the partner that they are for. It is immutable and
// safe for concurrent use.
type Key struct{ match Match }

// CompileKey compiles an expression over message alone that gives a text. Field names the place that it stands in, for
// errors. The error joins an *ExpressionError for each mistake.
func CompileKey(field, expr string) (*Key, error) {
	c, err := NewCompiler()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return c.CompileKey(field, expr)
}

// CompileKey does what the function CompileKey does.
func (c *Compiler) CompileKey(field, expr string) (*Key, error) {
	match, err := c.compileMatch(field, expr, resultText)
	if err != nil {
		return nil, err
	}
	return &Key{match: *match}, nil
}

// maxKey bounds a key in bytes.
const maxKey = 255

// Of gives the key of a message, at most 255 bytes of it. It is empty, and the error an *ExpressionError, where the expression
// fails at run time, such as on a header that is missing.
func (k *Key) Of(msg Message) (string, error) {
	e := k.match.expression
	s := k.match.schema.scope(k.match.decode, msg)
	defer s.release()
	value, err := e.eval(s)
	if err != nil {
		return "", e.failed(err)
	}
	switch value.(type) {
	case types.String, types.Int, types.Uint, types.Double, types.Bool, types.Bytes:
		text, ok := value.ConvertToType(types.StringType).(types.String)
		switch {
		case !ok:
		case e.light && len(text) <= maxKey:
			return string(text), nil
		default: // it may be a part of a text of 1 MiB, all of which would stay in use with it
			return strings.Clone(cut(string(text), maxKey)), nil
		}
	}
	return "", e.failed(gave("a text", value.Type()))
}
