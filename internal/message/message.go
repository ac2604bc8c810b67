// Package message is the envelope: the neutral form of an AMQP message, the names of Redrive's headers, their codec, and
// what a message keeps and loses when it is published again. It knows no AMQP client.
package message

import "time"

// Message is an AMQP 0-9-1 message with its properties, as delivered or as to be published.
type Message struct {
	ContentType     string
	ContentEncoding string
	// DeliveryMode is 2 for persistent messages.
	DeliveryMode  uint8
	Priority      uint8
	CorrelationID string
	ReplyTo       string
	// Expiration is the per-message TTL in milliseconds, as a decimal string.
	Expiration string
	MessageID  string
	Timestamp  time.Time
	Type       string
	UserID     string
	AppID      string
	Headers    map[string]any
	Body       []byte

	// Exchange and RoutingKey with which the message was published, or is to be.
	Exchange   string
	RoutingKey string
	// Redelivered is true when a session ended without settling the message.
	Redelivered bool
}
