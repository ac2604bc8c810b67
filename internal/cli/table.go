package cli

import (
	"fmt"
	"strconv"
	"strings"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/local"
)

// unknown stands for a number that the broker has not told yet.
const unknown = "?"

// headQueue is the heading of a column of queues.
const headQueue = "QUEUE"

// table shows all Transports, each with its work queues, its lanes, its failure queue and what holds
// messages back.
func table(snapshots []local.Snapshot) []string {
	var lines []string
	for i, s := range snapshots {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, heading(s))
		rows := [][]string{{headQueue, "READY", "IN LANES", "AT HANDLER", "HANDLED", "RETRIED", "FAILED", "DROPPED"}}
		for _, q := range s.Queues {
			rows = append(rows, []string{
				q.Name, count(q.Ready), "", number(q.AtHandler), number(q.Handled), number(q.Retried), number(q.Failed), number(q.Dropped),
			})
		}
		rows = append(rows, []string{"(all lanes)", "", count(s.Waiting)})
		if hasQuarantine(s) {
			rows = append(rows, []string{"(quarantine)", count(s.Quarantine)})
		}
		rows = append(rows, []string{s.FailureQueue, count(s.Failures)})
		lines = append(lines, terminal.Align(rows)...)
		for _, text := range troubleTexts(s) {
			lines = append(lines, "! "+text)
		}
	}
	return lines
}

// maxTroubles bounds what is shown of each Transport: a breaker with a key may have very many.
const maxTroubles = 10

func troubleTexts(s local.Snapshot) []string {
	var texts []string
	for _, trouble := range s.Troubles[:min(len(s.Troubles), maxTroubles)] {
		texts = append(texts, "worker "+trouble.Worker+": "+trouble.Message)
	}
	if more := len(s.Troubles) - maxTroubles; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return texts
}

func heading(s local.Snapshot) string {
	text := "Transport " + s.Transport + " on " + s.Broker
	if s.Problem != "" {
		text += ": " + s.Problem
	}
	return text
}

// line shows one Transport in one line, for logs and pipes.
func line(s local.Snapshot) string {
	parts := make([]string, 0, len(s.Queues)+2)
	for _, q := range s.Queues {
		text := fmt.Sprintf("%s ready=%s handled=%d retried=%d failed=%d", q.Name, count(q.Ready), q.Handled, q.Retried, q.Failed)
		if q.Dropped > 0 {
			text += fmt.Sprintf(" dropped=%d", q.Dropped)
		}
		parts = append(parts, text)
	}
	parts = append(parts, "in lanes "+count(s.Waiting))
	if hasQuarantine(s) {
		parts = append(parts, "quarantine "+count(s.Quarantine))
	}
	parts = append(parts, s.FailureQueue+" "+count(s.Failures))
	text := s.Transport + ": " + strings.Join(parts, "; ")
	if s.Problem != "" {
		text += "; " + s.Problem
	}
	return strings.Join(append([]string{text}, troubleTexts(s)...), "; ")
}

// hasQuarantine is true while messages wait to be handled apart from others, which is rare.
func hasQuarantine(s local.Snapshot) bool { return s.Quarantine != nil && *s.Quarantine > 0 }

func count(n *int64) string {
	if n == nil {
		return unknown
	}
	return number(*n)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
