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
	"github.com/google/cel-go/interpreter"
)

// bodyDecoder turns a body into maps, lists, strings, json.Numbers, bools and nil.
type bodyDecoder func([]byte) (any, error)

// slot is the place of a value of a scope.
type slot int

const (
	slotID slot = iota
	slotType
	slotExchange
	slotRoutingKey
	slotQueue
	slotContentType
	slotCorrelationID
	slotReplyTo
	slotAppID
	slotUserID
	slotExpiration
	slotPriority
	slotSize
	slotTimestamp
	slotClass
	slotMessage
	slotSource
	slotStatus
	slotRetryAfter
	slotAttempt
	slotRetries
	slotAge
	slotNow
	slotReason
	slotExplanation
	slotStrategy
	slotCause
	slotGivenBy
	slotGivenAt
	slotGivenFor
	slots
)

// scope holds the values of the variables for one decision. It is not safe for concurrent use.
//
// Scopes are used again, and with them the values that they made for CEL: most messages of a worker have the same type
// and fail in the same way.
type scope struct {
	schema  *schema
	message Message
	failure Failure
	given   Given
	attempt int64
	retries int64
	age     time.Duration
	now     time.Time
	// short is true where every text that lightSizes knows is as short as it says.
	short bool

	// budget is the message's, or else own.
	budget *Budget
	own    Budget

	decode bodyDecoder
	// body is the message's, or else ownBody.
	body    *Decoded
	ownBody Decoded
	// hasTurn is true while an evaluation has a turn, and wantsBody where it ended because the body is to be decoded first.
	hasTurn, wantsBody bool

	values  [slots]ref.Val
	headers headers

	messageObject, errorObject, givenObject object
}

var _ cel.Activation = (*scope)(nil)

// scope gives a scope in which only message is set. The caller releases it when nothing of it is in use any more.
func (s *schema) scope(decode bodyDecoder, m Message) *scope {
	made, ok := s.scopes.Get().(*scope)
	if !ok {
		made = &scope{schema: s}
		made.messageObject = object{objectType: s.message, scope: made}
		made.errorObject = object{objectType: s.failure, scope: made}
		made.givenObject = object{objectType: s.given, scope: made}
		made.headers.schema = s
	}
	made.message, made.decode = m, decode
	if made.budget = m.Budget; made.budget == nil {
		made.own = Budget{}
		made.budget = &made.own
	}
	if made.body = m.Decoded; made.body == nil {
		made.body = &made.ownBody
	}
	made.headers.all = m.Headers
	made.short = max(len(m.ID), len(m.Type), len(m.Exchange), len(m.RoutingKey), len(m.Queue), len(m.ContentType),
		len(m.CorrelationID), len(m.ReplyTo), len(m.AppID), len(m.UserID)) <= maxShortText
	return made
}

// release gives the scope back. What belongs to the message alone is let go, its body above all.
func (s *scope) release() {
	s.ownBody.LetGo()
	s.ownBody = Decoded{}
	s.message, s.failure, s.given, s.budget, s.body = Message{}, Failure{}, Given{}, nil, nil
	s.headers.all = nil
	s.schema.scopes.Put(s)
}

// setFailure sets the other variables. h is the history before this failure.
func (s *scope) setFailure(f Failure, h History, age time.Duration, now time.Time) {
	s.failure = f
	s.attempt = increment(h.Attempts)
	s.retries = h.Retries
	s.age = age
	s.now = now
	s.short = s.short && max(len(f.Class), len(f.Message), len(f.Source)) <= maxFailureText
}

// ResolveName implements cel.Activation.
func (s *scope) ResolveName(name string) (any, bool) {
	switch name {
	case varMessage:
		return &s.messageObject, true
	case varError:
		return &s.errorObject, true
	case varAttempt:
		return s.number(slotAttempt, s.attempt), true
	case varRetries:
		return s.number(slotRetries, s.retries), true
	case varAge:
		return s.duration(slotAge, s.age), true
	case varNow:
		return s.time(slotNow, s.now), true
	case varFailure:
		return &s.givenObject, true
	case varBudget:
		return s.budget, true
	default:
		return nil, false
	}
}

// Parent implements cel.Activation.
func (s *scope) Parent() cel.Activation { return nil }

// text is a value for CEL; the last one of the slot, where that is equal.
func (s *scope) text(at slot, value string) ref.Val {
	if last, ok := s.values[at].(types.String); !ok || string(last) != value {
		s.values[at] = types.String(value)
	}
	return s.values[at]
}

func (s *scope) number(at slot, value int64) ref.Val {
	if last, ok := s.values[at].(types.Int); !ok || int64(last) != value {
		s.values[at] = types.Int(value)
	}
	return s.values[at]
}

func (s *scope) duration(at slot, value time.Duration) ref.Val {
	if last, ok := s.values[at].(types.Duration); !ok || last.Duration != value {
		s.values[at] = types.Duration{Duration: value}
	}
	return s.values[at]
}

func (s *scope) time(at slot, value time.Time) ref.Val {
	if last, ok := s.values[at].(types.Timestamp); !ok || last.Time != value {
		s.values[at] = types.Timestamp{Time: value}
	}
	return s.values[at]
}

// inTurn evaluates a program that counts what it costs, in its turn. Waiting for that takes none of the time of the decision.
func (s *scope) inTurn(run cel.Program) (ref.Val, error) {
	if err := s.budget.left(); err != nil {
		return nil, err
	}
	s.message.Turns.take(s.message.Queue)
	s.hasTurn = true
	began := time.Now()
	defer func() {
		s.hasTurn = false
		s.message.Turns.give(s.message.Queue, time.Since(began))
	}()
	steps, looked := s.budget.steps, s.budget.looked
	defer s.budget.end(s.budget.begin())
	value, _, err := run.Eval(s)
	if s.wantsBody {
		s.budget.steps, s.budget.looked = steps, looked // all of it is done again
	}
	return value, err //nolint:wrapcheck // the callers give it its place
}

// readBody decodes the body when it is read for the first time, as soon as there is memory for it.
//
// An evaluation that has a turn does not wait: whoever had the memory might wait for that turn, and the texts that were made so far would
// stay meanwhile. Nor does it decode what takes long while others wait for the turn. So it ends, gives up both, and is done anew when the body is there.
func (s *scope) readBody() (any, error) {
	b, m := s.body, &s.message
	if b.done {
		return b.value, b.err
	}
	weight := weightOf(m.Body)
	switch {
	case !s.hasTurn:
		b.err = m.Bodies.take(m.Queue, weight)
	case weight > quickBody || !m.Bodies.tryTake(weight):
		s.wantsBody = true
		panic(interpreter.EvalCancelledError{Message: "the body is decoded first", Cause: interpreter.ContextCancelled})
	}
	if b.done = true; b.err == nil {
		b.from, b.queue, b.weight = m.Bodies, m.Queue, weight
		b.value, b.err = s.decode(m.Body)
	}
	return b.value, b.err
}

// decodeJSON keeps numbers as they are written, so that large whole ones stay exact.
func decodeJSON(body []byte) (any, error) {
	if len(body) == 0 {
		return nil, plainError("message.body is empty")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, notJSON(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, plainError("message.body is not JSON: something follows the value")
	}
	if hasLongNumber(body) {
		value = readNumbers(value)
	}
	return value, nil
}

// quickNumber is how long a number may be that is read in no time. A longer one that stands between two doubles takes as much as thousands of them.
const quickNumber = 19

// hasLongNumber is false where a body has no number longer than quickNumber, as hardly any has: to look at each value of a large body takes a
// quarter of the time of its decoding. One byte in each quickNumber+1 of them is looked at, since a long number has one there.
func hasLongNumber(body []byte) bool {
	for at := quickNumber; at < len(body); at += quickNumber + 1 {
		if !isOfNumber(body[at]) {
			continue
		}
		from, to := at, at
		for from > at-quickNumber && isOfNumber(body[from-1]) {
			from--
		}
		for to+1 < len(body) && isOfNumber(body[to+1]) && to-from < quickNumber {
			to++
		}
		if to-from >= quickNumber {
			return true
		}
	}
	return false
}

// isOfNumber is true of what may stand in a number.
func isOfNumber(c byte) bool {
	return '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

// readNumbers reads the long numbers of a decoded body, so that expressions need not each time that they come to one.
func readNumbers(value any) any {
	switch v := value.(type) {
	case json.Number:
		if len(v) > quickNumber {
			return number(v)
		}
	case []any:
		for i, element := range v {
			v[i] = readNumbers(element)
		}
	case map[string]any:
		for key, element := range v {
			v[key] = readNumbers(element)
		}
	}
	return value
}

// notJSON says what is wrong with a body, without a character of it.
func notJSON(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return plainError(fmt.Sprintf("message.body is not JSON: byte %d of it cannot stand there", syntax.Offset))
	}
	return plainError("message.body is not JSON: it is cut short")
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
