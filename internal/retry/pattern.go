package retry

import (
	"errors"
	"fmt"
	"regexp/syntax"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
)

// MaxPattern bounds a regular expression in steps: characters, character classes and the like, each as often as it is repeated.
// Some 100 bytes of memory are taken for each when it is compiled, so that 2 kB of text could take 200 MB.
const MaxPattern = 2000

// patternValidator finds the regular expressions that cannot be used, or would be too large, before any is compiled.
type patternValidator struct{}

// Name implements cel.ASTValidator.
func (patternValidator) Name() string { return "redrive.patterns" }

// Validate implements cel.ASTValidator. The bound is for all patterns of an expression.
func (patternValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, ast *celast.AST, issues *cel.Issues) {
	size := 0
	for _, pattern := range patternsOf(ast) {
		steps, err := checkPattern(pattern)
		if size += steps; err == nil && size > MaxPattern {
			err = fmt.Errorf("the patterns of matches come to %d steps, with what they repeat, and %d are allowed", size, MaxPattern)
		}
		if err != nil {
			issues.ReportErrorAtID(pattern.ID(), "%v", err)
			return
		}
	}
}

// patternsOf are the patterns of an expression.
func patternsOf(ast *celast.AST) []celast.Expr {
	calls := celast.MatchDescendants(celast.NavigateAST(ast), celast.FunctionMatcher(overloads.Matches))
	patterns := make([]celast.Expr, 0, len(calls))
	for _, call := range calls {
		arguments := call.AsCall().Args()
		patterns = append(patterns, arguments[len(arguments)-1])
	}
	return patterns
}

// patternSteps are the steps of all patterns of an expression that is checked.
func patternSteps(ast *cel.Ast) (steps int) {
	for _, pattern := range patternsOf(ast.NativeRep()) {
		size, _ := checkPattern(pattern)
		steps += size
	}
	return steps
}

// checkPattern is about one. What a message brings along is none: whoever publishes could have any compiled, for each message.
func checkPattern(pattern celast.Expr) (size int, err error) {
	if pattern.Kind() != celast.LiteralKind {
		return 0, errors.New("the pattern of matches must be a text in quotes")
	}
	text, ok := pattern.AsLiteral().(types.String)
	if !ok {
		return 0, nil // what is no text does not get past the types
	}
	if size, err = PatternSteps(string(text)); err != nil {
		return 0, fmt.Errorf("the pattern of matches: %w", err)
	}
	if size > MaxPattern {
		return size, fmt.Errorf("the pattern of matches comes to %d steps, with what it repeats, and %d are allowed", size, MaxPattern)
	}
	return size, nil
}

// PatternSteps is the number of steps that a regular expression is compiled to, as far as MaxPattern counts them. It compiles nothing.
func PatternSteps(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err //nolint:wrapcheck // it says what is wrong with the pattern
	}
	return patternSize(parsed), nil
}

// patternSize is the number of steps that an expression is compiled to, or more than are allowed.
func patternSize(e *syntax.Regexp) int {
	size := 1
	if e.Op == syntax.OpLiteral {
		size = len(e.Rune)
	}
	for _, part := range e.Sub {
		size = min(size+patternSize(part), maxSize)
	}
	if e.Op == syntax.OpRepeat {
		size = min(size*max(e.Min, e.Max, 1), maxSize)
	}
	return size
}

// maxSize is where counting ends, long before it could overflow.
const maxSize = 1_000_000

// patternStep is how many steps of a pattern are tried on some bytes of text in the time of one step of a budget.
const patternStep = 16

// stepsOfPattern is what a pattern, which was checked, costs for each textStep bytes of text.
func stepsOfPattern(pattern celast.Expr) int64 {
	text, _ := pattern.AsLiteral().(types.String)
	steps, err := PatternSteps(string(text))
	if err != nil {
		return MaxPattern
	}
	return int64(textStep * (1 + steps/patternStep) / 2)
}
