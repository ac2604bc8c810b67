package retry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// bodyDecoder turns a body into maps, lists, strings, json.Numbers, bools and nil.
type bodyDecoder func([]byte) (any, error)

// scope holds the values of the variables for one decision. It is not safe for concurrent use.
type scope struct {
	schema  *schema
	message Message
	failure Failure
	attempt int64
	retries int64
	age     time.Duration
	now     time.Time

	decode  bodyDecoder
	decoded bool
	body    any
	bodyErr error

	messageObject, errorObject object
}

var _ cel.Activation = (*scope)(nil)

// newScope is a scope in which only message is set.
func newScope(schema *schema, decode bodyDecoder, m Message) *scope {
	s := &scope{schema: schema, message: m, decode: decode}
	s.messageObject = object{objectType: schema.message, scope: s}
	s.errorObject = object{objectType: schema.failure, scope: s}
	return s
}

// setFailure sets the other variables. h is the history before this failure.
func (s *scope) setFailure(f Failure, h History, age time.Duration, now time.Time) {
	s.failure = f
	s.attempt = increment(h.Attempts)
	s.retries = h.Retries
	s.age = age
	s.now = now
}

// ResolveName implements cel.Activation.
func (s *scope) ResolveName(name string) (any, bool) {
	switch name {
	case varMessage:
		return &s.messageObject, true
	case varError:
		return &s.errorObject, true
	case varAttempt:
		return types.Int(s.attempt), true
	case varRetries:
		return types.Int(s.retries), true
	case varAge:
		return types.Duration{Duration: s.age}, true
	case varNow:
		return types.Timestamp{Time: s.now}, true
	default:
		return nil, false
	}
}

// Parent implements cel.Activation.
func (s *scope) Parent() cel.Activation { return nil }

// readBody decodes the body when it is read for the first time.
func (s *scope) readBody() (any, error) {
	if !s.decoded {
		s.decoded = true
		s.body, s.bodyErr = s.decode(s.message.Body)
	}
	return s.body, s.bodyErr
}

// decodeJSON keeps numbers as they are written, so that large whole ones stay exact.
func decodeJSON(body []byte) (any, error) {
	if len(body) == 0 {
		return nil, errors.New("message.body is empty")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("message.body is not JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("message.body is not JSON: something follows the value")
	}
	return value, nil
}

// object is message or error as a value. CEL reads the fields of typed expressions directly; the methods serve those who
// put an object into a list or into dyn().
type object struct {
	*objectType
	scope *scope
}

// ConvertToNative implements ref.Val.
func (o *object) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s does not convert to %s", o.cel.TypeName(), t)
}

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return o.cel
	}
	return types.NewErr("%s does not convert to %s", o.cel.TypeName(), t.TypeName())
}

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val {
	return types.Bool(o == other)
}

// Type implements ref.Val.
func (o *object) Type() ref.Type { return o.cel }

// Value implements ref.Val.
func (o *object) Value() any { return o }

// Get implements traits.Indexer.
func (o *object) Get(index ref.Val) ref.Val {
	name, f, ok := o.field(index)
	if !ok {
		return types.NewErr("no such field: %s", name)
	}
	value, err := f.get(o.scope)
	if err != nil {
		return types.WrapErr(err)
	}
	return o.scope.schema.NativeToValue(value)
}

// IsSet implements traits.FieldTester.
func (o *object) IsSet(index ref.Val) ref.Val {
	name, f, ok := o.field(index)
	if !ok {
		return types.NewErr("no such field: %s", name)
	}
	return types.Bool(f.isSet(o.scope))
}

func (o *object) field(index ref.Val) (string, field, bool) {
	name, ok := index.(types.String)
	f, found := o.fields[string(name)]
	return string(name), f, ok && found
}
