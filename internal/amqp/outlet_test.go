package amqp

import (
	"log/slog"
	"testing"
	"time"
)

func quiet() *outlet { return newOutlet(Destination{Key: "q"}, slog.New(slog.DiscardHandler)) }

func TestADestinationThatConfirmsNothingStaysInTroubleWhileNobodyWaitsForIt(t *testing.T) {
	o := quiet()
	o.note(time.Now(), ErrSilent)
	o.stall(true)
	if _, is := o.trouble(time.Now().Add(2 * forgetTime)); !is {
		t.Error("the trouble is forgotten, though nothing is published there")
	}
	o.works()
	if stalled, _ := o.stalled.get(); stalled {
		t.Error("nothing is published there, though a message was confirmed")
	}
}

func TestADestinationThatRefusesMessagesIsNotSilentAnyMore(t *testing.T) {
	c, requests := inHand(mark{messageID: "a"})
	requests[0].sent = time.Now().Add(-time.Minute)
	if _, err := c.look(time.Now(), false); err != nil {
		t.Fatal(err)
	}
	if stalled, _ := c.outlet.stalled.get(); !stalled {
		t.Fatal("not stalled")
	}
	c.confirm(1, false)
	if stalled, _ := c.outlet.stalled.get(); stalled {
		t.Error("nothing is published there for a minute, though the broker has answered all")
	}
}
