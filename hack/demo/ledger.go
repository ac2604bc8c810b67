package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/retry"
)

// ledger holds what the partner and the failure queue say. The workers' own counts are not in it.
type ledger struct {
	scenarios []scenario
	messages  []message
	attempts  map[string][]attempt
	// strays are requests about messages that nobody published.
	strays   int
	failures []failure
}

// sums of a ledger.
type sums struct{ published, handled, failed, lost, duplicated int }

// String is the last line of the demo.
func (s sums) String() string {
	return fmt.Sprintf("published=%d handled=%d failed=%d lost=%d duplicated=%d", s.published, s.handled, s.failed, s.lost, s.duplicated)
}

func (s sums) good() bool {
	return s.lost == 0 && s.duplicated == 0 && s.handled+s.failed == s.published
}

// handledOften is how often the partner answered a message with 200.
func (l *ledger) handledOften(id string) int {
	often := 0
	for _, a := range l.attempts[id] {
		if a.status == http.StatusOK {
			often++
		}
	}
	return often
}

func (l *ledger) sums() sums {
	failed := l.failedIDs()
	s := sums{published: len(l.messages)}
	for _, m := range l.messages {
		often := l.handledOften(m.id)
		switch {
		case often > 0:
			s.handled++
		case failed[m.id]:
			s.failed++
		default:
			s.lost++
		}
		if often > 1 || (often > 0 && failed[m.id]) {
			s.duplicated++
		}
	}
	return s
}

func (l *ledger) failedIDs() map[string]bool {
	failed := map[string]bool{}
	for _, f := range l.failures {
		failed[f.id] = true
	}
	return failed
}

// table shows each scenario with what became of its messages.
func (l *ledger) table(policy *retry.Policy) []string {
	rows := make([][]string, 0, len(l.scenarios)+1)
	rows = append(rows, []string{"OUTCOME", "MESSAGES", "ATTEMPTS", "HANDLED", "FAILED", "DELAY ASKED", "DELAY SEEN"})
	failed := l.failedIDs()
	for index, s := range l.scenarios {
		attempts, handled, ended := 0, 0, 0
		for _, m := range l.messages {
			if m.scenario != index {
				continue
			}
			attempts += len(l.attempts[m.id])
			handled += min(1, l.handledOften(m.id))
			if failed[m.id] {
				ended++
			}
		}
		asked := s.asked(policy)
		rows = append(rows, []string{
			s.name, strconv.Itoa(s.messages), strconv.Itoa(attempts), strconv.Itoa(handled), strconv.Itoa(ended),
			texts(asked, time.Duration.String), texts(l.gaps(index, len(asked)), spread.String),
		})
	}
	return terminal.Align(rows, 5, 6)
}

// spread of the times between two attempts.
type spread struct{ median, longest time.Duration }

func (s spread) String() string {
	return fmt.Sprintf("%.2fs (at most %.2fs)", s.median.Seconds(), s.longest.Seconds())
}

// gaps are the times from the end of each attempt to the beginning of the next one, as the partner saw them.
func (l *ledger) gaps(index, number int) []spread {
	var spreads []spread
	for i := range number {
		var gaps []time.Duration
		for _, m := range l.messages {
			if attempts := l.attempts[m.id]; m.scenario == index && len(attempts) > i+1 {
				gaps = append(gaps, attempts[i+1].began.Sub(attempts[i].ended))
			}
		}
		if len(gaps) == 0 {
			continue
		}
		slices.Sort(gaps)
		spreads = append(spreads, spread{median: gaps[len(gaps)/2], longest: gaps[len(gaps)-1]})
	}
	return spreads
}

func texts[T any](values []T, text func(T) string) string {
	if len(values) == 0 {
		return "-"
	}
	all := make([]string, len(values))
	for i, value := range values {
		all[i] = text(value)
	}
	return strings.Join(all, ", ")
}

// failureTable shows what is in the failure queue, by reason.
func (l *ledger) failureTable() []string {
	type kind struct{ reason, status, attempts, queue, explanation string }
	var kinds []kind
	counts := map[kind]int{}
	for _, f := range l.failures {
		k := kind{f.reason, f.status, f.attempts, f.queue, f.explanation}
		if counts[k] == 0 {
			kinds = append(kinds, k)
		}
		counts[k]++
	}
	rows := make([][]string, 0, len(kinds)+1)
	rows = append(rows, []string{"REASON", "MESSAGES", "STATUS", "ATTEMPTS", "QUEUE", "EXPLANATION"})
	for _, k := range kinds {
		rows = append(rows, []string{k.reason, strconv.Itoa(counts[k]), k.status, k.attempts, k.queue, k.explanation})
	}
	return terminal.Align(rows, 4, 5)
}

// via is the number of messages that the partner got from a queue.
func (l *ledger) via(queue string) int {
	number := 0
	for _, attempts := range l.attempts {
		if len(attempts) > 0 && attempts[0].queue == queue {
			number++
		}
	}
	return number
}
