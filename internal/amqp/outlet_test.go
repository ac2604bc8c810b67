package amqp

import (
	"log/slog"
	"testing"
	"time"
)

func quiet() *outlet { return newOutlet(Destination{Key: "q"}, slog.New(slog.DiscardHandler)) }

func TestOutlet_StaysInTroubleUntilSomethingIsConfirmed(t *testing.T) {
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

func TestOutlet_IsNotSilentOnceItRefusesMessages(t *testing.T) {
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

// A message whose confirm does not come held all others of its destination for five minutes, once those behind it were all confirmed.
func TestOutlet_IsNotSilentWhileItConfirmsLaterMessages(t *testing.T) {
	cases := map[string]struct {
		window    int
		confirmed uint64
		stalled   bool
	}{
		"a later one was confirmed, and there is room": {window: 3, confirmed: 3},
		"a later one was confirmed, and there is none": {window: 2, confirmed: 3, stalled: true},
		"only an earlier one was confirmed":            {window: 3, confirmed: 1, stalled: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, requests := inHand(mark{messageID: "a"}, mark{messageID: "b"}, mark{messageID: "c"})
			c.window = tc.window
			for i, r := range requests {
				r.sent = time.Now().Add(time.Duration(i)*time.Second - time.Minute)
			}
			c.outlet.window, c.outlet.calm = tc.window, 8 // which keeps it
			c.confirm(tc.confirmed, true)
			if over, err := c.look(time.Now(), false); over || err != nil {
				t.Fatal(over, err)
			}
			if c.outlet.isStalled() != tc.stalled {
				t.Errorf("stalled: %t, want %t", !tc.stalled, tc.stalled)
			}
			if over, err := c.look(time.Now().Add(recycleTime), false); !over || err == nil {
				t.Error("the message waits for its confirm for good")
			}
		})
	}
}
