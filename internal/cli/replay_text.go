package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/replayer"
)

// resultText is how a replay has ended.
func resultText(r *replayer.Result, took time.Duration) string {
	all := messages(int(r.Counts.Selected))
	switch r.Phase {
	case replay.Stopped:
		return plainLine("stopped: "+r.Problem) + "\n  " + countsText(&r.Counts) + "\n"
	case replay.Held:
		return fmt.Sprintf("discarded %s; until %s they can be taken back\n", all, r.UndoUntil.Format(time.RFC3339))
	default:
		return fmt.Sprintf("%s %s in %s: %s\n", strings.ToLower(string(r.Phase)), all, spell(took.Round(100*time.Millisecond)), countsText(&r.Counts))
	}
}

// countsText is where the messages of a replay are.
func countsText(c *replay.Counts) string {
	all := countParts(c)
	parts := make([]string, 0, len(all))
	for _, part := range all {
		text := grouped(int(part.n)) + " " + part.name
		switch {
		case part.name == "retried":
			continue
		case part.name == "in flight" && c.Retrying > 0:
			text += fmt.Sprintf(" (%s of them retried)", grouped(int(c.Retrying)))
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "no message"
	}
	return strings.Join(parts, ", ")
}

// next says what can be done with a replay that has not ended; it is empty for others.
func (c *carrier) next(u *replayer.Unfinished) string {
	name := c.look.transport.Name
	resume, cancel := c.command("replay", "resume", name, u.ID), c.command("replay", "cancel", name, u.ID)
	rows := [][]string{}
	switch u.Phase {
	case replay.Completed, replay.Cancelled:
		return ""
	case "":
		if u.Running {
			return ""
		}
		rows = append(rows, []string{"  take back what is staged:", cancel})
	case replay.Held:
		rows = append(rows, []string{"  take them back:", cancel})
		if time.Now().Before(u.UndoUntil) {
			rows = append(rows, []string{"  delete them now:", resume + " --final"}, []string{"  delete them later:", resume})
		} else {
			rows = append(rows, []string{"  delete them:", resume})
		}
	case replay.Cancelling:
		rows = append(rows, []string{"  wait for the rest:", cancel})
	case replay.Stopped:
		rows = append(rows, []string{"  go on all the same:", resume + " --accept-failures"}, []string{"  take the rest back:", cancel})
	default:
		rows = append(rows, []string{"  go on:", resume}, []string{"  take the rest back:", cancel})
	}
	return lines(rows, 1)
}

func replaysText(found []replayer.Unfinished, l *look) string {
	if len(found) == 0 {
		return plainLine("There is no replay of Transport "+l.transport.Name+" that has not ended.") + "\n"
	}
	rows := [][]string{{"ID", "ACTION", "PHASE", "SELECTED", "STAGED", "IN FLIGHT", "HANDLED", "FAILED AGAIN", "AGE"}}
	for i := range found {
		u := &found[i]
		if u.Phase == "" {
			phase := "Unknown"
			if u.Running {
				phase = "Running"
			}
			rows = append(rows, []string{u.ID, unknown, phase, unknown, grouped(int(u.Staged)), unknown, unknown, unknown, unknown})
			continue
		}
		c := &u.Counts
		rows = append(rows, []string{
			u.ID, string(u.Order.Action), string(u.Phase), grouped(int(c.Selected)), grouped(int(c.Staged)), grouped(int(c.InFlight)), grouped(int(c.Handled)),
			grouped(int(c.FailedAgain)), ago(&u.Began, l.now),
		})
	}
	return lines(rows, 1, 2)
}

// replayText is all that is known of a replay.
func replayText(u *replayer.Unfinished) string {
	if u.Phase == "" {
		phase := "nothing is known of it: it had not begun, or its log is gone"
		if u.Running {
			phase = "another process carries it out now"
		}
		return lines([][]string{{"ID", u.ID}, {"Phase", phase}, {"Staged", grouped(int(u.Staged))}}, 1)
	}
	rows := [][]string{{"ID", u.ID}, {"Action", string(u.Order.Action)}, {"Phase", string(u.Phase)}, {"", u.Problem}}
	for _, at := range []struct {
		name string
		at   time.Time
	}{{"Began", u.Began}, {"Undo until", u.UndoUntil}} {
		if !at.at.IsZero() {
			rows = append(rows, []string{at.name, at.at.UTC().Format(time.RFC3339)})
		}
	}
	s := &u.Order.Selection
	rows = append(rows, []string{"Where", s.Where}, []string{"Causes", strings.Join(s.Causes, ", ")}, []string{"Queues", strings.Join(s.Queues, ", ")},
		[]string{"Message IDs", some(s.IDs)})
	if !s.Since.IsZero() {
		rows = append(rows, []string{"Failed since", s.Since.UTC().Format(time.RFC3339)})
	}
	if !s.Before.IsZero() {
		rows = append(rows, []string{"Failed before", s.Before.UTC().Format(time.RFC3339)})
	}
	if s.Limit > 0 {
		rows = append(rows, []string{"Limit", grouped(int(s.Limit))})
	}
	if u.Order.Action == replay.ActionReplay {
		rows = append(rows, settingRows(&u.Settings)...)
	}
	for _, part := range countParts(&u.Counts) {
		rows = append(rows, []string{strings.ToUpper(part.name[:1]) + part.name[1:], grouped(int(part.n))})
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	return lines(rows, 1) + againText(u.Causes, "")
}

func settingRows(s *replay.Settings) [][]string {
	rows := [][]string{{"Rate", "no limit"}, {"Most in flight", grouped(int(s.MaxInFlight))}}
	if s.Rate > 0 {
		rows[0][1] = strconv.FormatFloat(s.Rate, 'f', -1, 64) + " a second"
	}
	if s.Canary > 0 {
		text := fmt.Sprintf("%s, of which %s may fail again", grouped(int(s.Canary)), grouped(int(s.MaxFailed)))
		if s.CanaryWithin > 0 {
			text += ", within " + spell(s.CanaryWithin)
		}
		rows = append(rows, []string{"Canary", text})
	}
	if s.FailingPercent > 0 {
		rows = append(rows, []string{"Stop when", fmt.Sprintf("%d %% fail, after %s outcomes", s.FailingPercent, grouped(int(s.FailingAfter)))})
	}
	return rows
}

// countPart is a count with its name.
type countPart struct {
	name string
	n    int64
}

// countParts are the counts that say something: what became of the messages, and where the others are.
func countParts(c *replay.Counts) []countPart {
	parts := []countPart{
		{"staged", c.Staged},
		{"in flight", c.InFlight},
		{"retried", c.Retrying},
		{"handled", c.Handled},
		{"failed again", c.FailedAgain},
		{"dropped", c.Dropped},
		{"taken back", c.Recalled},
		{"deleted", c.Discarded},
		{"unknown", c.Unknown},
	}
	return slices.DeleteFunc(parts, func(p countPart) bool { return p.n == 0 })
}

// againText says of which causes messages have failed again.
func againText(causes map[string]int64, command string) string {
	ids := make([]string, 0, len(causes))
	for id := range causes {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a, b)) })
	var text strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&text, "  %s failed again with cause %s", grouped(int(causes[id])), plainLine(id))
		if command != "" {
			text.WriteString(": " + command + " --cause " + plainLine(id))
		}
		text.WriteString("\n")
	}
	return text.String()
}
