package message

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"redrive.dev/redrive/internal/retry"
)

const (
	// MaxClass is the longest error class that is kept, in bytes.
	MaxClass = 100
	// MaxText is the longest error message or explanation that is kept, in bytes.
	MaxText = 500

	keepFirst      = 3
	keepLast       = 5
	maxHistorySize = 16 << 10
	maxName        = 100
	maxSource      = 20
)

// Attempt is one failed attempt in a message's history.
type Attempt struct {
	// Number of the attempt, 1 for the first.
	Number int64
	// At is the time at which it failed, in whole milliseconds once it was written.
	At time.Time
	// Source, Status, Class and Message are those of the failure.
	Source  retry.Source
	Status  int
	Class   string
	Message string
	// Strategy that decided; empty where the policy's own fields did.
	Strategy string
	// Delay before the next attempt; zero where there was none.
	Delay time.Duration
}

// Record adds a failed attempt to the history. Of a long history the first three and the last five attempts stay, and
// texts are cut, so that it never takes more than 16 KiB. The counts are not touched: they are the policy's.
func Record(s State, a Attempt) State {
	before := s.Failures()
	failures := make([]Attempt, 0, len(before)+1)
	s.past, s.failures = "", bounded(append(append(failures, before...), a))
	return s
}

// Recall is the state with its history read, for a decision that takes the last delay into account: redrive-delay is shorter where the message has
// waited for something else since.
func Recall(s State) State {
	s.failures, s.past = s.Failures(), ""
	if n := len(s.failures); n > 0 {
		s.History.LastDelay = max(s.History.LastDelay, s.failures[n-1].Delay)
	}
	return s
}

// Text makes a text fit for headers, logs and people: valid UTF-8 without control characters other than line breaks and
// tabs, at most limit bytes long, cut between two characters. Whoever keeps it keeps no more than that alive.
func Text(text string, limit int) string {
	if len(text) > limit { // first, so that a huge text costs nothing; what is cut in half goes below
		text = text[:limit]
		for i := 1; i <= utf8.UTFMax && i <= len(text); i++ {
			if tail := text[len(text)-i:]; utf8.RuneStart(tail[0]) {
				if !utf8.FullRuneInString(tail) {
					text = text[:len(text)-i]
				}
				break
			}
		}
		text = strings.Clone(text) // else it would keep all that it was cut from
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029':
			return ' '
		case r == utf8.RuneError:
			return '?'
		}
		return r
	}, text)
	return clean
}

// bounded returns the entries that are kept, with their texts cut. It does not alter its argument.
func bounded(failures []Attempt) []Attempt {
	kept := make([]Attempt, 0, min(len(failures), keepFirst+keepLast))
	for i, a := range failures {
		if i >= keepFirst && i < len(failures)-keepLast {
			continue
		}
		a.Number = min(max(a.Number, 0), MaxCount)
		a.Source = retry.Source(Text(string(a.Source), maxSource))
		a.Class = Text(a.Class, MaxClass)
		a.Message = Text(a.Message, MaxText)
		a.Strategy = Text(a.Strategy, maxName)
		a.Delay = min(max(a.Delay, 0), horizon)
		kept = append(kept, a)
	}
	return kept
}

// wireAttempt is an Attempt as JSON; times and spans are in milliseconds.
type wireAttempt struct {
	Number   int64        `json:"attempt"`
	At       int64        `json:"at"`
	Source   retry.Source `json:"source,omitempty"`
	Status   int          `json:"status,omitempty"`
	Class    string       `json:"class,omitempty"`
	Message  string       `json:"message,omitempty"`
	Strategy string       `json:"strategy,omitempty"`
	Delay    int64        `json:"delay,omitempty"`
}

// encodeFailures returns the history as JSON of at most 16 KiB; empty for an empty one.
func encodeFailures(failures []Attempt) string {
	if len(failures) == 0 {
		return ""
	}
	kept := bounded(failures)
	wire := make([]wireAttempt, 0, len(kept))
	for _, a := range kept {
		wire = append(wire, wireAttempt{
			Number: a.Number, At: a.At.UnixMilli(), Source: a.Source, Status: a.Status, Class: a.Class,
			Message: a.Message, Strategy: a.Strategy, Delay: a.Delay.Milliseconds(),
		})
	}
	return compactJSON(wire)
}

// decodeFailures reads what encodeFailures wrote. Entries of others are cut to the same bounds.
func decodeFailures(text string) ([]Attempt, error) {
	var wire []wireAttempt
	if err := json.Unmarshal([]byte(text), &wire); err != nil {
		return nil, fmt.Errorf("decode the failure history: %w", err)
	}
	if len(wire) == 0 {
		return nil, nil
	}
	failures := make([]Attempt, 0, len(wire))
	for _, w := range wire {
		failures = append(failures, Attempt{
			Number: w.Number, At: time.UnixMilli(w.At), Source: w.Source, Status: w.Status, Class: w.Class,
			Message: w.Message, Strategy: w.Strategy,
			Delay: time.Duration(min(max(w.Delay, 0), horizon.Milliseconds())) * time.Millisecond,
		})
	}
	return bounded(failures), nil
}
