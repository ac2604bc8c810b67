package retry

import (
	"errors"
	"strings"

	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// plainError is an error of ours, without any value of a message.
type plainError string

// Error implements error.
func (e plainError) Error() string { return string(e) }

// kinds are how the errors of CEL's run time begin. What follows may repeat a value of the message, which is for no log: its place
// says more than the text anyway.
//
//nolint:gochecknoglobals // a table
var kinds = []string{
	"no such key", "no such field", "no such attribute", "no such overload", "index out of range", "index out of bounds", "unsupported index",
	"division by zero", "modulus by zero", "integer overflow", "unsigned integer overflow", "duration overflow", "timestamp overflow",
	"NaN values cannot be ordered", "number out of range", "text too long", "error parsing regexp", "type conversion error",
	"unsupported conversion", "unsupported type", "unsupported key type", "unknown type", "invalid substring range", "negative precision",
	"unrecognized formatting clause", "could not parse formatting clause", "error during formatting", "error while parsing precision",
	"join: invalid input", "range error", "operation interrupted",
}

// kindOf is what is said of an error of CEL's run time: its kind, and no value.
func kindOf(err error) error {
	if plain, ok := errors.AsType[plainError](err); ok {
		return plain
	}
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && cancelled.Cause == interpreter.CostLimitExceeded {
		return plainError(cancelled.Message)
	}
	for _, kind := range kinds {
		if strings.HasPrefix(err.Error(), kind) {
			return plainError(kind)
		}
	}
	return plainError("it fails on a value of this message")
}

// gave says of which type a result is.
func gave(wanted string, t ref.Type) error {
	return plainError("must give " + wanted + ", but gave " + t.TypeName())
}
