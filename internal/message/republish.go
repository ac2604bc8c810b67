package message

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// MaxHeaderSize is the most that the headers of a republished message take, in bytes. All properties of a message travel
// in one frame, which is 128 KiB; the rest is for the other properties, and for what a lane adds.
const MaxHeaderSize = 120 << 10

// leastSpare is what is left of a frame at least, and spareShare the part of it that is left.
const (
	leastSpare = 4 << 10
	spareShare = 16
)

// HeaderLimit is the most that the headers of a republished message take where frames have at most so many bytes, in bytes. It is
// MaxHeaderSize where that is not known (0), and with frames of 128 KiB and more.
func HeaderLimit(frame int) int {
	if frame <= 0 {
		return MaxHeaderSize
	}
	return min(MaxHeaderSize, frame-min(max(frame/spareShare, leastSpare), frame/2))
}

// ErrHeadersTooLarge says that a message's own headers leave no room for the indispensable ones of ours. Such a message
// cannot be published again without a loss. Rejected without requeue it goes to the failure queue by the work queue's
// dead-letter exchange, whole but without a reason on it.
var ErrHeadersTooLarge = errors.New("headers too large to be published again")

// mostOwn is about how many headers of ours a message on its way to a retry has; it only spares the growth of a map.
const mostOwn = 12

// persistent is the delivery mode of messages that survive a restart of the broker.
const persistent = 2

// Final is the end of a message that is given up.
type Final struct {
	// Reason in one word and Explanation in a sentence.
	Reason      retry.Reason
	Explanation string
	// Strategy that decided; empty where none did.
	Strategy string
	// Failure that was the last; where its Source is empty, the last of the history stands for it.
	Failure retry.Failure
	// At is the time at which the message was given up.
	At time.Time
	// ID is that of this failure, which no other has; empty where it is not known.
	ID string
	// Exit says how the last process ended that the message brought down, and Worker which worker gave it up; empty where
	// that is not why.
	Exit, Worker string
}

// Parked returns m as it is published to the fallback exchange, to wait in a lane and come back to the queue: a retry,
// or a message that came back early. The caller sets Exchange. A priority of m that is not the producer's is kept on the
// way, until the message fails.
//
// Parked, Returned and Failed share their rules. The copy is persistent and routed by the queue's name. All properties,
// headers and their types stay, but for those that would do harm on the way (records of dead-lettering, counts of
// deliveries, CC, BCC, user-id); what the message had of them when it first came to its queue is kept aside, for the handler. An
// expiration becomes a deadline. The state is written as headers, on a message that goes
// on without those which follow from others; those of ours that no longer hold are gone. m and its headers are not altered
// or shared; the body is shared.
//
// Headers that would not fit one frame are shed, ours only: first the span of the last attempt, the lives before a replay and the failure history down
// to its last entry, then all of it, then what the handler carries along, then the failure's ID, then the error's message and the explanation, then its class,
// source and status, then what was kept aside. The error is ErrHeadersTooLarge where even that does not suffice.
func Parked(m Message, s State, queue, lane string, now time.Time) (Message, error) {
	headers := stateHeaders(m, s, now)
	putTime(headers, HeaderNotBefore, s.NotBefore)
	headers[HeaderLane] = lane
	if s.usual != "" && s.Exchange == s.usual { // a configuration that names none may come to name one
		delete(headers, HeaderExchange)
	}
	m, err := republished(m, HeaderLimit(s.FrameSize), queue, headers, optionalHeaders(m, s))
	omitDerived(m, s)
	return m, err
}

// Returned returns m as it is published to the return exchange, to go back to its queue at once: a release, which leaves
// all counts as they are, and the time before which it is not handled, if that is still to come. The rules are those of
// Parked.
func Returned(m Message, s State, queue string, now time.Time) (Message, error) {
	headers := stateHeaders(m, s, now)
	if s.NotBefore.After(now) {
		putTime(headers, HeaderNotBefore, s.NotBefore)
	}
	m, err := republished(m, HeaderLimit(s.FrameSize), queue, headers, optionalHeaders(m, s))
	omitDerived(m, s)
	return m, err
}

// Failed returns m as it is published to the failed exchange, with the reason on it. The rules are those of Parked.
func Failed(m Message, s State, queue string, final Final) (Message, error) {
	if final.Strategy != "" {
		s.History.Strategy = final.Strategy
	}
	m.Priority = s.Priority
	headers := stateHeaders(m, s, final.At)
	headers[HeaderReason] = Text(string(final.Reason), maxName)
	headers[HeaderQueue] = queue
	putTime(headers, HeaderFailedAt, final.At)

	told := errorHeaders(lastFailure(s, final))
	told = append(told, header{HeaderCrashExit, Text(final.Exit, maxName)}, header{HeaderWorker, Text(final.Worker, maxShort)})
	told = append(told, header{HeaderExplanation, Text(final.Explanation, MaxText)}, header{HeaderFailureID, final.ID})
	return republished(m, HeaderLimit(s.FrameSize), queue, headers, optionalHeaders(m, s, told...))
}

const (
	// maxOriginal bounds the headers that are kept aside, in bytes, and maxOriginalDepth how deep each is nested: clients read no more
	// than 32 levels. Records of dead-lettering have 2, and 200 bytes for each queue.
	maxOriginal      = 8 << 10
	maxOriginalDepth = 8
)

// keepable returns those of the headers that a copy carries aside: the first, by name, that fit. nil where there are none.
func keepable(all map[string]any) map[string]any {
	var names []string // most messages have none
	for name := range all {
		if isRecord(name) {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	kept, size := make(map[string]any, len(names)), 0
	for _, name := range names {
		more := entrySize(name, all[name])
		if size+more > maxOriginal || isDeeper(all[name], maxOriginalDepth) {
			continue
		}
		size += more
		kept[name] = all[name]
	}
	return kept
}

// isDeeper reports whether a header's value has more than so many levels of tables and arrays.
func isDeeper(value any, levels int) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, item := range v {
			if levels == 0 || isDeeper(item, levels-1) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if levels == 0 || isDeeper(item, levels-1) {
				return true
			}
		}
	}
	return false
}

// optionalHeaders returns what a copy says of the message as it first came to its work queue, and of its past: what the handler
// carries along, the history, its last entry alone in case the whole does not fit, and the span of the last attempt. more come between.
func optionalHeaders(m Message, s State, more ...header) []header {
	headers := make([]header, 0, 7+len(more)) // and one more of a message that is replayed
	if s.Expiration != "" {
		headers = append(headers, header{HeaderExpiration, s.Expiration})
	}
	if s.UserID != "" {
		headers = append(headers, header{HeaderUserID, s.UserID})
	}
	original := s.Original
	if original == nil && !s.parked {
		original = keepable(m.Headers)
	}
	if len(original) > 0 {
		headers = append(headers, header{HeaderOriginal, original})
	}
	headers = append(headers, more...)
	if s.Carry != "" {
		headers = append(headers, header{HeaderCarry, s.Carry})
	}
	failures := s.Failures()
	if n := len(failures); n > 0 {
		headers = append(headers, header{HeaderHistory, encodeFailures(failures)})
		if n > 1 {
			headers = append(headers, header{HeaderHistory, encodeFailures(failures[n-1:])})
		}
	}
	if s.lives != "" {
		headers = append(headers, header{HeaderLives, s.lives})
	}
	if s.Traceparent != "" {
		headers = append(headers, header{HeaderTraceparent, s.Traceparent})
	}
	return headers
}

// header is one header that may be shed.
type header struct {
	name  string
	value any
}

// republished puts the copy together: the user's headers with our indispensable ones, and of the optional ones, in their
// order, those that fit. A later value for the same name is a smaller one: it is taken if the earlier did not fit.
func republished(m Message, limit int, queue string, headers map[string]any, optional []header) (Message, error) {
	size := HeaderSize(headers)
	if size > limit {
		return Message{}, fmt.Errorf("%w: %d bytes of %d", ErrHeadersTooLarge, size, limit)
	}
	for _, h := range optional {
		if _, there := headers[h.name]; there || h.value == "" {
			continue
		}
		if more := entrySize(h.name, h.value); size+more <= limit {
			headers[h.name] = h.value
			size += more
		}
	}
	m.Headers = headers
	m.DeliveryMode = persistent
	m.Expiration = ""
	m.UserID = ""
	m.Exchange, m.RoutingKey = "", queue
	m.Redelivered = false
	return m, nil
}

// stateHeaders returns the user's headers, and those without which a message would lose its place in the policy.
func stateHeaders(m Message, s State, now time.Time) map[string]any {
	headers := make(map[string]any, len(m.Headers)+mostOwn)
	for name, value := range m.Headers {
		if !isOwn(name) && !isStale(name) {
			headers[name] = value
		}
	}
	headers[HeaderExchange] = s.Exchange
	headers[HeaderRoutingKey] = s.RoutingKey
	if m.MessageID == "" && s.ID != "" {
		headers[HeaderID] = s.ID
	}
	putCount(headers, HeaderAttempts, s.History.Attempts)
	putCount(headers, HeaderRetries, s.History.Retries)
	putCount(headers, HeaderStreak, s.History.Streak)
	putCount(headers, HeaderCrashes, s.Crashes)
	putCount(headers, HeaderDelay, s.History.LastDelay.Milliseconds())
	putTime(headers, HeaderFirstFailure, s.History.FirstFailure)
	putTime(headers, HeaderDeadline, deadline(m, s, now))
	if m.Priority != s.Priority {
		headers[HeaderPriority] = int64(s.Priority)
	}
	if s.History.Strategy != "" {
		headers[HeaderStrategy] = s.History.Strategy
	}
	s.Replay.Put(headers)
	return headers
}

// omitDerived takes out what Decode derives from the rest, for the broker and the client read and write each header on each hop:
// the routing key where it is that of the copy, and all that the history of a message says that waits after its only failure.
func omitDerived(m Message, s State) {
	if m.Headers[HeaderRoutingKey] == m.RoutingKey {
		delete(m.Headers, HeaderRoutingKey)
	}
	if _, told := m.Headers[HeaderHistory]; told && s.waitsOnce() {
		for _, name := range []string{HeaderAttempts, HeaderRetries, HeaderFirstFailure, HeaderDelay, HeaderNotBefore} {
			delete(m.Headers, name)
		}
	}
}

// waitsOnce says whether a message waits, or is on its way back, after its only failure, and its history tells all of that.
func (s State) waitsOnce() bool {
	only, h := s.Failures(), s.History
	if len(only) != 1 || h.Attempts != 1 || h.Retries != 1 {
		return false
	}
	at, delay := only[0].At.UnixMilli(), only[0].Delay.Milliseconds()
	return at > 0 && delay > 0 && h.FirstFailure.UnixMilli() == at && h.LastDelay.Milliseconds() == delay && s.NotBefore.UnixMilli() == at+delay
}

// errorHeaders describe a failure, the most telling one first.
func errorHeaders(f retry.Failure) []header {
	headers := []header{
		{HeaderErrorSource, Text(string(f.Source), maxSource)},
		{HeaderErrorClass, Text(f.Class, MaxClass)},
		{HeaderErrorMessage, Text(f.Message, MaxText)},
	}
	if f.Status != 0 {
		headers = slices.Insert(headers, 1, header{HeaderErrorStatus, int64(f.Status)})
	}
	return headers
}

func lastFailure(s State, final Final) retry.Failure {
	failures := s.Failures()
	if final.Failure.Source != "" || len(failures) == 0 {
		return final.Failure
	}
	last := failures[len(failures)-1]
	return retry.Failure{Source: last.Source, Class: last.Class, Message: last.Message, Status: last.Status}
}

// deadline returns the earlier of the message's deadline and its expiration, zero where there is neither. Decode has seen to the expiration
// already, but for one of 0, which is for the broker: now, or not at all. A copy that is put back before its first attempt has no deadline
// from that, or it would have expired uncalled.
//
// An expiration counts from publication. The timestamp stands for that, to the end of its second, while it can be true:
// the broker does not deliver what has expired, so a timestamp by which the message would have is not that of its
// publication, and the expiration then counts from now.
func deadline(m Message, s State, now time.Time) time.Time {
	expiration, ok := spanOf(m.Expiration)
	if !ok || expiration == 0 && s.History.Attempts == 0 {
		return s.Deadline
	}
	expires := now.Add(expiration)
	if published := m.Timestamp.Add(time.Second); !m.Timestamp.IsZero() && published.Before(now) {
		if since := published.Add(expiration); since.After(now) {
			expires = since
		}
	}
	if !s.Deadline.IsZero() && s.Deadline.Before(expires) {
		return s.Deadline
	}
	return expires
}

// spanOf reads the property expiration; ok is false where it is none, or absurd.
func spanOf(expiration string) (span time.Duration, ok bool) {
	if expiration == "" { // of nearly every message: the error would be an allocation for each
		return 0, false
	}
	milliseconds, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil || milliseconds < 0 || milliseconds > horizon.Milliseconds() {
		return 0, false
	}
	return time.Duration(milliseconds) * time.Millisecond, true
}

func putCount(headers map[string]any, name string, count int64) {
	if count > 0 {
		headers[name] = count
	}
}

func putTime(headers map[string]any, name string, at time.Time) {
	if !at.IsZero() {
		headers[name] = at.UnixMilli()
	}
}
