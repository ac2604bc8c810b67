package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/topology"
)

// replayPlan is what an order would do, counted in the failure queue.
type replayPlan struct {
	looked

	order    *replay.Order
	observed topology.Observed
	// queues counts the messages by their work queues, and left those that stay where they are, since nothing leads into theirs.
	queues, left map[string]int
	causes       deadletter.Causes
}

// plannedCauses is how many causes a plan shows.
const plannedCauses = 10

// wayInto are the queues that get what a replay sends back to a work queue; none where the queue is no longer one of the Transport.
func wayInto(observed topology.Observed, names compile.Names, queue string) (found []topology.QueueState) {
	for _, binding := range observed.Bindings {
		if binding.ToExchange || binding.Source != names.Return() || binding.RoutingKey != queue {
			continue
		}
		if state, exists := observed.Queues[binding.Destination]; exists {
			found = append(found, state)
		}
	}
	return found
}

// names are the work queues to which something goes.
func (p *replayPlan) names() []string { return slices.Sorted(maps.Keys(p.queues)) }

func (p *replayPlan) verb() string {
	if p.order.Action == replay.ActionDiscard {
		return "discard"
	}
	return "replay"
}

func (p *replayPlan) question() string {
	switch {
	case p.order.Action == replay.ActionReplay:
		return "Replay " + messages(p.chosen) + "?"
	case p.order.UndoFor == 0:
		return "Delete " + messages(p.chosen) + " for good?"
	default:
		return "Discard " + messages(p.chosen) + "?"
	}
}

func (p *replayPlan) text(settings *replay.Settings) string {
	text := fmt.Sprintf("Plan: %s %s of %s in %s, as of %s (%.1f s)\n", p.verb(), grouped(p.chosen), messages(p.all), plainLine(p.look.names.FailureQueue()),
		p.now.Format(time.TimeOnly), p.took.Seconds())
	if p.chosen == 0 && len(p.left) == 0 {
		return text + "Nothing to do.\n"
	}
	text += p.queuesText()
	if p.chosen == 0 {
		return text + "Nothing to do.\n"
	}
	causes := p.causes.List()
	text += causesText(causes[:min(len(causes), plannedCauses)], p.now)
	if more := len(causes) - plannedCauses; more > 0 {
		text += fmt.Sprintf("and %s more causes: redrive failed groups\n", grouped(more))
	}
	if p.order.Action == replay.ActionReplay {
		return text + paceText(settings, p.chosen)
	}
	if p.order.UndoFor == 0 {
		return text + "They are deleted at once, and cannot be taken back.\n"
	}
	return text + fmt.Sprintf("They can be taken back for %s.\n", spell(p.order.UndoFor))
}

// queuesText is where the messages go, and what a person should know of it.
func (p *replayPlan) queuesText() string {
	replays := p.order.Action == replay.ActionReplay
	head := []string{headQueue, "MESSAGES"}
	if replays {
		head = append(head, "CONSUMERS", "NOTE")
	}
	rows := make([][]string, 0, 1+len(p.queues)+len(p.left))
	rows = append(rows, head)
	for _, queue := range p.names() {
		row := []string{dash(queue), grouped(p.queues[queue])}
		if replays {
			var consumers int64
			for _, state := range wayInto(p.observed, p.look.names, queue) {
				consumers += state.Consumers
			}
			note := ""
			if consumers == 0 {
				note = "no worker consumes it now: they wait there until one does"
			}
			row = append(row, strconv.FormatInt(consumers, 10), note)
		}
		rows = append(rows, row)
	}
	for _, queue := range slices.Sorted(maps.Keys(p.left)) {
		rows = append(rows, []string{dash(queue), grouped(p.left[queue]), "-", "no queue of the Transport: they stay where they are"})
	}
	return lines(rows, 3)
}

// paceText says how fast the messages go back.
func paceText(s *replay.Settings, chosen int) string {
	var text strings.Builder
	if s.Canary > 0 {
		may := "none of them has failed again"
		if s.MaxFailed > 0 {
			may = fmt.Sprintf("at most %s of them have failed again", grouped(int(s.MaxFailed)))
		}
		within := ""
		if s.CanaryWithin > 0 {
			within = " within " + spell(s.CanaryWithin)
		}
		fmt.Fprintf(&text, "First %s, and the others when these have an outcome%s and %s. ", grouped(int(s.Canary)), within, may)
	}
	if s.Rate > 0 {
		fmt.Fprintf(&text, "At most %s a second, %s in flight", strconv.FormatFloat(s.Rate, 'f', -1, 64), grouped(int(s.MaxInFlight)))
		if takes := time.Duration(float64(chosen) / s.Rate * float64(time.Second)).Round(time.Second); takes > 0 {
			text.WriteString(": at least " + spell(takes))
		}
		text.WriteString(".")
	} else {
		fmt.Fprintf(&text, "At most %s in flight.", grouped(int(s.MaxInFlight)))
	}
	if s.FailingPercent > 0 {
		fmt.Fprintf(&text, " It stops if %d %% fail, after %s outcomes.", s.FailingPercent, grouped(int(s.FailingAfter)))
	}
	return text.String() + "\n"
}

// spell is a duration without the zeros at its end.
func spell(d time.Duration) string {
	text := d.String()
	if short, is := strings.CutSuffix(text, "m0s"); is {
		text = short + "m"
	}
	if short, is := strings.CutSuffix(text, "h0m"); is {
		text = short + "h"
	}
	return text
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return grouped(n) + " messages"
}
