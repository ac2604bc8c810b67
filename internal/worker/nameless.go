package worker

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"redrive.dev/redrive/internal/amqp"
)

// nameless is what a message of a strictly ordered queue is known by that came without an id. There a retry is no new message, so
// nothing can be written on it: the id that was drawn for its first delivery is only in the worker's memory. The id is not made
// from the content, for two equal messages are two pieces of work.
type nameless struct {
	// content is a digest of the message, and deliveries is how often it had come back. Zero is like no message.
	content    [sha256.Size]byte
	deliveries int64
}

func namelessOf(d *amqp.Delivery) nameless {
	n := nameless{deliveries: d.DeliveryCount()}
	headers := make(map[string]any, len(d.Headers))
	for name, value := range d.Headers {
		if !strings.HasPrefix(name, "x-") { // these are the broker's, and change from one delivery to the next
			headers[name] = value
		}
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%q %q %q %q %q %q %q %q %q %q %d %d %#v\n", d.Queue, d.Exchange, d.RoutingKey, d.Type, d.ContentType, d.ContentEncoding,
		d.CorrelationID, d.ReplyTo, d.AppID, d.UserID, d.Priority, d.Timestamp.UnixNano(), headers) // a hash has no errors
	_, _ = sum.Write(d.Body)
	sum.Sum(n.content[:0])
	return n
}

// follows is true for a later delivery of the same message. It was equal, and not settled when it came last: so it is the first
// of its queue until it comes again, with its count raised.
func (n nameless) follows(last nameless) bool {
	return n.content == last.content && n.deliveries > last.deliveries
}

// mayFollow is true for a message that came back, and is the same or an equal one: a classic queue does not count. It has the past of
// the other, so that it is not retried for ever, but not its id: whoever handles each id once would leave out the work of one of two.
func (n nameless) mayFollow(last nameless) bool {
	return n.content == last.content && n.deliveries >= last.deliveries
}
