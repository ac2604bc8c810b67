package retry

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Names of the variables and of the object types that expressions see.
const (
	varMessage = "message"
	varError   = "error"
	varAttempt = "attempt"
	varRetries = "retries"
	varAge     = "age"
	varNow     = "now"
	varFailure = "failure"

	typeMessage = "redrive.Message"
	typeError   = "redrive.Error"
	typeFailure = "redrive.Failure"
)

// stringsVersion is the version of the string functions. It is fixed so that the language does not change with a
// library.
const stringsVersion = 5

// environment compiles expressions.
type environment struct {
	cel    *cel.Env
	schema *schema
	// variables are the names of those that there are.
	variables []string
	functions map[string]function
	programs  *programs
}

// There are three environments for the whole process: an expression that stands in many policies, or that is compiled again at each look at a
// Transport, is compiled once.
var (
	//nolint:gochecknoglobals // made once, and the same for all
	forPolicies = sync.OnceValues(func() (*environment, error) { return newEnvironment(policyVariables()) })
	//nolint:gochecknoglobals // as above
	forMessages = sync.OnceValues(func() (*environment, error) { return newEnvironment(messageVariables()) })
	//nolint:gochecknoglobals // as above
	forFilters = sync.OnceValues(func() (*environment, error) { return newEnvironment(filterVariables()) })
)

// programs keep what was compiled, by its text: the latest of it, and all that is in use, so that a configuration that is read again has
// nothing compiled, however large it is. They are safe for concurrent use.
type programs struct {
	mu  sync.Mutex
	all map[knownProgram]weak.Pointer[program]
	// latest are those that are kept where nobody uses them, and size what they take.
	latest []*program
	size   int
}

// maxPrograms bounds roughly how many bytes of memory an environment keeps that nobody uses.
const maxPrograms = 8 << 20

// size is roughly what it takes.
func (p *program) size() int { return 4096 + len(p.text) + 100*p.patterns + bytesPerNode*p.nodes }

func (p *programs) find(known knownProgram) *program {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[known].Value()
}

// keep gives the program of this text that is kept, which is another one where somebody else has compiled it meanwhile.
func (p *programs) keep(known knownProgram, compiled *program) *program {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.all[known].Value(); before != nil {
		return before
	}
	p.all[known] = weak.Make(compiled)
	runtime.AddCleanup(compiled, p.forget, known)
	p.latest = append(p.latest, compiled)
	for p.size += compiled.size(); p.size > maxPrograms; {
		p.size -= p.latest[0].size()
		p.latest[0] = nil // the list goes on in the same memory
		p.latest = p.latest[1:]
	}
	return compiled
}

// forget a program that nobody uses, unless it was compiled anew.
func (p *programs) forget(known knownProgram) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[known].Value() == nil {
		delete(p.all, known)
	}
}

// knownProgram identifies a compiled expression.
type knownProgram struct {
	text string
	want result
}

// messageVariables are the variables of an expression that chooses messages.
func messageVariables() []cel.EnvOption {
	return []cel.EnvOption{cel.Variable(varMessage, cel.ObjectType(typeMessage))}
}

// policyVariables are the variables of a strategy's expressions.
func policyVariables() []cel.EnvOption {
	return append(messageVariables(),
		cel.Variable(varError, cel.ObjectType(typeError)),
		cel.Variable(varAttempt, cel.IntType),
		cel.Variable(varRetries, cel.IntType),
		cel.Variable(varAge, cel.DurationType),
		cel.Variable(varNow, cel.TimestampType),
	)
}

// filterVariables are those of an expression that chooses failed messages.
func filterVariables() []cel.EnvOption {
	return append(policyVariables(), cel.Variable(varFailure, cel.ObjectType(typeFailure)))
}

func newEnvironment(variables []cel.EnvOption) (*environment, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("make the registry of types for expressions: %w", err)
	}
	s := newSchema(registry)
	texts, err := boundTexts()
	if err != nil {
		return nil, err
	}
	env, err := cel.NewEnv(slices.Concat([]cel.EnvOption{
		cel.CustomTypeProvider(s),
		cel.CustomTypeAdapter(s),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), patternValidator{}, objectValidator{}),
	}, texts, variables)...)
	if err != nil {
		return nil, fmt.Errorf("make the environment of expressions: %w", err)
	}
	names := make([]string, 0, len(env.Variables()))
	for _, variable := range env.Variables() {
		if !strings.Contains(variable.Name(), ".") && variable.Type().Kind() != types.TypeKind {
			names = append(names, variable.Name())
		}
	}
	slices.Sort(names)
	return &environment{
		cel: env, schema: s, variables: names, functions: functionsOf(env),
		programs: &programs{all: map[knownProgram]weak.Pointer[program]{}},
	}, nil
}

// schema tells CEL the types of message, error and failure, and converts Go values for it.
type schema struct {
	*types.Registry
	message, failure, given *objectType
	scopes                  sync.Pool
}

// objectType is the type of an object with fixed fields.
type objectType struct {
	cel    *types.Type
	fields map[string]field
}

// field of an object.
type field struct {
	cel *types.Type
	// isSet is what has() says: true where there is a value that is not empty. Only a field that is optional cannot be
	// read where it is not set.
	isSet func(*scope) bool
	get   func(*scope) (any, error)
}

func newSchema(registry *types.Registry) *schema {
	return &schema{
		Registry: registry,
		message:  &objectType{cel: types.NewObjectType(typeMessage), fields: messageFields()},
		failure:  &objectType{cel: types.NewObjectType(typeError), fields: errorFields()},
		given:    &objectType{cel: types.NewObjectType(typeFailure), fields: failureFields()},
	}
}

func messageFields() map[string]field {
	return map[string]field{
		"id":            stringField(slotID, func(s *scope) string { return s.message.ID }),
		"type":          stringField(slotType, func(s *scope) string { return s.message.Type }),
		"exchange":      stringField(slotExchange, func(s *scope) string { return s.message.Exchange }),
		"routingKey":    stringField(slotRoutingKey, func(s *scope) string { return s.message.RoutingKey }),
		"queue":         stringField(slotQueue, func(s *scope) string { return s.message.Queue }),
		"contentType":   stringField(slotContentType, func(s *scope) string { return s.message.ContentType }),
		"correlationId": stringField(slotCorrelationID, func(s *scope) string { return s.message.CorrelationID }),
		"replyTo":       stringField(slotReplyTo, func(s *scope) string { return s.message.ReplyTo }),
		"appId":         stringField(slotAppID, func(s *scope) string { return s.message.AppID }),
		"userId":        stringField(slotUserID, func(s *scope) string { return s.message.UserID }),
		"expiration": {
			cel:   types.DurationType,
			isSet: func(s *scope) bool { return s.message.Expiration != 0 },
			get:   func(s *scope) (any, error) { return s.duration(slotExpiration, s.message.Expiration), nil },
		},
		"priority": intField(slotPriority, func(s *scope) int { return s.message.Priority }),
		"size":     intField(slotSize, func(s *scope) int { return len(s.message.Body) }),
		"headers": {
			cel:   types.NewMapType(types.StringType, types.DynType),
			isSet: func(s *scope) bool { return len(s.message.Headers) > 0 },
			get:   func(s *scope) (any, error) { return &s.headers, nil },
		},
		"timestamp": {
			cel:   types.TimestampType,
			isSet: func(s *scope) bool { return !s.message.Timestamp.IsZero() },
			get:   func(s *scope) (any, error) { return s.time(slotTimestamp, s.message.Timestamp), nil },
		},
		"body": {
			cel:   types.DynType,
			isSet: func(s *scope) bool { return len(s.message.Body) > 0 },
			get:   func(s *scope) (any, error) { return s.readBody() },
		},
	}
}

func errorFields() map[string]field {
	return map[string]field{
		"class":   stringField(slotClass, func(s *scope) string { return s.failure.Class }),
		"message": stringField(slotMessage, func(s *scope) string { return s.failure.Message }),
		"source":  stringField(slotSource, func(s *scope) string { return string(s.failure.Source) }),
		"status":  intField(slotStatus, func(s *scope) int { return s.failure.Status }),
		"retryAfter": {
			cel:   types.DurationType,
			isSet: func(s *scope) bool { return s.failure.RetryAfter != nil },
			get: func(s *scope) (any, error) {
				if s.failure.RetryAfter == nil {
					return nil, errAbsent
				}
				return s.duration(slotRetryAfter, *s.failure.RetryAfter), nil
			},
		},
	}
}

func failureFields() map[string]field {
	return map[string]field{
		"reason":      stringField(slotReason, func(s *scope) string { return s.given.Reason }),
		"explanation": stringField(slotExplanation, func(s *scope) string { return s.given.Explanation }),
		"strategy":    stringField(slotStrategy, func(s *scope) string { return s.given.Strategy }),
		"cause":       stringField(slotCause, func(s *scope) string { return s.given.Cause }),
		"source":      stringField(slotGivenBy, func(s *scope) string { return s.given.Source }),
		"at": {
			cel:   types.TimestampType,
			isSet: func(s *scope) bool { return !s.given.At.IsZero() },
			get:   func(s *scope) (any, error) { return s.time(slotGivenAt, s.given.At), nil },
		},
		"age": {
			cel:   types.DurationType,
			isSet: func(s *scope) bool { return !s.given.At.IsZero() },
			get:   func(s *scope) (any, error) { return s.duration(slotGivenFor, s.given.age(s.now)), nil },
		},
	}
}

func stringField(at slot, get func(*scope) string) field {
	return field{
		cel:   types.StringType,
		isSet: func(s *scope) bool { return get(s) != "" },
		get:   func(s *scope) (any, error) { return s.text(at, get(s)), nil },
	}
}

func intField(at slot, get func(*scope) int) field {
	return field{
		cel:   types.IntType,
		isSet: func(s *scope) bool { return get(s) != 0 },
		get:   func(s *scope) (any, error) { return s.number(at, int64(get(s))), nil },
	}
}

func (s *schema) object(name string) (*objectType, bool) {
	switch name {
	case typeMessage:
		return s.message, true
	case typeError:
		return s.failure, true
	case typeFailure:
		return s.given, true
	default:
		return nil, false
	}
}

// FindStructType implements types.Provider. It knows none of protobuf's messages, which the registry brings along.
func (s *schema) FindStructType(name string) (*types.Type, bool) {
	found, ok := s.object(name)
	if !ok {
		return nil, false
	}
	return types.NewTypeTypeWithParam(found.cel), true
}

// FindStructFieldNames implements types.Provider.
func (s *schema) FindStructFieldNames(name string) ([]string, bool) {
	found, ok := s.object(name)
	if !ok {
		return nil, false
	}
	return slices.Sorted(maps.Keys(found.fields)), true
}

// FindStructFieldType implements types.Provider.
func (s *schema) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	found, ok := s.object(name)
	if !ok {
		return nil, false
	}
	f, ok := found.fields[fieldName]
	if !ok {
		return nil, false
	}
	return &types.FieldType{
		Type: f.cel,
		IsSet: func(target any) bool {
			o, ok := target.(*object)
			return ok && f.isSet(o.scope)
		},
		GetFrom: func(target any) (any, error) {
			o, ok := target.(*object)
			if !ok {
				return nil, fmt.Errorf("no such field: %s", fieldName)
			}
			return f.get(o.scope)
		},
	}, true
}

// NativeToValue implements types.Adapter. It knows the numbers of decoded JSON, and passes itself on to the values of
// maps and lists, which are converted only when they are read.
func (s *schema) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case ref.Val:
		return v
	case json.Number:
		return number(v)
	case uint8: // An expression cannot add cel's uint to an int.
		return types.Int(v)
	case uint16:
		return types.Int(v)
	case uint32:
		return types.Int(v)
	case map[string]any:
		return types.NewStringInterfaceMap(s, v)
	case []any:
		return types.NewDynamicList(s, v)
	default:
		return s.Registry.NativeToValue(value)
	}
}

// longestNumber is more than any number needs. Each read of one parses it again, which would take a second for a megabyte of digits.
const longestNumber = 1024

// number is an int where it is written as one and fits, else a double.
func number(n json.Number) ref.Val {
	if len(n) > longestNumber {
		return types.NewErr("number out of range")
	}
	if i, err := n.Int64(); err == nil {
		return types.Int(i)
	}
	f, err := n.Float64()
	if err != nil {
		return types.NewErr("number out of range: %s", n)
	}
	return types.Double(f)
}
