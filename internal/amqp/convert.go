package amqp

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

func fromDelivery(d *amqp091.Delivery) message.Message {
	return message.Message{
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    d.DeliveryMode,
		Priority:        d.Priority,
		CorrelationID:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		Expiration:      d.Expiration,
		MessageID:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		UserID:          d.UserId,
		AppID:           d.AppId,
		Headers:         headersOf(d.Headers),
		Body:            d.Body,
		Exchange:        d.Exchange,
		RoutingKey:      d.RoutingKey,
		Redelivered:     d.Redelivered,
	}
}

func toPublishing(m *message.Message) amqp091.Publishing {
	return amqp091.Publishing{
		ContentType:     m.ContentType,
		ContentEncoding: m.ContentEncoding,
		DeliveryMode:    m.DeliveryMode,
		Priority:        m.Priority,
		CorrelationId:   m.CorrelationID,
		ReplyTo:         m.ReplyTo,
		Expiration:      m.Expiration,
		MessageId:       m.MessageID,
		Timestamp:       m.Timestamp,
		Type:            m.Type,
		UserId:          m.UserID,
		AppId:           m.AppID,
		Headers:         table(m.Headers),
		Body:            m.Body,
	}
}

// headersOf returns a table as a plain map. Most have no other tables in them, and need no copy.
func headersOf(t amqp091.Table) map[string]any {
	for _, value := range t {
		switch value.(type) {
		case amqp091.Table, []any:
			return plainMap(t)
		}
	}
	return t
}

// plainMap and plain replace the library's table type by plain maps, at every depth.
func plainMap(t amqp091.Table) map[string]any {
	m := make(map[string]any, len(t))
	for key, value := range t {
		m[key] = plain(value)
	}
	return m
}

func plain(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		return plainMap(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	default:
		return value
	}
}

// table and field undo what plainMap and plain do.
func table(m map[string]any) amqp091.Table {
	t := make(amqp091.Table, len(m)+1)
	for key, value := range m {
		t[key] = field(value)
	}
	return t
}

func field(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return table(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = field(v[i])
		}
		return list
	default:
		return value
	}
}
