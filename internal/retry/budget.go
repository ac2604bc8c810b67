package retry

import (
	"time"

	"github.com/google/cel-go/interpreter"
)

// DecisionSteps bounds the work of all expressions on one decision about a message: a step is about one operation on one element
// of a list, or on 16 bytes of text. It allows for some 30 ms.
const DecisionSteps = 400_000

const (
	// textStep is how many bytes of text count as one step.
	textStep = 16
	// decisionTime bounds the time of these expressions. It is the last resort, for work that the steps count as too little, and long
	// enough for a process that gets little of its processor: there the same message must not be decided otherwise.
	decisionTime = 2 * time.Second
	// clockSteps is after how many steps the clock is read.
	clockSteps = 10_000
)

// Why a budget ends an evaluation.
const (
	errSteps = plainError("the expressions about this message need more than the steps that one decision has")
	errTime  = plainError("the expressions about this message need more than the time that one decision has")
)

// Budget is what one decision about a message may cost. All expressions that are asked share it: those that choose a policy, keys of rate
// limits and breakers, and those of strategies. The zero value is a whole one. It is not safe for concurrent use.
type Budget struct {
	steps int64
	took  time.Duration
	// ends is when the evaluation that runs has used up the time, and looked the number of steps at which the clock was read last.
	ends   time.Time
	looked int64
}

// left tells whether anything is left for an evaluation.
func (b *Budget) left() error {
	switch {
	case b.steps > DecisionSteps:
		return errSteps
	case b.took > decisionTime:
		return errTime
	default:
		return nil
	}
}

// begin starts the clock for one evaluation.
func (b *Budget) begin() (began time.Time) {
	began = time.Now()
	b.ends = began.Add(decisionTime - b.took)
	return began
}

func (b *Budget) end(began time.Time) { b.took += time.Since(began) }

// spend takes steps. It ends the evaluation, by the panic that CEL takes for that, where there are not as many: an error would be
// a value like others, which && and || may pass over.
func (b *Budget) spend(steps int64) {
	if b.steps += steps; b.steps > DecisionSteps {
		panic(interpreter.EvalCancelledError{Message: errSteps.Error(), Cause: interpreter.CostLimitExceeded})
	}
	if b.steps-b.looked < clockSteps {
		return
	}
	if b.looked = b.steps; time.Now().After(b.ends) {
		b.took = decisionTime + 1
		panic(interpreter.EvalCancelledError{Message: errTime.Error(), Cause: interpreter.CostLimitExceeded})
	}
}
