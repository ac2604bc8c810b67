package controllers_test

import (
	"slices"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// told are the queues of which the published configuration tells workers that they hold messages for them.
func (w *world) told() (queues []string) {
	w.Helper()
	for _, configMap := range w.configMaps() {
		config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
		must(w.T, err)
		for _, queue := range config.Queues {
			queues = append(queues, queue.Holding()...)
		}
	}
	return queues
}

// holdRights does something, and holds the next write of a user's rights that follows from it. The returned function cuts the
// connection of that write, which the broker never sees: the operator has to try again.
func (w *world) holdRights(trigger func()) (letGo func()) {
	w.Helper()
	caught := w.proxy.catch("PUT", "^/api/permissions/", false)
	trigger()
	testtransport.Eventually(w, "the user's rights to be written", func() bool {
		select {
		case <-caught:
			return true
		default:
			return false
		}
	})
	return w.proxy.CloseClientConnections
}

// The broker would refuse workers that are told of a queue too early, or that still know of one too late.
func TestScopedUser_MayReadWhatAMigrationTellsWorkersOf(t *testing.T) {
	t.Parallel()
	const before = `^(lost|test)(|\.quarantine)$`
	for name, tt := range map[string]struct {
		change func(*v1alpha1.Queue)
		// comes is the queue that takes over first, and goes the one that is gone at the end.
		comes, goes   string
		during, after string
	}{
		"a queue with other arguments": {
			change: func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) }, comes: "test.migrating", goes: "test.migrating",
			during: `^((test)(|\.migrating|\.quarantine)|(lost)(|\.quarantine))$`, after: before,
		},
		"a queue of another name": {
			change: func(q *v1alpha1.Queue) { q.Name, q.PreviousNames = "orders", []string{"test"} }, comes: "orders", goes: "test",
			during: `^(lost|orders|test)(|\.quarantine)$`, after: `^(lost|orders)(|\.quarantine)$`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.scopedReady()
			user := w.loggedInAs(transport)
			w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"}) // so that the migration waits
			w.awaitCount("test", 1)

			letGo := w.holdRights(func() {
				edit(w, transport, func(t *v1alpha1.Transport) { tt.change(&t.Spec.Queues[0]) })
			})
			if told, rights := w.told(), w.rightsOf(user); slices.Contains(told, tt.comes) || !slices.Equal(rights, w.rights(before)) {
				t.Errorf("with the rights %+v workers are told of %v", rights, told)
			}
			letGo()
			testtransport.Eventually(t, "workers to be told of "+tt.comes, func() bool { return slices.Contains(w.told(), tt.comes) })
			if rights := w.rightsOf(user); !slices.Equal(rights, w.rights(tt.during)) {
				t.Errorf("the rights are %+v", rights)
			}
			testtransport.Eventually(t, tt.comes+" to be made", func() bool { return w.hasQueue(tt.comes) })
			worker := w.logIn(transport)
			_, err := worker.Channel().Consume(tt.comes, "", false, false, false, false, nil)
			must(t, err)
			must(t, worker.Close())

			letGo = w.holdRights(func() { w.amqp.Take("test") })
			if told, rights := w.told(), w.rightsOf(user); slices.Contains(told, tt.goes) || !slices.Equal(rights, w.rights(tt.during)) {
				t.Errorf("with the rights %+v workers are told of %v", rights, told)
			}
			letGo()
			testtransport.Eventually(t, "no more rights than are needed", func() bool { return slices.Equal(w.rightsOf(user), w.rights(tt.after)) })
			w.awaitReady(transport)
			if w.hasQueue(tt.goes) || w.loggedInAs(transport) != user {
				t.Errorf("%s is there: %v; the user is %q", tt.goes, w.hasQueue(tt.goes), w.loggedInAs(transport))
			}
		})
	}
}
