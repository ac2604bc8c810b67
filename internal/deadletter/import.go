package deadletter

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"redrive.dev/redrive/internal/message"
)

// ErrMasked says that a line has masks in place of values.
var ErrMasked = errors.New("it was exported with --redacted: its values are masked")

// Import reads a line of an export: the message as it was in the failure queue, with headers of the same types, and the work queue in which it failed. It fails
// with ErrMasked, and where the line is none of an export.
func Import(line []byte) (m message.Message, queue string, err error) {
	var found imported
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&found); err != nil {
		return m, "", fmt.Errorf("it is no line of an export: %w", withoutText(err))
	}
	switch {
	case found.Redacted:
		return m, "", ErrMasked
	case found.Reason == reasonUnreadable:
		return m, "", errors.New("its headers could not be read, and are not in the export: copied, it would lose them")
	case found.Key == "" || found.Properties == nil:
		return m, "", errors.New("it is no line of an export: it has no key, or no properties")
	}
	p := found.Properties
	m = message.Message{
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationID: p.CorrelationID,
		ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageID: p.MessageID, Type: p.Type, UserID: p.UserID, AppID: p.AppID,
		Exchange: p.Exchange, RoutingKey: p.RoutingKey,
	}
	switch {
	case p.Timestamp != nil:
		m.Timestamp = *p.Timestamp
	case p.TimestampSeconds != 0:
		m.Timestamp = time.Unix(p.TimestampSeconds, 0)
	}
	if m.Headers, err = untypedTable(found.Headers); err != nil {
		return m, "", fmt.Errorf("headers: %w", err)
	}
	// The line may have been edited, and the message that it is of may still be there: a replay would take one for a copy of the other.
	delete(m.Headers, message.HeaderFailureID)
	if m.Body, err = found.body(); err != nil {
		return m, "", err
	}
	return m, found.Queue, nil
}

// imported is what Import reads of a line.
type imported struct {
	Key        string           `json:"key"`
	Queue      string           `json:"queue"`
	Reason     string           `json:"reason"`
	Properties *properties      `json:"properties"`
	Headers    map[string]typed `json:"headers"`
	Body       *string          `json:"body"`
	BodyBase64 *string          `json:"bodyBase64"`
	Redacted   bool             `json:"redacted"`
}

func (i *imported) body() ([]byte, error) {
	switch {
	case i.Body != nil && i.BodyBase64 != nil:
		return nil, errors.New("it has body and bodyBase64")
	case i.BodyBase64 != nil:
		body, err := base64.StdEncoding.DecodeString(*i.BodyBase64)
		if err != nil {
			return nil, errors.New("bodyBase64 is no base64")
		}
		return body, nil
	case i.Body != nil:
		return []byte(*i.Body), nil
	}
	return nil, nil
}

// withoutText leaves out what an error of JSON cites: it may be of a body.
func withoutText(err error) error {
	if shape, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return fmt.Errorf("%s is of another type", shape.Field)
	}
	if syntax, is := errors.AsType[*json.SyntaxError](err); is {
		return fmt.Errorf("it is no JSON after %d bytes", syntax.Offset)
	}
	return errors.New("it is no JSON")
}

func untypedTable(table map[string]typed) (map[string]any, error) {
	values := make(map[string]any, len(table))
	for name, value := range table {
		untyped, err := untypedOf(value)
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", name, err)
		}
		values[name] = untyped
	}
	return values, nil
}

var errValue = errors.New("it is no value with the letter of its type, such as {\"l\": 4}")

// untypedOf undoes typedOf.
func untypedOf(value typed) (any, error) {
	if len(value) != 1 {
		return nil, errValue
	}
	for letter, v := range value {
		switch letter {
		case "V":
			return nil, nil //nolint:nilnil // AMQP has it
		case "t":
			return as[bool](v)
		case "b", "B", "s", "u", "I", "i", "l", "T":
			return integer(letter, v)
		case "f", "d":
			return floating(letter, v)
		case "S":
			return as[string](v)
		case "S64", "x":
			return binary(letter, v)
		case "D":
			return decimal(v)
		case "A":
			return list(v)
		case "F":
			return nested(v)
		}
	}
	return nil, errValue
}

func as[T any](v any) (any, error) {
	value, is := v.(T)
	if !is {
		return nil, errValue
	}
	return value, nil
}

// integer reads a number as the type of a letter; T counts seconds since 1970.
func integer(letter string, v any) (any, error) {
	text, is := v.(json.Number)
	if !is {
		return nil, errValue
	}
	switch letter {
	case "b":
		return signed[int8](text)
	case "s":
		return signed[int16](text)
	case "I":
		return signed[int32](text)
	case "B":
		return unsigned[uint8](text)
	case "u":
		return unsigned[uint16](text)
	case "i":
		return unsigned[uint32](text)
	case "T":
		seconds, err := text.Int64()
		if err != nil {
			return nil, errValue
		}
		return time.Unix(seconds, 0), nil
	default:
		return signed[int64](text)
	}
}

func signed[T int8 | int16 | int32 | int64](text json.Number) (any, error) {
	n, err := text.Int64()
	if err != nil || int64(T(n)) != n {
		return nil, errValue
	}
	return T(n), nil
}

func unsigned[T uint8 | uint16 | uint32](text json.Number) (any, error) {
	n, err := text.Int64()
	if err != nil || int64(T(n)) != n {
		return nil, errValue
	}
	return T(n), nil
}

func floating(letter string, v any) (any, error) {
	text, is := v.(string)
	if !is {
		return nil, errValue
	}
	if letter == "f" {
		n, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return nil, errValue
		}
		return float32(n), nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, errValue
	}
	return n, nil
}

func binary(letter string, v any) (any, error) {
	text, is := v.(string)
	bytes, err := base64.StdEncoding.DecodeString(text)
	switch {
	case !is || err != nil:
		return nil, errValue
	case letter == "x":
		return bytes, nil
	}
	return string(bytes), nil
}

func decimal(v any) (any, error) {
	fields, _ := v.(map[string]any)
	scale, isScale := fields["scale"].(json.Number)
	value, isValue := fields["value"].(json.Number)
	if !isScale || !isValue {
		return nil, errValue
	}
	s, err := scale.Int64()
	n, err2 := value.Int64()
	if errors.Join(err, err2) != nil || s < 0 || s > math.MaxUint8 || n < math.MinInt32 || n > math.MaxInt32 {
		return nil, errValue
	}
	return message.Decimal{Scale: uint8(s), Value: int32(n)}, nil
}

func list(v any) (any, error) {
	items, is := v.([]any)
	if !is {
		return nil, errValue
	}
	values := make([]any, len(items))
	for i, item := range items {
		fields, is := item.(map[string]any)
		if !is {
			return nil, errValue
		}
		value, err := untypedOf(fields)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	return values, nil
}

func nested(v any) (any, error) {
	fields, is := v.(map[string]any)
	if !is {
		return nil, errValue
	}
	table := make(map[string]typed, len(fields))
	for name, field := range fields {
		value, is := field.(map[string]any)
		if !is {
			return nil, errValue
		}
		table[name] = value
	}
	return untypedTable(table)
}
