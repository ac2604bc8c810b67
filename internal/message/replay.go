package message

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// Headers of a message that a replay has sent back to its work queue. It keeps them until it is settled, and in the failure queue.
const (
	// HeaderReplay is the ID of the replay, and HeaderReplaySeq the number of the message in it, from 1.
	HeaderReplay    = HeaderPrefix + "replay"
	HeaderReplaySeq = HeaderPrefix + "replay-seq"
	// HeaderLives is the bounded list of how the message was given up before its replays, as JSON.
	HeaderLives = HeaderPrefix + "lives"
)

// Headers of the event by which a worker tells a replay what became of one of its messages.
const (
	// HeaderOutcome is the ID of the replay: the log queue of a replay is bound by it.
	HeaderOutcome      = HeaderPrefix + "outcome"
	HeaderOutcomeSeq   = HeaderPrefix + "outcome-seq"
	HeaderOutcomeKind  = HeaderPrefix + "outcome-kind"
	HeaderOutcomeCause = HeaderPrefix + "outcome-cause"
	HeaderOutcomeQueue = HeaderPrefix + "outcome-queue"
)

const (
	replayPrefix = "r-"
	// hexSize is the length of a cause, and of a replay's ID without its prefix.
	hexSize = 8

	keepLives    = 5
	maxLivesSize = 8 << 10
)

// Replay is the place of a message in a replay. The zero one is that of a message which is not replayed.
type Replay struct {
	// ID of the replay: "r-" and 8 hexadecimal digits.
	ID string
	// Seq is the number of the message in it, from 1.
	Seq int64
}

// ReplayIDOf is the ID of a replay with these digits.
func ReplayIDOf(digits [hexSize / 2]byte) string { return replayPrefix + hex.EncodeToString(digits[:]) }

// IsReplayID tells whether a text has the form of a replay's ID.
func IsReplayID(text string) bool {
	digits, ok := strings.CutPrefix(text, replayPrefix)
	return ok && isShortHash(digits)
}

func isShortHash(text string) bool { return len(text) == hexSize && isHex(text) }

// valid is false of what nothing of ours writes.
func (r Replay) valid() bool { return r.Seq > 0 && IsReplayID(r.ID) }

// Put writes the place into the headers of a message. Where the message is not replayed, it writes nothing.
func (r Replay) Put(headers map[string]any) {
	if r.ID != "" {
		headers[HeaderReplay], headers[HeaderReplaySeq] = r.ID, r.Seq
	}
}

// ReplayOf reads the place of a message from its headers: whole, or as the zero one.
func ReplayOf(headers map[string]any) Replay {
	r := reader{headers: headers}
	return r.replay()
}

func (r *reader) replay() Replay { return r.place(HeaderReplay, HeaderReplaySeq) }

// place reads a place from the headers of these names. What is no whole one is garbage.
func (r *reader) place(id, seq string) Replay {
	if _, there := r.headers[id]; !there {
		return Replay{}
	}
	place := Replay{ID: r.text(id, len(replayPrefix)+hexSize)}
	place.Seq, _ = r.number(seq)
	if !place.valid() {
		r.reject(id)
		return Replay{}
	}
	return place
}

// OutcomeKind is what became of a replayed message.
type OutcomeKind string

const (
	// OutcomeRetried tells of the first failed attempt, with retries to come; one of the others follows.
	OutcomeRetried OutcomeKind = "Retried"
	// OutcomeHandled is the end that a handler makes.
	OutcomeHandled OutcomeKind = "Handled"
	// OutcomeDropped is the end that a strategy makes.
	OutcomeDropped OutcomeKind = "Dropped"
	// OutcomeFailedAgain is the end in the failure queue.
	OutcomeFailedAgain OutcomeKind = "FailedAgain"
	// OutcomeRecalled is the end in the failure queue of a message that was taken back, without an attempt.
	OutcomeRecalled OutcomeKind = "Recalled"
	// OutcomeDiscarded is the end of a message that was deleted instead.
	OutcomeDiscarded OutcomeKind = "Discarded"
)

func (k OutcomeKind) known() bool {
	switch k {
	case OutcomeRetried, OutcomeHandled, OutcomeDropped, OutcomeFailedAgain, OutcomeRecalled, OutcomeDiscarded:
		return true
	}
	return false
}

// ReplayOutcome says what became of a replayed message. It may come twice: a worker that ends between it and the ack of the message leaves
// that to another one.
type ReplayOutcome struct {
	Replay

	Kind OutcomeKind
	// Cause is the fingerprint of the failure of a message that failed again; empty where it is not known.
	Cause string
	// Queue is the work queue of the message.
	Queue string
}

// outcomeKey names events where a publisher tells of its troubles. No binding of a log queue looks at it.
const outcomeKey = "replay-outcomes"

// Message is the event of the outcome: headers alone. The caller sets Exchange.
func (o ReplayOutcome) Message() Message {
	headers := map[string]any{
		HeaderOutcome:      o.ID,
		HeaderOutcomeSeq:   o.Seq,
		HeaderOutcomeKind:  string(o.Kind),
		HeaderOutcomeQueue: o.Queue,
	}
	if o.Cause != "" {
		headers[HeaderOutcomeCause] = o.Cause
	}
	return Message{DeliveryMode: persistent, RoutingKey: outcomeKey, Headers: headers}
}

// DecodeOutcome reads an event. It is false for what is none, or cannot be used; a cause or a queue that cannot be used counts as absent.
func DecodeOutcome(m Message) (ReplayOutcome, bool) {
	r := reader{headers: m.Headers}
	o := ReplayOutcome{
		Replay: r.place(HeaderOutcome, HeaderOutcomeSeq),
		Kind:   OutcomeKind(r.text(HeaderOutcomeKind, maxName)),
		Cause:  r.text(HeaderOutcomeCause, hexSize),
		Queue:  r.text(HeaderOutcomeQueue, maxShort),
	}
	if !o.valid() || !o.Kind.known() {
		return ReplayOutcome{}, false
	}
	if !isShortHash(o.Cause) {
		o.Cause = ""
	}
	return o, true
}

// Life is how a message was given up before it was replayed.
type Life struct {
	// Replay that the message had failed in, empty for the first life.
	Replay string `json:"replay,omitempty"`
	// Cause is the fingerprint of its failure.
	Cause string `json:"cause,omitempty"`
	// Reason for which it was given up, after so many attempts, by which strategy.
	Reason   string `json:"reason,omitempty"`
	Attempts int64  `json:"attempts,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	// Source, Status, Class and Message are those of its last failure.
	Source  string `json:"source,omitempty"`
	Status  int    `json:"status,omitempty"`
	Class   string `json:"class,omitempty"`
	Message string `json:"message,omitempty"`
	// FailedAt is the time at which it was given up, in milliseconds since 1970.
	FailedAt int64 `json:"at,omitempty"`
}

func (l Life) bounded() Life {
	if !IsReplayID(l.Replay) {
		l.Replay = ""
	}
	if !isShortHash(l.Cause) {
		l.Cause = ""
	}
	l.Reason, l.Strategy = Text(l.Reason, maxName), Text(l.Strategy, maxStrategy)
	l.Source, l.Class, l.Message = Text(l.Source, maxSource), Text(l.Class, MaxClass), Text(l.Message, MaxText)
	l.Attempts = min(max(l.Attempts, 0), MaxCount)
	l.Status = min(max(l.Status, 0), MaxCount)
	l.FailedAt = max(l.FailedAt, 0)
	return l
}

// EncodeLives returns the value of HeaderLives for lives, oldest first: the newest of them that fit, empty where there are none.
func EncodeLives(lives []Life) string {
	kept := lives[max(0, len(lives)-keepLives):]
	for ; len(kept) > 0; kept = kept[1:] {
		bounded := make([]Life, len(kept))
		for i, life := range kept {
			bounded[i] = life.bounded()
		}
		if text := compactJSON(bounded); len(text) <= maxLivesSize {
			return text
		}
	}
	return ""
}

// DecodeLives reads HeaderLives, oldest first. Lives of others are cut to the same bounds.
func DecodeLives(headers map[string]any) []Life {
	r := reader{headers: headers}
	var lives []Life
	if text := r.lives(); text == "" || json.Unmarshal([]byte(text), &lives) != nil {
		return nil
	}
	lives = lives[max(0, len(lives)-keepLives):]
	for i, life := range lives {
		lives[i] = life.bounded()
	}
	return lives
}

// lives is the header of former lives as it came, empty where there is none. It is JSON, and read by who shows it.
func (r *reader) lives() string { return r.jsonList(HeaderLives, maxLivesSize) }

// compactJSON encodes what always encodes: numbers and text.
func compactJSON(value any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // an escape is six bytes for one
	if err := encoder.Encode(value); err != nil {
		return ""
	}
	return strings.TrimSuffix(out.String(), "\n")
}
