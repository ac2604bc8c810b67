package retry

import (
	"errors"
	"fmt"
)

// Rules choose by message: each is an expression over message alone that gives a bool, and the first that matches counts.
// They are immutable and safe for concurrent use.
type Rules struct {
	expressions []*expression
	schema      *schema
	decode      bodyDecoder
}

// CompileRules compiles expressions in the order in which they are asked. Field names the list that they stand in, for
// errors: "spec.retryPolicies". The error joins an *ExpressionError for each mistake.
func CompileRules(field string, whens []string) (*Rules, error) {
	c, err := NewCompiler()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return c.CompileRules(field, whens)
}

// CompileRules does what the function CompileRules does.
func (c *Compiler) CompileRules(field string, whens []string) (*Rules, error) {
	r := &Rules{expressions: make([]*expression, len(whens)), schema: c.messages.schema, decode: decodeJSON}
	var errs []error
	for i, when := range whens {
		var err error
		if r.expressions[i], err = c.compile(c.messages, origin{field: fmt.Sprintf("%s[%d].when", field, i)}, when, resultBool); err != nil {
			errs = append(errs, err)
		}
		if errors.Is(err, ErrTooMuch) {
			break // so would be said of each that follows
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// First gives the index of the first expression that matches the message, -1 where none does. The problems, each an
// *ExpressionError, are of those before it that failed at run time, which counts as no match. The body is decoded once at
// most, however many expressions read it.
func (r *Rules) First(m Message) (index int, problems []error) {
	if len(r.expressions) == 0 {
		return -1, nil
	}
	s := r.schema.scope(r.decode, m)
	defer s.release()
	for i, e := range r.expressions {
		matches, err := e.matches(s)
		if err != nil {
			problems = append(problems, err)
		}
		if matches {
			return i, problems
		}
	}
	return -1, problems
}
