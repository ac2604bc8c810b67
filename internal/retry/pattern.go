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

// perRange is how many runes of the ranges of a character class take the memory of a step. \pL has 650 ranges, and takes that of 100 steps each time.
const perRange = 12

// patternValidator finds the regular expressions that cannot be used, or would be too large, before any is compiled.
type patternValidator struct{}

// Name implements cel.ASTValidator.
func (patternValidator) Name() string { return "redrive.patterns" }

// Validate implements cel.ASTValidator. The bound is for all patterns of an expression.
func (patternValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, ast *celast.AST, issues *cel.Issues) {
	size, weight := 0, 0
	for _, pattern := range patternsOf(ast) {
		steps, weighs, err := checkPattern(pattern)
		size, weight = size+steps, weight+weighs
		switch {
		case err != nil:
		case size > MaxPattern:
			err = fmt.Errorf("the patterns of matches come to %d steps, with what they repeat, and %d are allowed", size, MaxPattern)
		case weight > maxPatternSteps:
			err = fmt.Errorf("the character classes in the patterns of matches take the memory of %d steps, with what they repeat, and %d are allowed",
				weight, maxPatternSteps)
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

// patternWeight is what all patterns of an expression that is checked take in memory, in steps.
func patternWeight(ast *cel.Ast) (weight int) {
	for _, pattern := range patternsOf(ast.NativeRep()) {
		_, weighs, _ := checkPattern(pattern)
		weight += weighs
	}
	return weight
}

// checkPattern is about one. What a message brings along is none: whoever publishes could have any compiled, for each message.
func checkPattern(pattern celast.Expr) (steps, weight int, err error) {
	if pattern.Kind() != celast.LiteralKind {
		return 0, 0, errors.New("the pattern of matches must be a text in quotes")
	}
	text, ok := pattern.AsLiteral().(types.String)
	if !ok {
		return 0, 0, nil // what is no text does not get past the types
	}
	if steps, weight, err = PatternSteps(string(text)); err != nil {
		return 0, 0, fmt.Errorf("the pattern of matches: %w", err)
	}
	if steps > MaxPattern {
		return steps, weight, fmt.Errorf("the pattern of matches comes to %d steps, with what it repeats, and %d are allowed", steps, MaxPattern)
	}
	return steps, weight, nil
}

// PatternSteps is the number of steps that a regular expression is compiled to, as far as MaxPattern counts them, and what it takes in memory, in such steps,
// which is more for classes with many ranges. It compiles nothing.
func PatternSteps(pattern string) (steps, weight int, err error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, 0, err //nolint:wrapcheck // it says what is wrong with the pattern
	}
	steps, weight = patternSize(parsed)
	return steps, weight, nil
}

// patternSize is the number of steps that an expression is compiled to, and its weight, or more than are allowed.
func patternSize(e *syntax.Regexp) (steps, weight int) {
	steps, weight = 1, 1
	if e.Op == syntax.OpLiteral {
		steps, weight = len(e.Rune), len(e.Rune)
	}
	if e.Op == syntax.OpCharClass {
		weight += len(e.Rune) / perRange
	}
	for _, part := range e.Sub {
		ofPart, weighs := patternSize(part)
		steps, weight = min(steps+ofPart, maxSize), min(weight+weighs, maxSize)
	}
	if e.Op == syntax.OpRepeat {
		times := max(e.Min, e.Max, 1)
		steps, weight = min(steps*times, maxSize), min(weight*times, maxSize)
	}
	return steps, weight
}

// maxSize is where counting ends, long before it could overflow.
const maxSize = 1_000_000

// patternStep is how many steps of a pattern are tried on some bytes of text in the time of one step of a budget.
const patternStep = 16

// stepsOfPattern is what a pattern, which was checked, costs for each textStep bytes of text.
func stepsOfPattern(pattern celast.Expr) int64 {
	text, _ := pattern.AsLiteral().(types.String)
	steps, _, err := PatternSteps(string(text))
	if err != nil {
		return MaxPattern
	}
	return int64(textStep * (1 + steps/patternStep) / 2)
}
