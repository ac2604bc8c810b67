package retry

import (
	"encoding/json"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// CEL's own counter of costs searches, for each step through a list, all that it has counted before: 20,000 elements took it 3 s. So what
// an expression costs is counted here, where alone that depends on the message: once for each element that a loop comes to, and for
// the length of what a function reads.

// varBudget is the name by which a counting node finds its budget. No expression can have it.
const varBudget = "@budget"

// tariff says what is counted at the nodes of an expression, by their ids.
type tariff struct {
	// loops are the ranges of comprehensions, each with the steps that one turn takes.
	loops map[int64]int64
	// texts are the nodes whose text is read, with the steps for textStep bytes of it, and deep how much of what is no text.
	texts map[int64]int64
	deep  map[int64]depth
	// elements are the nodes whose lists take steps for each element: those that put lists together, but for those that add to what a comprehension
	// collects, and what is written into a text. collected are the names of what comprehensions collect.
	elements  map[int64]int64
	collected map[string]bool
	// keys are the nodes by which a map or a list is asked.
	keys map[int64]bool
	// flat are the nodes that take the same steps for whatever value: those that make a map or a list, or ask for a part of a moment in a
	// time zone.
	flat map[int64]int64
}

// depth is what is read of a value beside a text.
type depth int

const (
	nothing depth = iota
	lists
	everything
)

// reading says how functions read their arguments. What is missing here takes the same time for all messages.
//
//nolint:gochecknoglobals // a table
var reading = map[string]struct {
	deep     depth
	shortest bool
}{
	// These read no further than the shorter of both.
	operators.Equals: {deep: everything, shortest: true}, operators.NotEquals: {deep: everything, shortest: true},
	operators.Less: {shortest: true}, operators.LessEquals: {shortest: true},
	operators.Greater: {shortest: true}, operators.GreaterEquals: {shortest: true},
	overloads.StartsWith: {shortest: true}, overloads.EndsWith: {shortest: true},

	operators.In: {deep: lists}, operators.Add: {}, overloads.Size: {}, overloads.Contains: {}, overloads.Matches: {},
	overloads.TypeConvertString: {}, overloads.TypeConvertBytes: {}, overloads.TypeConvertInt: {}, overloads.TypeConvertUint: {},
	overloads.TypeConvertDouble: {}, overloads.TypeConvertBool: {}, overloads.TypeConvertDuration: {}, overloads.TypeConvertTimestamp: {},
	"charAt": {}, "indexOf": {}, "lastIndexOf": {}, "lowerAscii": {}, "upperAscii": {}, "reverse": {}, "substring": {}, "trim": {},
	functionReplace: {}, functionSplit: {}, functionQuote: {}, functionJoin: {deep: lists}, functionFormat: {deep: everything},
}

// growing are the functions that give more than they read.
//
//nolint:gochecknoglobals // a table
var growing = map[string]bool{functionReplace: true, functionSplit: true, functionQuote: true, functionJoin: true, functionFormat: true}

// formatSteps is what it takes to write one value into a text: a number with 99 digits takes some µs. A list that is put together takes a step for each
// element instead: CEL builds it when it is read for the first time, and goes through all that it is made of for each element of it.
const formatSteps = 20

// doubleSteps is what textStep bytes of a text cost of which a double is made: one that stands between two doubles is read digit by digit.
const doubleSteps = 8

// zoneSteps is what it takes to find a time zone: CEL reads it from files each time, in some 20 µs, and one that does not exist in 60.
const zoneSteps = 500

// What it takes to make a map or a list, and each of their entries. It is for their memory rather than for their time: so all that an
// evaluation makes takes bytesOfStep for each step at most.
const (
	mapSteps   = 25
	entrySteps = 4
	listSteps  = 8
)

// bytesOfStep is how much memory an evaluation may hold for each step that it took: for texts it is what a step is counted for, and
// CEL's maps of one entry take 400 bytes.
const bytesOfStep = 20

// DecisionBytes is what all that the expressions on one decision make may take in memory, beside the message and its decoded body.
const DecisionBytes = bytesOfStep * DecisionSteps

// inZone are the functions that may be given a time zone, each with its overload that is.
//
//nolint:gochecknoglobals // a table
var inZone = map[string]string{
	overloads.TimeGetFullYear: overloads.TimestampToYearWithTz, overloads.TimeGetMonth: overloads.TimestampToMonthWithTz,
	overloads.TimeGetDayOfYear: overloads.TimestampToDayOfYearWithTz, overloads.TimeGetDayOfMonth: overloads.TimestampToDayOfMonthZeroBasedWithTz,
	overloads.TimeGetDate: overloads.TimestampToDayOfMonthOneBasedWithTz, overloads.TimeGetDayOfWeek: overloads.TimestampToDayOfWeekWithTz,
	overloads.TimeGetHours: overloads.TimestampToHoursWithTz, overloads.TimeGetMinutes: overloads.TimestampToMinutesWithTz,
	overloads.TimeGetSeconds: overloads.TimestampToSecondsWithTz, overloads.TimeGetMilliseconds: overloads.TimestampToMillisecondsWithTz,
}

// tariffOf looks at an expression.
func tariffOf(ast *celast.AST) tariff {
	c := tariff{
		loops: map[int64]int64{}, texts: map[int64]int64{}, deep: map[int64]depth{}, elements: map[int64]int64{}, collected: map[string]bool{},
		flat: map[int64]int64{}, keys: map[int64]bool{},
	}
	celast.PreOrderVisit(ast.Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.ComprehensionKind:
			loop := e.AsComprehension()
			c.collected[loop.AccuVar()] = true
			c.loops[loop.IterRange().ID()] = 1 + nodes(loop.LoopCondition()) + nodes(loop.LoopStep())
		case celast.CallKind:
			c.call(e)
		case celast.MapKind, celast.ListKind:
			c.made(e)
		default: // a step of its own
		}
	}))
	return c
}

// made says what is counted of a map or a list that is made each time: not of one that is constant.
func (c tariff) made(e celast.Expr) {
	if isConstant(e) {
		return
	}
	if e.Kind() == celast.ListKind {
		if _, known := c.flat[e.ID()]; !known {
			c.flat[e.ID()] = listSteps + int64(e.AsList().Size())
		}
		return
	}
	c.flat[e.ID()] = mapSteps + entrySteps*int64(e.AsMap().Size())
	for _, entry := range e.AsMap().Entries() {
		key := entry.AsMapEntry().Key().ID() // a long one is hashed
		c.texts[key] = max(c.texts[key], 1)
	}
}

// call says what is counted of one call.
func (c tariff) call(e celast.Expr) {
	call := e.AsCall()
	if inZone[call.FunctionName()] != "" && len(call.Args()) == 1 {
		zone := call.Args()[0].ID()
		c.flat[e.ID()] = zoneSteps
		c.texts[zone] = max(c.texts[zone], 1)
		return
	}
	if call.FunctionName() == operators.Index {
		key := call.Args()[1].ID() // a long one is hashed
		c.keys[key] = true
		c.texts[key] = max(c.texts[key], 1)
		return
	}
	how, ok := reading[call.FunctionName()]
	if !ok {
		return
	}
	arguments := call.Args()
	if call.IsMemberFunction() {
		arguments = append([]celast.Expr{call.Target()}, arguments...)
	}
	if how.shortest && (isShort(arguments[0]) || isShort(arguments[len(arguments)-1])) {
		return
	}
	for _, argument := range arguments {
		c.texts[argument.ID()] = max(c.texts[argument.ID()], 1)
		c.deep[argument.ID()] = max(c.deep[argument.ID()], how.deep)
	}
	switch {
	case call.FunctionName() == overloads.TypeConvertDouble:
		c.texts[arguments[0].ID()] = doubleSteps
	case call.FunctionName() == overloads.Matches:
		c.texts[arguments[0].ID()] = stepsOfPattern(arguments[1])
	case call.FunctionName() == operators.Add && arguments[0].Kind() == celast.IdentKind && c.collected[arguments[0].AsIdent()]:
		c.flat[arguments[1].ID()] = 0 // a list of one element, whose memory is free as soon as the element is collected
	case call.FunctionName() == operators.Add:
		c.elements[e.ID()] = 1
	case growing[call.FunctionName()]:
		if call.FunctionName() == functionFormat {
			c.elements[arguments[1].ID()] = formatSteps
		}
		c.texts[e.ID()] = max(c.texts[e.ID()], 1)
		c.deep[e.ID()] = max(c.deep[e.ID()], lists)
	}
}

// isShort is true for what is written in the expression.
func isShort(e celast.Expr) bool { return e.Kind() == celast.LiteralKind }

// isConstant is true for what is made of nothing else than that: CEL makes it once.
func isConstant(e celast.Expr) bool {
	constant := true
	celast.PreOrderVisit(e, celast.NewExprVisitor(func(part celast.Expr) {
		kind := part.Kind()
		constant = constant && (kind == celast.LiteralKind || kind == celast.ListKind || kind == celast.MapKind)
	}))
	return constant
}

// nodes is how many operations there are in a part of an expression.
func nodes(e celast.Expr) (n int64) {
	celast.PreOrderVisit(e, celast.NewExprVisitor(func(celast.Expr) { n++ }))
	return n
}

// decorate makes the nodes count.
func (c tariff) decorate(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	turn, loop := c.loops[node.ID()]
	steps, text := c.texts[node.ID()]
	elements, flat := c.elements[node.ID()], c.flat[node.ID()]
	if _, constant := node.(interpreter.InterpretableConst); constant && !loop || !loop && !text && elements == 0 && flat == 0 {
		return node, nil
	}
	value := countedValue{turn: turn, steps: steps, flat: flat, elements: elements, deep: c.deep[node.ID()]}
	// What may be selected from has to stay an attribute. A key that is one is not asked for by its node.
	if attribute, ok := node.(interpreter.InterpretableAttribute); ok && !c.keys[node.ID()] {
		return &countedAttribute{InterpretableAttribute: attribute, countedValue: value}, nil
	}
	return &countedNode{InterpretableV2: node, countedValue: value}, nil
}

// countedValue is what a node counts of its value.
type countedValue struct {
	turn, steps, flat, elements int64
	deep                        depth
}

type countedNode struct {
	interpreter.InterpretableV2
	countedValue
}

// Exec implements interpreter.InterpretableV2.
func (n *countedNode) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return n.count(frame, n.InterpretableV2.Exec(frame))
}

// Eval implements interpreter.Interpretable.
func (n *countedNode) Eval(vars cel.Activation) ref.Val { return n.Exec(interpreter.AsFrame(vars)) }

type countedAttribute struct {
	interpreter.InterpretableAttribute
	countedValue
}

// Exec implements interpreter.InterpretableV2.
func (n *countedAttribute) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return n.count(frame, n.InterpretableAttribute.Exec(frame))
}

// Eval implements interpreter.Interpretable.
func (n *countedAttribute) Eval(vars cel.Activation) ref.Val {
	return n.Exec(interpreter.AsFrame(vars))
}

// count takes what the value costs from the budget, or makes it count as it is gone through.
func (c *countedValue) count(frame *interpreter.ExecutionFrame, value ref.Val) ref.Val {
	found, _ := frame.ResolveName(varBudget)
	budget, ok := found.(*Budget)
	if !ok {
		return types.NewErr("an expression is evaluated without a budget") // it would be a defect of ours
	}
	if c.flat > 0 {
		budget.spend(c.flat)
	}
	if list, ok := value.(traits.Lister); ok && c.elements > 0 {
		budget.spend(c.elements * sizeOf(list))
	}
	if c.steps > 0 {
		c.read(budget, value)
	}
	if c.turn == 0 {
		return value
	}
	switch value := value.(type) {
	case traits.Lister:
		return &countedList{Lister: value, budget: budget, turn: c.turn}
	case traits.Mapper:
		budget.spend(sizeOf(value)) // its keys are sorted out before the first turn
		return &countedMap{Mapper: value, budget: budget, turn: c.turn}
	default:
		return value
	}
}

// read counts a text, and of other values as much as is read of them.
func (c *countedValue) read(budget *Budget, value ref.Val) {
	switch value := value.(type) {
	case types.String:
		budget.spend(max(1, c.steps) + int64(len(value))*c.steps/textStep) // a pattern is tried on an empty one, too
	case types.Bytes:
		budget.spend(1 + int64(len(value))*c.steps/textStep)
	case traits.Lister:
		if c.deep >= lists {
			weigh(budget, value)
		}
	case traits.Mapper:
		if c.deep == everything {
			weigh(budget, value)
		}
	}
}

// weigh counts everything that is in a value.
func weigh(budget *Budget, value any) {
	switch value := value.(type) {
	case string:
		budget.spend(1 + int64(len(value))/textStep)
	case []byte:
		budget.spend(1 + int64(len(value))/textStep)
	case types.String:
		weigh(budget, string(value))
	case json.Number:
		weigh(budget, string(value))
	case []any:
		budget.spend(1)
		for _, element := range value {
			weigh(budget, element)
		}
	case map[string]any:
		budget.spend(1)
		for key, element := range value {
			weigh(budget, key)
			weigh(budget, element)
		}
	case traits.Lister:
		if native, ok := value.Value().([]any); ok {
			weigh(budget, native)
			return
		}
		budget.spend(1)
		for it := value.Iterator(); it.HasNext() == types.True; {
			weigh(budget, it.Next())
		}
	case traits.Mapper:
		if native, ok := value.Value().(map[string]any); ok {
			weigh(budget, native)
			return
		}
		budget.spend(1)
		for it := value.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			weigh(budget, key)
			weigh(budget, value.Get(key))
		}
	default:
		budget.spend(1)
	}
}

func sizeOf(value traits.Sizer) int64 {
	size, _ := value.Size().(types.Int)
	return int64(size)
}

// countedList is a list that counts each element that a comprehension comes to.
type countedList struct {
	traits.Lister
	budget *Budget
	turn   int64
}

// Iterator implements traits.Iterable.
func (l *countedList) Iterator() traits.Iterator {
	return &countedIterator{Iterator: l.Lister.Iterator(), budget: l.budget, turn: l.turn}
}

// countedMap is a map that does the same for its keys.
type countedMap struct {
	traits.Mapper
	budget *Budget
	turn   int64
}

// Iterator implements traits.Iterable.
func (m *countedMap) Iterator() traits.Iterator {
	return &countedIterator{Iterator: m.Mapper.Iterator(), budget: m.budget, turn: m.turn}
}

type countedIterator struct {
	traits.Iterator
	budget *Budget
	turn   int64
}

// Next implements traits.Iterator.
func (i *countedIterator) Next() ref.Val {
	i.budget.spend(i.turn)
	return i.Iterator.Next()
}
