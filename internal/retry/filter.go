package retry

import (
	"fmt"
	"time"
)

// Given is how a message was given up, as the filter of failed messages sees it in `failure`.
type Given struct {
	// Reason in one word, and Explanation in a sentence.
	Reason, Explanation string
	// Strategy that decided; empty where none did.
	Strategy string
	// Cause is the fingerprint of the failure: the same for messages that failed alike.
	Cause string
	// Source says who gave it up: a worker or the broker.
	Source string
	// At is when it was given up; zero where nothing tells.
	At time.Time
}

// age is for how long it has been given up; zero where nothing tells.
func (g Given) age(now time.Time) time.Duration {
	if g.At.IsZero() {
		return 0
	}
	return max(0, now.Sub(g.At))
}

// Filter is a compiled expression that chooses failed messages. It is immutable and safe for concurrent use.
type Filter struct {
	expression *expression
	schema     *schema
}

// CompileFilter compiles an expression over the variables of policies and `failure`. Field names the place that it stands in, for
// errors: "--where". The error joins an *ExpressionError for each mistake.
func CompileFilter(field, expr string) (*Filter, error) {
	env, err := forFilters()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	alone := &Compiler{seen: map[seenProgram]verdict{}, room: maxNodes}
	compiled, err := alone.compile(env, origin{field: field}, expr, resultBool)
	if err != nil {
		return nil, err
	}
	return &Filter{expression: compiled, schema: env.schema}, nil
}

// Matches says whether the expression chooses a failed message: last is its last failure, and h its history with that. The error, an
// *ExpressionError, says that it failed at run time, which counts as no match.
func (f *Filter) Matches(m Message, last Failure, h History, given Given, now time.Time) (bool, error) {
	s := f.schema.scope(decodeJSON, m)
	defer s.release()
	h.Attempts = max(0, h.Attempts-1) // what was decided about the last attempt counted it so
	var age time.Duration
	if !h.FirstFailure.IsZero() {
		age = max(0, now.Sub(h.FirstFailure))
	}
	s.setFailure(last, h, age, now)
	s.given = given
	return f.expression.matches(s)
}
