package replayer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func (r *rig) options() Options {
	return newOptions(r.url, r.management, slog.New(slog.NewTextHandler(r.t.Output(), nil)))
}

func (r *rig) completes(messages int, options Options) {
	r.t.Helper()
	result, err := Run(r.t.Context(), options)
	if err != nil || result.Phase != replay.Completed {
		r.t.Fatalf("%+v, %v", result, err)
	}
	r.judge(messages, result)
}

func TestReplay_GoesOnAfterItWasLeft(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages)
	r.work()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	options := r.options()
	options.Settings.Rate = 50
	options.Progress = func(_ replay.Phase, c replay.Counts) {
		if c.Handled > 20 {
			leave()
		}
	}
	result, err := Run(ctx, options)
	if !errors.Is(err, context.Canceled) || result.Phase != replay.Releasing {
		t.Fatalf("%+v, %v", result, err)
	}
	options = r.options()
	options.Order, options.Settings = nil, nil
	var first sync.Once
	options.Progress = func(_ replay.Phase, c replay.Counts) {
		first.Do(func() {
			if c.Handled+c.InFlight+c.FailedAgain < 20 || c.Staged < 20 {
				t.Errorf("it does not go on where it was: %+v", c)
			}
		})
	}
	r.completes(messages, options)
}

func TestReplay_ThatIsNotThereIsNotBegun(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	options := r.options()
	options.Order, options.Settings = nil, nil
	if _, err := Run(t.Context(), options); !errors.Is(err, ErrNoReplay) {
		t.Errorf("got %v", err)
	}
	if _, err := r.broker.Channel().QueueDeclarePassive("async.replay."+id, true, false, false, false, nil); err == nil {
		t.Error("it has a queue all the same")
	}
}

func TestReplay_StopsAtACanaryThatFailsAndGoesOnWhenMoreMayFail(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages) // the first of them fails again
	r.work()
	options := r.options()
	options.Settings.Canary = 10
	result, err := Run(t.Context(), options)
	if err != nil || result.Phase != replay.Stopped || result.Counts.Staged != 90 || result.Causes["0badcafe"] != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	options = r.options()
	options.Settings.Canary, options.Settings.MaxFailed = 10, 1
	r.completes(messages, options)
}

// A second replayer waits until the first one is gone.
func TestReplay_IsCarriedOutByOneAtATime(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages)
	r.work()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	began, second := make(chan struct{}), make(chan Result)
	first := r.options()
	first.Settings.Rate = 20
	var once sync.Once
	first.Progress = func(_ replay.Phase, c replay.Counts) {
		if c.Handled > 0 {
			once.Do(func() { close(began) })
		}
	}
	go func() { _, _ = Run(ctx, first) }()
	<-began
	go func() {
		options := r.options()
		options.Progress = func(replay.Phase, replay.Counts) {
			if ctx.Err() == nil {
				t.Error("both are at work")
			}
		}
		result, err := Run(t.Context(), options) //nolint:contextcheck // it outlasts the first one
		if err != nil {
			t.Error(err)
		}
		second <- result
	}()
	time.Sleep(time.Second)
	leave()
	if again := r.judge(messages, <-second); again > 0 {
		t.Errorf("%d calls beyond one for each message", again)
	}
}

func TestReplay_LosesNothingWhereTheStagingQueueIsDeletedWhileItSelects(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 100
	r.fill(messages)
	r.work()
	options := r.options()
	var once sync.Once
	options.at = func(p point) {
		if p == pointPublish {
			once.Do(func() { r.broker.Channel().QueueDelete("async.replay."+id, false, false, false) }) //nolint:errcheck // the result tells
		}
	}
	if _, err := Run(t.Context(), options); err == nil {
		t.Error("it does not say that its queue is gone")
	}
	r.completes(messages, r.options())
}

// What the broker moved to the failure queue has no event: it is found there.
func TestReplay_FindsWhatEndedWithoutAnEvent(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 20
	r.fill(messages)
	options := r.options()
	options.SettleWithin = 3 * time.Second
	done := make(chan Result)
	go func() {
		result, err := Run(t.Context(), options)
		if err != nil {
			t.Error(err)
		}
		done <- result
	}()
	testtransport.Eventually(t, "all to be released", func() bool { return r.broker.Ready("test") == messages/2 })
	for n, d := range r.broker.TakeAll("test") {
		if n > 0 { // one is purged by somebody
			r.broker.Publish("async.failed", "", amqp091.Publishing{MessageId: d.MessageId, Headers: d.Headers, Body: d.Body})
		}
	}
	result := <-done
	if c := result.Counts; result.Phase != replay.Completed || c.FailedAgain != messages/2-1 || c.Unknown != 1 {
		t.Errorf("%+v", result)
	}
}

func TestReplay_LeavesTheRestInItsOrder(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 500
	r.fill(messages)
	options := r.options()
	result, err := Run(t.Context(), func() Options {
		options.Settings.Canary = 1
		options.Settings.CanaryWithin = time.Second
		return options
	}())
	if err != nil || result.Phase != replay.Stopped || result.Counts.InFlight != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	for n, d := range r.broker.TakeAll("async.failed") {
		if want := 2*n + 1; string(d.Body) != "body "+d.MessageId || d.Headers[message.HeaderFailedAt] != int64(want)+1 {
			t.Fatalf("place %d has message %s: %v", n, d.MessageId, d.Headers)
		}
	}
}
