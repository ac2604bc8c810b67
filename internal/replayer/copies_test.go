package replayer

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
)

// alike puts messages into the failure queue that are the same in all but their headers, as RabbitMQ moves there what has no queue.
func (r *rig) alike(messages int, isChosen func(n int) bool) {
	r.t.Helper()
	var failed []amqp091.Publishing
	for n := range messages {
		failed = append(failed, amqp091.Publishing{MessageId: "tick", Headers: amqp091.Table{"chosen": isChosen(n), "n": int64(n)}})
	}
	r.broker.Publish("async.failed", "test", failed...)
}

// numbers takes all messages of a queue and says how often each number is there.
func (r *rig) numbers(queue string) map[int64]int {
	r.t.Helper()
	found := map[int64]int{}
	for _, d := range r.broker.TakeAll(queue) {
		n, _ := d.Headers["n"].(int64)
		found[n]++
	}
	return found
}

// A producer gives each of its messages the same ID and body. RabbitMQ moves them to the failure queue without a mark of its own.
func TestReplay_TakesNoMessageForACopyThatIsOnlyLikeOne(t *testing.T) {
	const messages = 60
	tests := map[string]struct {
		isChosen func(n int) bool
		killed   bool
	}{
		"all are chosen":               {func(int) bool { return true }, false},
		"one is chosen":                {func(n int) bool { return n == 0 }, false},
		"killed while it selects":      {func(int) bool { return true }, true},
		"killed while it selects some": {func(n int) bool { return n%2 == 0 }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, testbroker.Shared(t))
			r.alike(messages, tt.isChosen)
			if tt.killed {
				if _, killed := r.child(pointConfirmed, 20); !killed {
					t.Fatal("it has ended")
				}
			}
			options := r.options()
			options.SettleWithin = 3 * time.Second
			result, err := Run(t.Context(), options) // nobody handles them: none has an outcome
			if err != nil || result.Phase != replay.Completed {
				t.Fatalf("%+v, %v", result, err)
			}
			released, left := r.numbers("test"), r.numbers("async.failed")
			for n := range messages {
				at := int64(n)
				switch {
				case !tt.isChosen(n) && (released[at] != 0 || left[at] != 1):
					t.Errorf("message %d was not chosen, and is %d times in its queue and %d times in the failure queue", n, released[at], left[at])
				case tt.isChosen(n) && (released[at] == 0 || released[at] > 1 && !tt.killed):
					t.Errorf("message %d is %d times in its queue", n, released[at])
				}
			}
		})
	}
}
