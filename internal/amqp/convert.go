package amqp

import (
	"maps"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

// fromDelivery takes the headers out of the library's table: it keeps the last delivery of each channel until the next one, and 120 KB of headers may take a
// megabyte of memory.
func fromDelivery(d *amqp091.Delivery) message.Message {
	headers := d.Headers
	if len(headers) > 0 {
		headers = maps.Clone(headers)
		clear(d.Headers)
	}
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
		Headers:         headersOf(headers),
		Body:            d.Body,
		Exchange:        d.Exchange,
		RoutingKey:      d.RoutingKey,
		Redelivered:     d.Redelivered,
	}
}

// Message is a delivery as the neutral form of a message; its headers are no longer in the delivery. See also Connection.
func Message(d *amqp091.Delivery) message.Message { return fromDelivery(d) }

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
		Headers:         ownTable(m.Headers),
		Body:            m.Body,
	}
}

// headersOf gives a table as a plain map: the library's types for tables and decimals are replaced in place, at every depth.
func headersOf(t amqp091.Table) map[string]any {
	for key, value := range t {
		switch v := value.(type) {
		case amqp091.Table:
			t[key] = headersOf(v)
		case []any:
			plainList(v)
		case amqp091.Decimal:
			t[key] = message.Decimal(v)
		}
	}
	return t
}

func plainList(list []any) {
	for i, value := range list {
		switch v := value.(type) {
		case amqp091.Table:
			list[i] = headersOf(v)
		case []any:
			plainList(v)
		case amqp091.Decimal:
			list[i] = message.Decimal(v)
		}
	}
}

// ownTable undoes what headersOf does, in a map that nobody else uses: only what it holds in depth is copied.
func ownTable(m map[string]any) amqp091.Table {
	if m == nil {
		return amqp091.Table{}
	}
	for key, value := range m {
		switch value.(type) {
		case map[string]any, []any, message.Decimal:
			m[key] = field(value)
		}
	}
	return m
}

// table and field do the same in a copy.
func table(m map[string]any) amqp091.Table {
	t := make(amqp091.Table, len(m))
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
	case message.Decimal:
		return amqp091.Decimal(v)
	default:
		return value
	}
}
