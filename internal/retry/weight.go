package retry

import (
	"maps"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
)

// weigher tells what an expression takes to compile, before it is checked: the nodes that it has when macros are written out, and what CEL's
// checker does beyond that. A node takes some 10 µs, and bytesPerNode when it is compiled.
//
// The checker keeps a table of all types that are open, such as those of elements of an empty list, and copies it for each overload that it tries
// and for each element of a list, so that this grows with the square. And it writes out the type of each value for each use, which
// grows with the cube where lists stand in each other.
type weigher struct {
	// functions that the environment knows.
	functions map[string]function
	// heights are how deep the types are that the variables of macros may have.
	heights map[string]int
	// open are the types in the table, and tries how often it is copied. deep is what types in each other come to, in nodes.
	nodes, open, tries, deep int
}

// function is what the checker tries for a call.
type function struct{ overloads, open int }

const (
	// bytesPerNode is what a node takes at most in a compiled expression; many take half as much.
	bytesPerNode = 450
	// copiesPerNode is how many types are copied in the time that a node takes.
	copiesPerNode = 100
	// perHeight is where the cube of a type's depth is as much as its depth.
	perHeight = 32
)

func functionsOf(env *cel.Env) map[string]function {
	all := map[string]function{}
	for name, declared := range env.Functions() {
		var f function
		for _, overload := range declared.OverloadDecls() {
			f.overloads++
			f.open = max(f.open, len(overload.TypeParams()))
		}
		all[name] = f
	}
	return all
}

// weigh counts the nodes of an expression that is parsed, and tells as how many it weighs because of what the checker does with them.
func (e *environment) weigh(parsed *cel.Ast) (nodes, weight int) {
	w := weigher{functions: e.functions, heights: map[string]int{}}
	w.visit(parsed.NativeRep().Expr())
	return w.nodes, w.nodes + w.deep + w.tries*w.open/copiesPerNode
}

// visit counts a node and all below it, and gives how deep its type may be.
func (w *weigher) visit(e celast.Expr) (height int) {
	w.nodes++
	switch e.Kind() {
	case celast.IdentKind:
		height = w.heights[e.AsIdent()]
	case celast.SelectKind:
		height = w.visit(e.AsSelect().Operand())
	case celast.CallKind:
		height = w.call(e.AsCall())
	case celast.ListKind:
		for _, element := range e.AsList().Elements() {
			height = max(height, w.visit(element))
		}
		w.made(e.AsList().Size(), 1)
		height++
	case celast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			height = max(height, w.visit(entry.AsMapEntry().Key()), w.visit(entry.AsMapEntry().Value()))
		}
		w.made(e.AsMap().Size(), 2)
		height++
	case celast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			w.visit(field.AsStructField().Value())
		}
	case celast.ComprehensionKind:
		height = w.comprehension(e.AsComprehension())
	default: // a constant
	}
	w.deep += height + height*height*height/(perHeight*perHeight)
	return height
}

// made counts a list or map: types of each element are compared, and those of one that is empty are open.
func (w *weigher) made(size, types int) {
	w.tries += types * size
	if size == 0 {
		w.open += types
	}
}

func (w *weigher) call(call celast.CallExpr) (height int) {
	if call.IsMemberFunction() {
		height = w.visit(call.Target())
	}
	for _, argument := range call.Args() {
		height = max(height, w.visit(argument))
	}
	f := w.functions[call.FunctionName()]
	w.tries += f.overloads
	w.open += f.open
	return height
}

// comprehension is what a macro becomes. Its variable is an element of what it goes through, or a key.
func (w *weigher) comprehension(c celast.ComprehensionExpr) int {
	elements := w.visit(c.IterRange())
	made := w.visit(c.AccuInit())
	before := map[string]int{}
	for name, height := range map[string]int{c.IterVar(): elements, c.IterVar2(): elements, c.AccuVar(): made} {
		before[name] = w.heights[name]
		w.heights[name] = height
	}
	w.visit(c.LoopCondition())
	made = max(made, w.visit(c.LoopStep()))
	w.heights[c.AccuVar()] = made
	made = w.visit(c.Result())
	maps.Copy(w.heights, before)
	return made
}
