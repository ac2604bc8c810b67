package deadletter

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"redrive.dev/redrive/internal/message"
)

// exported is a line of an export: what a list shows of the message, and all that its copy needs.
type exported struct {
	Entry

	Properties properties       `json:"properties"`
	Headers    map[string]typed `json:"headers,omitempty"`
	// Body is text where that is UTF-8, else BodyBase64 has it.
	Body       *string `json:"body,omitempty"`
	BodyBase64 *string `json:"bodyBase64,omitempty"`
	// Redacted is true where values are masked.
	Redacted bool `json:"redacted,omitempty"`
}

// properties are those of AMQP, as they are in the failure queue.
type properties struct {
	ContentType     string     `json:"contentType,omitempty"`
	ContentEncoding string     `json:"contentEncoding,omitempty"`
	DeliveryMode    uint8      `json:"deliveryMode,omitempty"`
	Priority        uint8      `json:"priority,omitempty"`
	CorrelationID   string     `json:"correlationId,omitempty"`
	ReplyTo         string     `json:"replyTo,omitempty"`
	Expiration      string     `json:"expiration,omitempty"`
	MessageID       string     `json:"messageId,omitempty"`
	Timestamp       *time.Time `json:"timestamp,omitempty"`
	// TimestampSeconds are those since 1970 where the timestamp is beyond the dates of JSON.
	TimestampSeconds int64  `json:"timestampSeconds,omitempty"`
	Type             string `json:"type,omitempty"`
	UserID           string `json:"userId,omitempty"`
	AppID            string `json:"appId,omitempty"`
	// Exchange and RoutingKey are those by which it came into the failure queue.
	Exchange   string `json:"exchange,omitempty"`
	RoutingKey string `json:"routingKey,omitempty"`
}

// typed is the value of a header with the letter of its type in AMQP 0-9-1, since {"I": 3} and {"l": 3} are two values.
type typed map[string]any

// Export is the message in a line of JSON. With a redactor, values are masked, and a body without fields is left out.
func (l *Letter) Export(redactor *Redactor) ([]byte, error) {
	m, headers, body := &l.Properties, l.Properties.Headers, l.Properties.Body
	line := exported{
		Entry: l.Entry(), Redacted: redactor != nil,
		Properties: properties{
			ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, DeliveryMode: m.DeliveryMode, Priority: m.Priority,
			CorrelationID: m.CorrelationID, ReplyTo: m.ReplyTo, Expiration: m.Expiration, MessageID: m.MessageID, Timestamp: timeOf(m.Timestamp),
			Type: m.Type, UserID: m.UserID, AppID: m.AppID, Exchange: m.Exchange, RoutingKey: m.RoutingKey,
		},
	}
	if line.Properties.Timestamp == nil && !m.Timestamp.IsZero() {
		line.Properties.TimestampSeconds = m.Timestamp.Unix()
	}
	if redactor != nil {
		headers = redactor.Headers(headers)
		body, _ = redactor.Body(m.ContentType, body)
	}
	line.Headers = make(map[string]typed, len(headers))
	for name, value := range headers {
		line.Headers[name] = typedOf(value)
	}
	switch {
	case body == nil:
	case utf8.Valid(body):
		text := string(body)
		line.Body = &text
	default:
		text := base64.StdEncoding.EncodeToString(body)
		line.BodyBase64 = &text
	}
	text, err := json.Marshal(line)
	if err != nil {
		return nil, fmt.Errorf("write message %s as JSON: %w", l.Key, err)
	}
	return text, nil
}

// typedOf names the types that RabbitMQ knows by the letters of its client libraries.
func typedOf(value any) typed {
	switch v := value.(type) {
	case nil:
		return typed{"V": nil}
	case bool:
		return typed{"t": v}
	case int8:
		return typed{"b": v}
	case uint8:
		return typed{"B": v}
	case int16:
		return typed{"s": v}
	case uint16:
		return typed{"u": v}
	case int32:
		return typed{"I": v}
	case uint32:
		return typed{"i": v}
	case int:
		return typed{"l": v}
	case int64:
		return typed{"l": v}
	case float32:
		return typed{"f": fmt.Sprint(v)} // JSON has no NaN
	case float64:
		return typed{"d": fmt.Sprint(v)}
	case message.Decimal:
		return typed{"D": map[string]any{"scale": v.Scale, "value": v.Value}}
	case string:
		if !utf8.ValidString(v) {
			return typed{"S64": base64.StdEncoding.EncodeToString([]byte(v))}
		}
		return typed{"S": v}
	case []byte:
		return typed{"x": base64.StdEncoding.EncodeToString(v)}
	case time.Time:
		return typed{"T": v.Unix()}
	case []any:
		list := make([]typed, len(v))
		for i, item := range v {
			list[i] = typedOf(item)
		}
		return typed{"A": list}
	case map[string]any:
		table := make(map[string]typed, len(v))
		for name, item := range v {
			table[name] = typedOf(item)
		}
		return typed{"F": table}
	default:
		return typed{"V": nil}
	}
}
