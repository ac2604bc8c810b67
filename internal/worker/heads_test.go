package worker

import (
	"strconv"
	"testing"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
)

// returns lets a message come, with an id and no count of the broker's, and go back after an attempt.
func (h *orderedQueue) returns(id string, redelivered bool) (attempts int64, p *redeliveryState) {
	j := &job{
		delivery: &amqp.Delivery{Message: message.Message{MessageID: id, Redelivered: redelivered}},
		state:    message.State{ID: id}, attempted: true,
	}
	p = h.restore(j)
	attempts = j.state.History.Attempts
	p.remember(j, outcome{kind: returned})
	return attempts, p
}

// A classic queue without a single active consumer gives what one worker returns to another, which has returned something too.
func TestOrderedQueue_CountsAttemptsOfMessagesThatComeInTurns(t *testing.T) {
	h := newOrderedQueues().of("test")
	for round := range int64(4) {
		for _, id := range []string{"a", "b", "c"} {
			if attempts, _ := h.returns(id, round > 0); attempts != round {
				t.Errorf("%s comes with %d attempts, want %d", id, attempts, round)
			}
		}
	}
}

func TestOrderedQueue_GivesNoMessageTheAttemptsOfOneThatIsDone(t *testing.T) {
	h := newOrderedQueues().of("test")
	h.returns("a", false)
	_, p := h.returns("a", true)
	p.forget()
	if attempts, _ := h.returns("a", true); attempts != 0 {
		t.Errorf("%d attempts, want none", attempts)
	}
}

func TestOrderedQueue_ForgetsADoneMessageWhenTheNextComes(t *testing.T) {
	h := newOrderedQueues().of("test")
	for i := range 5 {
		_, p := h.returns(strconv.Itoa(i), false)
		p.forget()
	}
	if len(h.pasts) != 1 || h.pasts[0].id != "4" {
		t.Errorf("it remembers %d messages, the latest of them %s", len(h.pasts), h.pasts[0].id)
	}
}

func TestOrderedQueue_RemembersABoundedNumber(t *testing.T) {
	h := newOrderedQueues().of("test")
	for i := range 2 * maxPasts {
		h.returns(strconv.Itoa(i), false)
	}
	if len(h.pasts) != maxPasts {
		t.Errorf("it remembers %d", len(h.pasts))
	}
	last, _ := h.returns(strconv.Itoa(2*maxPasts-1), true)
	first, _ := h.returns("0", true)
	if last != 1 || first != 0 {
		t.Errorf("the last one has %d attempts, the first one %d; want 1 and none", last, first)
	}
}

// A message that comes again would have its whole time once more.
func TestOrderedQueue_KeepsTheDeadlineOfAMessageThatReturns(t *testing.T) {
	h, now := newOrderedQueues().of("test"), time.Now()
	for again := range 3 {
		j := &job{
			delivery: &amqp.Delivery{Message: message.Message{MessageID: "a", Redelivered: again > 0}},
			state:    message.State{ID: "a", Deadline: now.Add(time.Duration(again) * time.Minute)},
		}
		h.restore(j).remember(j, outcome{kind: returned})
		if !j.state.Deadline.Equal(now) {
			t.Errorf("delivery %d has the deadline %s, want %s", again+1, j.state.Deadline, now)
		}
	}
}

// RabbitMQ 4.3 need not count that a message goes back; others do, and so does it where a session ends instead.
func TestOrderedQueue_TakesNoReturnForAnAttemptWhoeverCountsIt(t *testing.T) {
	const attempts, returns = 2, 4
	for name, c := range map[string]struct{ counts, unread int64 }{
		"a broker that counts it":                       {1, 0},
		"one that does not":                             {0, 0},
		"one that does, and sessions that end besides":  {3, 2},
		"one that does not, and sessions that end then": {2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newOrderedQueues().of("test")
			for n := range int64(returns) {
				counted := attempts + n*c.counts
				j := &job{
					delivery: &amqp.Delivery{Message: message.Message{Redelivered: true, Headers: map[string]any{"x-delivery-count": counted}}},
					state:    message.State{ID: "a"},
				}
				if n > 0 {
					h.unread.Add(c.unread)
				}
				p := h.restore(j)
				if j.state.History.Attempts != attempts {
					t.Errorf("delivery %d has %d attempts, want %d", n+1, j.state.History.Attempts, attempts)
				}
				p.remember(j, outcome{kind: returned})
			}
		})
	}
}
