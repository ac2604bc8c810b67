// Package deadletter reads the messages of a failure queue: why each was given up, which of them failed alike, what a filter chooses of
// them, and what of them is to be masked. It knows no AMQP client.
package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// Who gave a message up.
const (
	SourceWorker = "Worker"
	SourceBroker = "Broker"
)

// Reasons of the broker beside those of its header x-death, which are expired, rejected, maxlen and delivery_limit.
const reasonUnroutable = "unroutable"

// reasonUnreadable is that of a message of which nobody can tell: its headers are nested too deeply, or are too many or too long.
const reasonUnreadable = "unreadable"

// Letter is a message of the failure queue.
type Letter struct {
	// Key identifies the message for people: 12 hexadecimal digits, which are the same each time that it is read.
	Key string
	// Message as policies and handlers see it, with the work queue that it failed in.
	Message retry.Message
	// Given says how it was given up.
	Given retry.Given
	// Last is the last failed attempt; its Source is empty where there was none.
	Last retry.Failure
	// History counts its attempts, and Attempts tells of those that are kept.
	History  retry.History
	Attempts []message.Attempt
	// Exit says how the last process ended that the message brought down; mostly empty.
	Exit string
	// Trace is the W3C trace ID of its last attempt, or else of its producer; empty where there is none.
	Trace string
	// Properties is the message as it is in the failure queue.
	Properties message.Message

	state    message.State
	identity Identity
	// unique is true where a worker gave this failure an ID.
	unique bool
}

// Identity is what copies of one failed message share.
type Identity [sha256.Size]byte

// Identity is that of the failed message. unique is false where others may have the same one and be no copies: RabbitMQ marks none of those that
// it moves itself, and a producer may have published two that are alike.
func (l *Letter) Identity() (is Identity, unique bool) { return l.identity, l.unique }

// Reader reads the failure queue of one Transport.
type Reader struct {
	Names compile.Names
	// Exchange is that of its producers; empty for the default exchange.
	Exchange string
	// Now is the time of the reading.
	Now time.Time
}

// Read takes whatever somebody may have put into the queue. It never fails. A staged message, also one that came home because its staging queue
// was gone, is read as it was before that.
func (r Reader) Read(m message.Message) Letter {
	m, _, _ = message.Unstaged(m)
	original := m
	queue, final, byWorker := message.DecodeFailed(m, r.Now)
	role := ""
	if _, died := lastDeath(m.Headers); died { // a worker's copy has no x-death: its reason is from before the message was sent back
		byWorker = false
	}
	if !byWorker {
		queue, role, final = r.byBroker(&m)
	}
	state := message.Decode(m, r.Exchange, r.Now)
	letter := Letter{
		Message:    message.View(m, state, queue),
		History:    state.History,
		Attempts:   state.Failures(),
		Last:       final.Failure,
		Exit:       final.Exit,
		Trace:      traceOf(state, m.Headers),
		Properties: original,
		state:      state,
		Given: retry.Given{
			Reason: string(final.Reason), Explanation: final.Explanation, Strategy: final.Strategy, Source: SourceWorker, At: final.At,
		},
	}
	if !byWorker {
		letter.Given.Source = SourceBroker
	}
	letter.Given.Cause = causeOf(letter.Given, letter.Last, role)
	letter.unique = byWorker && final.ID != ""
	letter.identity = identityOf(letter.Message, final)
	letter.Key = hex.EncodeToString(letter.identity[:])[:12]
	return letter
}

// byBroker says why the broker put a message there, and gives it the exchange and the key by which it came into its work queue.
func (r Reader) byBroker(m *message.Message) (queue, role string, final message.Final) {
	died, has := lastDeath(m.Headers)
	switch {
	case m.Unreadable:
		queue, role, final.Reason = m.RoutingKey, "unreadable", reasonUnreadable
		final.Explanation = "its headers cannot be read, which a worker rejects: they are nested more than 32 deep, more than 8,192, or longer than a frame"
	case !has:
		queue, role, final.Reason = m.RoutingKey, "none", reasonUnroutable
		final.Explanation = "no queue took it"
	case strings.HasPrefix(died.queue, r.Names.LanePrefix()):
		queue, role, final.Reason = died.key, "lane", reasonUnroutable
		final.Explanation = "its queue was gone when it came back from its lane"
	default:
		queue, role, final.Reason = strings.TrimSuffix(died.queue, compile.QuarantineSuffix), "work", retry.Reason(died.reason)
		if queue != died.queue {
			role = "quarantine"
		}
		final.Explanation = explained(died.reason)
	}
	final.At = died.at
	if has && role != "lane" {
		m.Exchange, m.RoutingKey = died.exchange, died.key
	}
	if m.Exchange == r.Names.Return() || m.Exchange == r.Names.Failed() {
		m.Exchange = r.Exchange // it was retried, or taken back by a replay, and says it where it was another one
	}
	return queue, role, final
}

func explained(reason string) string {
	switch reason {
	case "expired":
		return "it expired in its queue"
	case "rejected":
		return "a consumer rejected it, or a worker could not publish it again"
	case "maxlen":
		return "its queue was full"
	case "delivery_limit":
		return "it came back to its queue more often than the delivery limit allows"
	default:
		return "RabbitMQ dead-lettered it"
	}
}

// death is one entry of the broker's header x-death.
type death struct {
	queue, reason, exchange, key string
	at                           time.Time
}

// lastDeath is the latest entry, which the broker puts first.
func lastDeath(headers map[string]any) (death, bool) {
	all, _ := headers["x-death"].([]any)
	if len(all) == 0 {
		return death{}, false
	}
	entry, ok := all[0].(map[string]any)
	if !ok {
		return death{}, false
	}
	text := func(name string) string {
		value, _ := entry[name].(string)
		return value
	}
	died := death{queue: text("queue"), reason: message.Text(text("reason"), 50), exchange: text("exchange")}
	if keys, _ := entry["routing-keys"].([]any); len(keys) > 0 {
		died.key, _ = keys[0].(string)
	}
	died.at, _ = entry["time"].(time.Time)
	return died, died.queue != ""
}

// traceOf is the trace ID of a traceparent: what stands between its first two hyphens.
func traceOf(state message.State, headers map[string]any) string {
	parent := state.Traceparent
	if parent == "" {
		parent, _ = message.TraceContext(headers)
	}
	if parts := strings.Split(parent, "-"); len(parts) > 1 {
		return parts[1]
	}
	return ""
}

// identityOf does not change while the message stays in the queue, or is staged.
func identityOf(m retry.Message, final message.Final) (is Identity) {
	hash := sha256.New()
	for _, part := range []string{m.ID, strconv.FormatInt(final.At.UnixMilli(), 10), m.Queue, final.ID} {
		_, _ = hash.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
	}
	_, _ = hash.Write(m.Body)
	hash.Sum(is[:0])
	return is
}
