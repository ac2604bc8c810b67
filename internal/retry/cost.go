package retry

import (
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
	// lightCost is far below what would be much, because the estimate leaves out some steps through values of any type.
	lightCost = 10_000
)

// isLight is true for an expression that costs little on every message with short texts. The estimate takes the functions that give
// more than they read for cheap.
func (e *environment) isLight(ast *cel.Ast) bool {
	for name := range growing {
		if len(celast.MatchDescendants(celast.NavigateAST(ast.NativeRep()), celast.FunctionMatcher(name))) > 0 {
			return false
		}
	}
	estimate, err := e.cel.EstimateCost(ast, lightSizes{})
	return err == nil && estimate.Max <= lightCost
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
// something else of it, or that look for a time zone: they would be as cheap as a sum.
func (lightSizes) EstimateCallCost(function, overload string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	if overload == inZone[function] && len(args) == 1 {
		return readOf(args[0], zoneSteps)
	}
	switch overload {
	case overloads.StringToInt, overloads.StringToUint, overloads.StringToDouble, overloads.StringToBool, overloads.StringToDuration,
		overloads.StringToTimestamp, overloads.SizeString, overloads.SizeStringInst:
	default:
		return nil
	}
	if target != nil {
		return readOf(*target, 1)
	}
	return readOf(args[0], 1)
}

// readOf is the cost of a call that goes through a text, and takes some steps beside.
func readOf(text checker.AstNode, steps uint64) *checker.CallEstimate {
	size := checker.UnknownSizeEstimate()
	if known := text.ComputedSize(); known != nil {
		size = *known
	}
	return &checker.CallEstimate{CostEstimate: size.MultiplyByCostFactor(common.StringTraversalCostFactor).Add(checker.FixedCostEstimate(steps))}
}
