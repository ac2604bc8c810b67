package message

import (
	"fmt"
	"maps"
	"time"
)

// HeaderStaged is on a message in the staging queue of a replay: a table of its number and of what the copy cannot have as its own.
const HeaderStaged = HeaderPrefix + "staged"

// Fields of HeaderStaged, beside CC and BCC.
const (
	stagedSeq      = "seq"
	stagedExchange = "exchange"
	stagedKey      = "key"
)

// Staged returns a failed message as it is published into the staging queue of a replay. All that says how it failed stays on it, for whoever
// takes it back. An expiration would delete it there, CC and BCC would multiply it, and the broker takes no user-id of another login: these are
// kept aside, as in any copy. The caller sets Exchange and RoutingKey. frame is as in HeaderLimit.
func Staged(m Message, seq int64, frame int) (Message, error) {
	if m.Unreadable {
		return Message{}, fmt.Errorf("%w: they cannot be read", ErrHeadersTooLarge)
	}
	aside := map[string]any{stagedSeq: seq, stagedExchange: m.Exchange, stagedKey: m.RoutingKey}
	headers := make(map[string]any, len(m.Headers)+1)
	for name, value := range m.Headers {
		switch {
		case name == "CC" || name == "BCC":
			aside[name] = value
		case !isCount(name):
			headers[name] = value
		}
	}
	headers[HeaderStaged] = aside
	if m.UserID != "" {
		headers[HeaderUserID] = m.UserID
	}
	if m.Expiration != "" {
		headers[HeaderExpiration] = m.Expiration
	}
	if size, limit := HeaderSize(headers), HeaderLimit(frame); size > limit {
		return Message{}, fmt.Errorf("%w: %d bytes of %d", ErrHeadersTooLarge, size, limit)
	}
	m.Headers, m.UserID, m.Expiration = headers, "", ""
	m.DeliveryMode, m.Redelivered = persistent, false
	return m, nil
}

// Unstaged returns the message that was staged, as it was in the failure queue, with its number. It is false for one that was not.
func Unstaged(m Message) (failed Message, seq int64, ok bool) {
	aside, _ := m.Headers[HeaderStaged].(map[string]any)
	seq, ok = aside[stagedSeq].(int64)
	if !ok {
		return m, 0, false
	}
	m.Exchange, _ = aside[stagedExchange].(string)
	m.RoutingKey, _ = aside[stagedKey].(string)
	m.Headers = maps.Clone(m.Headers)
	delete(m.Headers, HeaderStaged)
	maps.DeleteFunc(m.Headers, func(name string, _ any) bool { return isCount(name) })
	for _, name := range []string{"CC", "BCC"} {
		if value, had := aside[name]; had {
			m.Headers[name] = value
		}
	}
	return m, seq, true
}

// Released returns a failed message as it is published to the return exchange by a replay. Its policy begins anew: no attempt, no deadline and
// nothing of its failure is on it but the former lives, to which last is added. Its ID stays, and with it the idempotency key; so do the
// exchange and the key that it was first published with. One that brought down workers goes to the quarantine queue. The rules are those of Parked.
func Released(m Message, s State, queue string, place Replay, last Life, now time.Time) (Message, error) {
	fresh := State{
		ID: s.ID, Priority: s.Priority, Exchange: s.Exchange, RoutingKey: s.RoutingKey, Expiration: s.Expiration, UserID: s.UserID,
		Original: s.Original, parked: s.parked, FrameSize: s.FrameSize,
		Replay: place, lives: EncodeLives(append(DecodeLives(m.Headers), last)),
	}
	m.Priority, m.Expiration = s.Priority, ""
	m, err := Returned(m, fresh, queue, now)
	if err == nil && last.Reason == reasonPoison {
		m.Headers[HeaderQuarantine] = true
	}
	return m, err
}

// reasonPoison is the reason of a message that brought down workers.
const reasonPoison = "PoisonCrash"
