package message

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"redrive.dev/redrive/internal/retry"
)

const (
	// MaxCount bounds every count that is read from a header, so that adding to it never overflows.
	MaxCount = 1_000_000_000
	// horizon is how far ahead a time, or how long a span, may be before it is taken for garbage.
	horizon = 10 * 366 * 24 * time.Hour
	// clockSkew between two workers is not garbage.
	clockSkew = time.Minute
	// maxShort is the longest short string of AMQP in bytes: queue, exchange and routing key names, message ids.
	maxShort = 255
	// maxStrategy is the longest name of a strategy in bytes: that of an included one is its policy's, a slash and its own.
	maxStrategy = 253 + 1 + 63
	// MaxCarry is the longest text that a handler may ask to have back with the next attempt, in bytes.
	MaxCarry = 4 << 10
)

// State is what the headers of a message say about its earlier attempts.
type State struct {
	// ID is the property message-id, or else the header redrive-id. Empty where there is neither: the caller then sets
	// it (NewID) before it handles the message, and it is written on republish.
	ID string
	// History that the retry policy decides on. Its LastDelay is the header redrive-delay.
	History retry.History
	// NotBefore is the time before which the message is not handled; zero where it is due.
	NotBefore time.Time
	// Deadline is the time after which the message is not handled, by its header or its expiration; zero where there is none.
	Deadline time.Time
	// Crashes is the number of processes that the message has brought down on its own.
	Crashes int64
	// Carry is what the handler's last failure asked to have back, at most MaxCarry; empty where there is nothing.
	Carry string
	// Priority that the producer gave the message. A retry may be published with another one.
	Priority uint8
	// Exchange and RoutingKey with which the message was first published.
	Exchange   string
	RoutingKey string
	// Expiration and UserID are the properties that the producer gave the message; empty where there were none. Who writes headers
	// can make up both.
	Expiration string
	UserID     string
	// Original are the headers of an earlier delivery that no copy carries under their names; nil where the message has not been
	// published again, or had none.
	Original map[string]any
	// parked says that the message has been in a lane, so that the records of dead-lettering which it has are of that.
	parked bool
	// lane that the message comes out of; 0 where it comes from elsewhere, or that is not to be told.
	lane time.Duration
	// Traceparent is the span of the last attempt; empty where there was none, or it was not traced.
	Traceparent string
	// Replay is the place of the message in a replay, zero where it is in none. It counts where a replay or a worker published the message.
	Replay Replay
	// lives is the header of its former lives as it came.
	lives string
	// FrameSize is the most that a frame has on the connection that the message is published on, in bytes; 0 where that is not known.
	// It is no part of the message.
	FrameSize int
	// usual is the exchange that messages of the queue are mostly published to.
	usual string
	// past is the header of the failed attempts as it came: few messages fail again, and need it read. Where it is empty,
	// failures are the first and the last of them, oldest first. Record adds to them.
	past     string
	failures []Attempt
	// Garbage names the headers that could not be used as they were, for logs and metrics.
	Garbage []string
}

// Failures are the first and the last failed attempts, oldest first.
func (s State) Failures() []Attempt {
	if s.past == "" {
		return s.failures
	}
	failures, err := decodeFailures(s.past)
	if err != nil {
		return nil // JSON, but no history: nobody's attempts
	}
	return failures
}

// NewID returns a random identity for a message that has none.
func NewID(random retry.Rand) string {
	const digits = "0123456789abcdef"
	var id [32]byte
	for i := range id {
		id[i] = digits[random.Int64N(int64(len(digits)))]
	}
	return string(id[:])
}

// Decode reads the state from the headers of a message. It takes whatever a client may have put there: a value that
// makes no sense counts as absent or is clamped, and its header is named in Garbage. It never fails.
//
// An expiration counts from the time at which the message was received, where no timestamp tells an earlier one: it has been in its queue
// already, so that what is left of its time is no more. Only what comes from its producer has that property, and what a strictly ordered
// queue gives back: no copy carries it.
//
// usual is the exchange that producers publish to, empty for the default exchange. A message that was published there does not say so
// while it waits in a lane.
func Decode(m Message, usual string, received time.Time) State {
	r := reader{headers: m.Headers, now: received}
	s := State{
		ID: m.MessageID,
		History: retry.History{
			Attempts:     r.count(HeaderAttempts),
			Retries:      r.count(HeaderRetries),
			Strategy:     r.text(HeaderStrategy, maxStrategy),
			Streak:       r.count(HeaderStreak),
			FirstFailure: r.past(HeaderFirstFailure),
			LastDelay:    r.span(HeaderDelay),
		},
		NotBefore:  r.time(HeaderNotBefore),
		Deadline:   r.time(HeaderDeadline),
		Crashes:    r.count(HeaderCrashes),
		Carry:      r.text(HeaderCarry, MaxCarry),
		Priority:   r.priority(m.Priority),
		Exchange:   r.exchange(m.Exchange, usual),
		RoutingKey: r.textOr(HeaderRoutingKey, m.RoutingKey),
		usual:      usual,
		past:       r.history(),

		Expiration:  r.property(HeaderExpiration, m.Expiration),
		UserID:      r.property(HeaderUserID, m.UserID),
		Original:    r.original(),
		Traceparent: r.traceparent(),
	}
	if _, replayed := m.Headers[HeaderReplay]; replayed { // nearly none is
		s.Replay, s.lives = r.replay(), r.lives()
	}
	_, s.parked = m.Headers[HeaderLane]
	s.lane = laneOf(m.Headers[HeaderLane])
	if s.ID == "" {
		s.ID = r.text(HeaderID, maxShort)
	}
	if s.History.Retries > s.History.Attempts { // every retry was an attempt, so attempts got lost
		s.History.Attempts = s.History.Retries
		r.reject(HeaderAttempts)
	}
	if _, said := r.headers[HeaderAttempts]; !said && s.past != "" {
		s = r.onlyFailure(s)
	}
	if s.Carry != "" && s.History.Attempts == 0 && s.History.FirstFailure.IsZero() {
		s.Carry = "" // no attempt has asked for it: it is a producer's
		r.reject(HeaderCarry)
	}
	if expiration, _ := spanOf(m.Expiration); expiration > 0 { // 0 is for the broker: now, or not at all
		s.Deadline = deadline(m, s, received)
	}
	s.Garbage = r.garbage
	return s
}

// reader takes typed values out of headers and remembers those that it could not use.
type reader struct {
	headers map[string]any
	now     time.Time
	garbage []string
}

func (r *reader) reject(name string) {
	if !slices.Contains(r.garbage, name) {
		r.garbage = append(r.garbage, name)
	}
}

// number returns the integer in a header. Other types are garbage, also when they look like one: nothing of ours writes
// them, and a guess could turn a retry into a storm.
func (r *reader) number(name string) (int64, bool) {
	value, there := r.headers[name]
	if !there || value == nil {
		return 0, false
	}
	number, ok := Integer(value)
	if !ok {
		r.reject(name)
	}
	return number, ok
}

// onlyFailure derives from the history what omitDerived has left out: that of a message which waits after its only failure.
func (r *reader) onlyFailure(s State) State {
	only := s.Failures()
	if len(only) != 1 || only[0].At.UnixMilli() <= 0 || only[0].Delay <= 0 {
		return s // somebody else's
	}
	at := only[0].At
	if at.After(r.now.Add(clockSkew)) {
		r.reject(HeaderHistory)
		at = r.now
	}
	s.past, s.failures = "", only
	s.NotBefore = at.Add(only[0].Delay)
	s.History.Attempts, s.History.Retries, s.History.LastDelay = 1, 1, only[0].Delay
	s.History.FirstFailure = r.notFarAhead(only[0].At)
	return s
}

// exchange is the one that the message was first published to. Where no header says it, that is the message's own, or else the usual
// one: a message that has been in a lane comes from an exchange of ours.
func (r *reader) exchange(own, usual string) string {
	if _, parked := r.headers[HeaderLane]; parked {
		own = usual
	}
	return r.textOr(HeaderExchange, own)
}

// count returns a number in [0, MaxCount], 0 where there is none.
func (r *reader) count(name string) int64 {
	number, ok := r.number(name)
	if !ok {
		return 0
	}
	if number < 0 || number > MaxCount {
		r.reject(name)
	}
	return min(max(number, 0), MaxCount)
}

// time returns a time that is not absurdly far ahead, zero where there is none.
func (r *reader) time(name string) time.Time {
	number, ok := r.number(name)
	if !ok {
		return time.Time{}
	}
	if number <= 0 || number > r.now.Add(horizon).UnixMilli() {
		r.reject(name)
		return time.Time{}
	}
	return time.UnixMilli(number)
}

// past returns a time that is not far ahead, zero where there is none.
func (r *reader) past(name string) time.Time {
	number, ok := r.number(name)
	if !ok {
		return time.Time{}
	}
	if number <= 0 {
		r.reject(name)
		return time.Time{}
	}
	past := r.notFarAhead(time.UnixMilli(number))
	if past.UnixMilli() != number {
		r.reject(name)
	}
	return past
}

// notFarAhead is a time in the past by some clock, which may be right where this one is behind, or now where no clock can have shown it.
func (r *reader) notFarAhead(at time.Time) time.Time {
	if at.After(r.now.Add(retry.MaxAhead)) {
		at = r.now
	}
	return time.UnixMilli(at.UnixMilli())
}

// span returns a span of time, zero where there is none.
func (r *reader) span(name string) time.Duration {
	number, ok := r.number(name)
	if !ok {
		return 0
	}
	if number < 0 || number > horizon.Milliseconds() {
		r.reject(name)
	}
	return time.Duration(min(max(number, 0), horizon.Milliseconds())) * time.Millisecond
}

// priority returns the producer's priority where a header keeps it, else the message's own.
func (r *reader) priority(own uint8) uint8 {
	number, ok := r.number(HeaderPriority)
	if !ok {
		return own
	}
	if number < 0 || number > math.MaxUint8 {
		r.reject(HeaderPriority)
		return own
	}
	return uint8(number)
}

// property returns the message's own where it has one, else what a header keeps of it.
func (r *reader) property(name, own string) string {
	kept := r.text(name, maxShort)
	if own != "" {
		return own
	}
	return kept
}

// original returns the headers that the message had before it was first published again, nil where it says nothing of any.
func (r *reader) original() map[string]any {
	value, there := r.headers[HeaderOriginal]
	if !there || value == nil {
		return nil
	}
	all, ok := value.(map[string]any)
	if !ok {
		r.reject(HeaderOriginal)
		return nil
	}
	return keepable(all)
}

// text returns a text of at most limit bytes, empty where there is none.
func (r *reader) text(name string, limit int) string {
	text, _ := r.lookup(name, limit)
	return text
}

// textOr is text with another default.
func (r *reader) textOr(name, absent string) string {
	if text, ok := r.lookup(name, maxShort); ok {
		return text
	}
	return absent
}

func (r *reader) lookup(name string, limit int) (string, bool) {
	value, there := r.headers[name]
	if !there || value == nil {
		return "", false
	}
	text, ok := textual(value)
	if !ok || len(text) > limit {
		r.reject(name)
		return "", false
	}
	return text, true
}

// history returns the header of the failed attempts, empty where there is none.
func (r *reader) history() string { return r.jsonList(HeaderHistory, maxHistorySize) }

// jsonList returns a text that is a list in JSON, empty where there is none. It is not read any further yet.
func (r *reader) jsonList(name string, limit int) string {
	text, ok := r.lookup(name, limit)
	if !ok || text == "" {
		return ""
	}
	if text[0] != '[' || !json.Valid([]byte(text)) {
		r.reject(name)
		return ""
	}
	return text
}

// Integer returns the value of any integer type of AMQP; it is false for all else.
func Integer(value any) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int8:
		return int64(v), true
	case int:
		return int64(v), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	}
	return 0, false
}

// textual returns the value of either string type of AMQP.
func textual(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	}
	return "", false
}
