package worker

import (
	"testing"

	"redrive.dev/redrive/internal/compile"
)

func TestQueueOf_KnowsTheQueuesOfProgramsBefore(t *testing.T) {
	programOf := func(before *program, queues ...compile.Queue) *program {
		p := &program{config: compile.Config{Queues: queues}, queues: map[string]*compile.Queue{}, former: map[string]*compile.Queue{}}
		p.consume()
		p.follow(before)
		return p
	}
	orders := compile.Queue{Name: "orders", Policy: "patient", Quarantine: "orders.quarantine", Standin: "orders.migrating"}
	mails := compile.Queue{Name: "mails", Policy: "once"}
	first := programOf(nil, orders, mails)
	onHold := orders
	onHold.Hold, onHold.Policy = "its order would break", "new"
	migrated := orders
	migrated.Standin = ""
	for _, c := range []struct {
		what, name    string
		p             *program
		queue, policy string
		ours          bool
	}{
		{"a queue", "orders", first, "orders", "patient", true},
		{"its stand-in", "orders.migrating", first, "orders", "patient", true},
		{"a queue that is not consumed for now", "orders", programOf(first, onHold, mails), "orders", "new", true},
		{"the stand-in of one", "orders.migrating", programOf(first, onHold, mails), "orders", "new", true},
		{"a stand-in whose migration is over", "orders.migrating", programOf(first, migrated, mails), "orders", "patient", true},
		{"a queue that went to another group", "orders", programOf(first, mails), "orders", "patient", false},
		{"its stand-in, two programs later", "orders.migrating", programOf(programOf(first, mails), mails), "orders", "patient", false},
	} {
		queue, ours := c.p.queueOf(c.name)
		if queue.Name != c.queue || queue.Policy != c.policy || ours != c.ours || queue.Quarantine != orders.Quarantine {
			t.Errorf("%s is %+v, ours %v", c.what, queue, ours)
		}
	}
}
