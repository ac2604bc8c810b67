package retry

import (
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/overloads"
)

// Counting what an evaluation costs takes longer than most evaluations. So an expression that cannot cost much, whatever the
// message, runs without. The worst case is CEL's own estimate for texts of these sizes, in bytes; a scope says whether
// those of its message are as short. Nothing is known of the sizes of headers and of the body.
const (
	// maxShortText bounds the texts of a message; it is AMQP's own bound, but for a type that stands in a header.
	maxShortText = 255
	// maxFailureText bounds those of a failure.
	maxFailureText = 1024
	// lightCost is far below what would be much: the estimate leaves out some steps through values of any type, and each of hundreds of
	// expressions about a message may come to it.
	lightCost = 2_000
)

// costOf is what an expression costs at most on a message with short texts, in steps. It is light where that is little. The estimate takes the
// functions that give more than they read for cheap.
func (e *environment) costOf(ast *cel.Ast) (cost int64, light bool) {
	for name := range growing {
		if len(celast.MatchDescendants(celast.NavigateAST(ast.NativeRep()), celast.FunctionMatcher(name))) > 0 {
			return 0, false
		}
	}
	if len(celast.MatchDescendants(celast.NavigateAST(ast.NativeRep()), hasOpenKey)) > 0 {
		return 0, false
	}
	estimate, err := e.cel.EstimateCost(ast, lightSizes{})
	if err != nil || estimate.Max > lightCost {
		return 0, false
	}
	return 1 + int64(estimate.Max), true
}

// hasOpenKey is true for a map that is made with a key that is not written in the expression.
func hasOpenKey(e celast.NavigableExpr) bool {
	return e.Kind() == celast.MapKind && slices.ContainsFunc(e.AsMap().Entries(), func(entry celast.EntryExpr) bool { return !isShort(entry.AsMapEntry().Key()) })
}

// lightSizes tells CEL's estimate how long the texts are.
type lightSizes struct{}

// EstimateSize implements checker.CostEstimator. It knows the fields of message and error that are texts.
func (lightSizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	path := node.Path()
	if len(path) != 2 || !node.Type().IsExactType(cel.StringType) {
		return nil
	}
	switch path[0] {
	case varMessage:
		return &checker.SizeEstimate{Max: maxShortText}
	case varError:
		return &checker.SizeEstimate{Max: maxFailureText}
	default:
		return nil
	}
}

// EstimateCallCost implements checker.CostEstimator. CEL knows the cost of its functions, but for those that go through a text to make
// something else of it, or that look for a time zone: they would be as cheap as a sum. And it takes a pattern by its length, not by what it repeats.
func (lightSizes) EstimateCallCost(function, overload string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	if overload == inZone[function] && len(args) == 1 {
		return readOf(args[0], zoneSteps)
	}
	switch overload {
	case overloads.IndexMap:
		return readOf(args[len(args)-1], 1) // the key is hashed
	case overloads.StringToDouble:
		return matchOf(args[0], doubleSteps)
	case overloads.InMap:
		return readOf(args[0], 1)
	case overloads.Matches, overloads.MatchesString:
		text := append([]checker.AstNode{}, args...)
		if target != nil {
			text = append([]checker.AstNode{*target}, args...)
		}
		return matchOf(text[0], stepsOfPattern(text[1].Expr()))
	case overloads.StringToInt, overloads.StringToUint, overloads.StringToBool, overloads.StringToDuration,
		overloads.StringToTimestamp, overloads.SizeString, overloads.SizeStringInst:
	default:
		return nil
	}
	if target != nil {
		return readOf(*target, 1)
	}
	return readOf(args[0], 1)
}

// matchOf is the cost of a pattern that takes so many steps for each textStep bytes of a text.
func matchOf(text checker.AstNode, steps int64) *checker.CallEstimate {
	size := checker.UnknownSizeEstimate()
	if known := text.ComputedSize(); known != nil {
		size = *known
	}
	return &checker.CallEstimate{CostEstimate: size.Add(checker.FixedSizeEstimate(textStep)).MultiplyByCostFactor(float64(steps) / textStep)}
}

// readOf is the cost of a call that goes through a text, and takes some steps beside.
func readOf(text checker.AstNode, steps uint64) *checker.CallEstimate {
	size := checker.UnknownSizeEstimate()
	if known := text.ComputedSize(); known != nil {
		size = *known
	}
	return &checker.CallEstimate{CostEstimate: size.MultiplyByCostFactor(common.StringTraversalCostFactor).Add(checker.FixedCostEstimate(steps))}
}
