package amqp

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

const unreadableMark = "redrive-unreadable-x"

// inHand is a channel with messages in flight.
func inHand(marks ...mark) (*publishing, []*request) {
	c := &publishing{
		session: &publishSession{}, outlet: newOutlet(Destination{}, slog.New(slog.DiscardHandler)), unreadable: unreadableMark,
		byTag: map[uint64]*request{}, byMark: map[mark]*request{}, returns: make(chan amqp091.Return, 8),
	}
	var requests []*request
	for i, m := range marks {
		r := &request{message: &message.Message{}, mark: m, sent: time.Now(), result: make(chan error, 1)}
		c.byTag[uint64(i+1)], c.byMark[m] = r, r
		requests = append(requests, r)
	}
	return c, requests
}

func TestPublishing_ConfirmsNothingAfterAnUnknownReturn(t *testing.T) {
	c, requests := inHand(mark{messageID: "a"}, mark{messageID: "b"})
	c.returns <- amqp091.Return{Exchange: "async.return", RoutingKey: "gone", ReplyText: "NO_ROUTE", MessageId: "another"}
	c.confirm(1, true)
	c.confirm(2, true)
	if c.doubt == nil {
		t.Error("the channel goes on")
	}
	c.end()
	for _, r := range requests {
		if err := <-r.result; !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("one of them came back, and yet: %v", err)
		}
	}
}

func TestPublishing_TakesAnUnknownReturnForTheOnlyMessage(t *testing.T) {
	c, requests := inHand(mark{header: "1"})
	c.returns <- amqp091.Return{Exchange: "async.return", RoutingKey: "gone", ReplyText: "NO_ROUTE"}
	c.confirm(1, true)
	if err := <-requests[0].result; !errors.Is(err, ErrUnroutable) || c.doubt != nil {
		t.Errorf("the message came back, and yet: %v (doubt: %v)", err, c.doubt)
	}
}

func TestPublishing_KnowsAReturnByAnIDThatOneMessageHas(t *testing.T) {
	cases := []struct {
		name  string
		marks []mark
		doubt bool
	}{
		{"one of the id", []mark{{messageID: "a"}, {messageID: "b"}}, false},
		{"one of the id, though it is known by a header", []mark{{messageID: "a", header: "1"}, {messageID: "b"}}, false},
		{"two of the id", []mark{{messageID: "a"}, {messageID: "a", header: "1"}}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, requests := inHand(c.marks...)
			p.returns <- amqp091.Return{MessageId: "a", Headers: amqp091.Table{unreadableMark: true}}
			p.confirm(2, true)
			p.confirm(1, true)
			if (p.doubt != nil) != c.doubt {
				t.Fatalf("doubt: %v", p.doubt)
			}
			if c.doubt {
				return
			}
			if err := <-requests[0].result; !errors.Is(err, ErrUnroutable) {
				t.Errorf("it came back, and yet: %v", err)
			}
			if err := <-requests[1].result; err != nil {
				t.Errorf("the other one: %v", err)
			}
		})
	}
}

func TestPublishing_CountsNoSilenceWhileTheBrokerReadsNothing(t *testing.T) {
	c, requests := inHand(mark{messageID: "a"})
	requests[0].elsewhere = true
	look := func(after time.Duration) (stalled, over bool, answers int) {
		over, _ = c.look(time.Now().Add(after), false)
		stalled, _ = c.outlet.stalled.get()
		return stalled, over, len(requests[0].result)
	}
	c.session.block(true)
	requests[0].sent = time.Now().Add(-time.Hour)
	if stalled, over, answers := look(0); stalled || over || answers > 0 {
		t.Errorf("given up while the broker reads nothing: stalled %t, over %t, %d answers", stalled, over, answers)
	}
	c.session.block(false)
	if stalled, over, answers := look(stalledTime / 2); stalled || over || answers > 0 {
		t.Errorf("given up when the broker has just begun to read again: stalled %t, over %t, %d answers", stalled, over, answers)
	}
	if stalled, over, answers := look(overdueTime + time.Second); !stalled || over || answers != 1 {
		t.Errorf("silent for long after that: stalled %t, over %t, %d answers", stalled, over, answers)
	}
}

func TestPublishing_CountsNoMessageThatEndedItsChannel(t *testing.T) {
	c, _ := inHand(mark{messageID: "a"})
	c.session.link, c.alone = &link{conn: &amqp091.Connection{}}, true
	c.session.unanswered.Store(2)
	c.end()
	if left := c.session.unanswered.Load(); left != 1 {
		t.Errorf("%d messages are in flight, want the other one", left)
	}
}
