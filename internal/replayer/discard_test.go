package replayer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// discards are the options of one that discards the chosen messages.
func (r *rig) discards(undoFor time.Duration) Options {
	options := r.options()
	options.Order.Action, options.Order.UndoFor, options.Settings = replay.ActionDiscard, undoFor, nil
	return options
}

// noQueues says which queues of the replay are left.
func (r *rig) noQueues() {
	r.t.Helper()
	for _, queue := range []string{"async.replay." + id, "async.replay." + id + ".log"} {
		if _, err := testtransport.Connect(r.t, r.url).Channel().QueueDeclarePassive(queue, true, false, false, false, nil); err == nil {
			r.t.Errorf("the queue %s is left", queue)
		}
	}
}

func TestDiscard_HoldsWhatItTookUntilItIsFinal(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages)
	result, err := Run(t.Context(), r.discards(time.Hour))
	if c := result.Counts; err != nil || result.Phase != replay.Held || c.Staged != messages/2 || time.Until(result.UndoUntil) < 59*time.Minute {
		t.Fatalf("%+v, %v", result, err)
	}
	options := r.options()
	options.Order, options.Settings = nil, nil
	if result, err = Run(t.Context(), options); err != nil || result.Phase != replay.Held || result.Counts.Staged != messages/2 {
		t.Fatalf("it can still be undone: %+v, %v", result, err)
	}
	options.Final = true
	result, err = Run(t.Context(), options)
	if c := result.Counts; err != nil || result.Phase != replay.Completed || c.Discarded != messages/2 || c.Selected != messages/2 {
		t.Fatalf("%+v, %v", result, err)
	}
	r.noQueues()
	left := r.left()
	for n := range messages {
		if got := left[strconv.Itoa(n)]; got != n%2 {
			t.Errorf("message %d is %d times in the failure queue", n, got)
		}
	}
}

func TestDiscard_ThatIsUndoneRestoresEachMessageAsItWas(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 50
	r.fill(messages)
	before := r.whole()
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	options := r.options()
	options.Order, options.Settings, options.Cancel = nil, nil, true
	result, err := Run(t.Context(), options)
	if c := result.Counts; err != nil || result.Phase != replay.Cancelled || c.Recalled != messages/2 || c.Discarded != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	r.noQueues()
	after := r.whole()
	for name, text := range before {
		if after[name] != text {
			t.Errorf("message %s was\n%s, and is\n%s", name, text, after[name])
		}
	}
}

// whole takes what the failure queue has, puts it back, and returns each message as text.
func (r *rig) whole() map[string]string {
	r.t.Helper()
	found := map[string]string{}
	for _, d := range r.broker.TakeAll("async.failed") {
		delete(d.Headers, "x-delivery-count")
		delete(d.Headers, "x-acquired-count")
		p := amqp091.Publishing{
			MessageId: d.MessageId, Headers: d.Headers, Body: d.Body, DeliveryMode: d.DeliveryMode, Priority: d.Priority, Timestamp: d.Timestamp,
			ContentType: d.ContentType, Type: d.Type, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
		}
		found[d.MessageId] = fmt.Sprintf("%+v", p)
		r.broker.Publish("async.failed", d.RoutingKey, p)
	}
	return found
}

func TestDiscard_SurvivesAKill(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 1000 // a replayer that is killed may have had a whole window of them under way
	r.fill(messages)
	for _, k := range []kill{{pointConfirmed, 20}, {pointDiscard, 20}, {pointDiscarded, 20}, {pointGone, 20}, {pointSaved, 2}} {
		if result, killed := r.child(k.at, k.times, discardVariable+"=1"); !killed {
			t.Fatalf("it ended before it came to %s: %+v", k.at, result)
		}
	}
	result, _ := r.child("", 0, discardVariable+"=1")
	if c := result.Counts; result.Phase != replay.Completed || c.Discarded != messages/2 || c.Selected != messages/2 || c.Unknown != 0 {
		t.Errorf("%+v", result)
	}
	r.noQueues()
	if left := r.left(); len(left) != messages/2 {
		t.Errorf("%d messages are left", len(left))
	}
}

func TestUndo_SurvivesAKill(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 1000 // a replayer that is killed may have had a whole window of them under way
	r.fill(messages)
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	for _, deadly := range []point{pointTakeBack, pointTakenBack, pointTakeBackOut, pointGone} {
		if result, killed := r.child(deadly, 20, cancelVariable+"=1", resumeVariable+"=1"); !killed {
			t.Fatalf("it ended before it came to %s: %+v", deadly, result)
		}
	}
	result, _ := r.child("", 0, resumeVariable+"=1") // that it is cancelled is known
	if c := result.Counts; result.Phase != replay.Cancelled || c.Recalled != messages/2 || c.Discarded != 0 {
		t.Errorf("%+v", result)
	}
	r.noQueues()
	if left := r.left(); len(left) != messages {
		t.Errorf("%d messages are in the failure queue", len(left))
	}
}

func TestRun_LeavesNothingWhereSomebodyElseLooks(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(20)
	if _, err := r.broker.Channel().QueueDeclare("async.failed.lock", false, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), r.options()); !errors.Is(err, failurequeue.ErrLocked) {
		t.Errorf("got %v", err)
	}
	r.noQueues()
}

func TestRun_LeavesNothingWhereItIsLeftAtOnce(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(20)
	ctx, leave := context.WithTimeout(t.Context(), time.Second)
	defer leave()
	if _, err := Run(ctx, r.options()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	r.noQueues()
	if left := r.left(); len(left) != 20 {
		t.Errorf("%d messages are in the failure queue", len(left))
	}
}

func TestRun_LeavesNothingWhereTheFailureQueueMayNotBeRead(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(20)
	options := r.options()
	options.Check = func(context.Context) error { return failurequeue.ErrUnpinned }
	if _, err := Run(t.Context(), options); !errors.Is(err, failurequeue.ErrUnpinned) {
		t.Errorf("got %v", err)
	}
	r.noQueues()
}

func TestRun_EndsWhereTheLoginIsRefused(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	options := r.options()
	options.Target.Password = "wrong"
	if _, err := Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), "ACCESS_REFUSED") && !strings.Contains(err.Error(), "403") {
		t.Errorf("got %v", err)
	}
}

// Somebody purges the staging queue while its messages are deleted: nobody knows what became of them, and it ends all the same.
func TestDiscard_EndsWhereItsMessagesAreGone(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 20
	r.fill(messages)
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	if _, err := r.broker.Channel().QueuePurge("async.replay."+id, false); err != nil {
		t.Fatal(err)
	}
	options := r.discards(time.Hour)
	options.Final, options.SettleWithin = true, 3*time.Second
	result, err := Run(t.Context(), options)
	if err != nil || result.Phase != replay.Completed || result.Counts.Unknown != messages/2 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestRun_RefusesAnotherOrderThanTheOneItWasBegunWith(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(20)
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	options := r.discards(time.Hour)
	options.Order.Selection.Queues = []string{"test"}
	if _, err := Run(t.Context(), options); !errors.Is(err, ErrOtherOrder) {
		t.Errorf("got %v", err)
	}
}

// A replay whose log is gone is brought back as far as it is staged.
func TestCancel_TakesBackWhatIsStagedWithoutALog(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 20
	r.fill(messages)
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	if _, err := r.broker.Channel().QueueDelete("async.replay."+id+".log", false, false, false); err != nil {
		t.Fatal(err)
	}
	options := r.discards(time.Hour)
	if _, err := Run(t.Context(), options); err == nil {
		t.Fatal("it goes on")
	}
	if found, err := Show(t.Context(), options.Transport, id); err != nil || found.Running || found.Staged != messages/2 {
		t.Fatalf("%+v, %v", found, err)
	}
	options.Order, options.Cancel = nil, true
	result, err := Run(t.Context(), options)
	if err != nil || result.Phase != replay.Cancelled || result.Counts.Recalled != messages/2 {
		t.Fatalf("%+v, %v", result, err)
	}
	if left := r.left(); len(left) != messages {
		t.Errorf("%d messages are in the failure queue", len(left))
	}
}

func TestReplay_StopsWhenTooManyFail(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 200
	r.fill(messages) // the first of them fails again
	r.work()
	options := r.options()
	options.Settings.MaxInFlight, options.Settings.FailingPercent = 1, 20
	result, err := Run(t.Context(), options)
	if err != nil || result.Phase != replay.Stopped || result.Counts.Staged != messages/2-1 || result.Counts.FailedAgain != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	r.completes(messages, r.options())
}
