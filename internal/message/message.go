// Package message is the envelope: the neutral form of an AMQP message, the names of Redrive's headers, their codec, and
// what a message keeps and loses when it is published again. It knows no AMQP client.
package message

import (
	"fmt"
	"strconv"
	"time"
)

// Decimal is a number of AMQP's type of that name: Value divided by ten to the power of Scale. It stays one in a message that is
// published again; handlers and expressions get the nearest float64.
type Decimal struct {
	Scale uint8
	Value int32
}

// Float is the nearest float64. Written as briefly as it can be, that has the digits of the decimal, but for zeros at the end.
func (d Decimal) Float() float64 {
	f, _ := strconv.ParseFloat(fmt.Sprintf("%de-%d", d.Value, d.Scale), 64) // always a number, and never out of range
	return f
}

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
	// Unreadable is true when it has headers that cannot be read. They are not in it, so it must not be published again.
	Unreadable bool
	// Redelivered is true when a session ended without settling the message.
	Redelivered bool
}
