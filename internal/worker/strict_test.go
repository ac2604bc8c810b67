package worker_test

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

func strict(onFailure v1alpha1.OnFailure) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict, OnFailure: onFailure}
	}
}

// order is that of the calls, by message and attempt.
func (p *partner) order() []string {
	var order []string
	for _, got := range p.got() {
		order = append(order, got.header.Get("Redrive-Message-Id")+got.header.Get("Redrive-Attempt"))
	}
	return order
}

func letters(ids ...string) []amqp091.Publishing {
	all := make([]amqp091.Publishing, len(ids))
	for i, id := range ids {
		all[i] = amqp091.Publishing{MessageId: id}
	}
	return all
}

func TestStrict_TriesAMessageInItsPlaceAndThenGoesOn(t *testing.T) {
	p := newPartner(t, func(r *http.Request, attempt int) int {
		switch id := r.Header.Get("Redrive-Message-Id"); {
		case id == "b" && attempt < 3:
			return 502
		case id == "c":
			return 502
		default:
			return 200
		}
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(letters("a", "b", "c", "d")...)
	failed := r.Take("async.failed")
	testtransport.Eventually(t, "the last message", func() bool { return len(p.got()) == 8 })
	if want := []string{"a1", "b1", "b2", "b3", "c1", "c2", "c3", "d1"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
	if failed.MessageId != "c" || text(t, failed.Headers, "redrive-reason") != "MaxRetries" || failed.Headers["redrive-attempts"] != int64(3) {
		t.Errorf("failed: %s %v", failed.MessageId, failed.Headers)
	}
	for i, got := range p.got() {
		if i > 0 && got.header.Get("Redrive-Attempt") != "1" && got.at.Sub(p.got()[i-1].at) < 200*time.Millisecond {
			t.Errorf("call %d came %s after the one before", i+1, got.at.Sub(p.got()[i-1].at))
		}
	}
}

func TestStrict_AttemptsOutliveTheWorker(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(300*time.Millisecond, 300*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "the first attempt", func() bool { return len(p.got()) == 1 })
	r.stop()
	r.start(nil)
	testtransport.Eventually(t, "both failed", func() bool { return r.Ready("async.failed") == 2 })
	if want := []string{"a1", "a2", "a3", "b1", "b2", "b3"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}

func TestStrict_KeepsTheOrderWhenOneOfTwoWorkersStops(t *testing.T) {
	const messages = 60
	p := newPartner(t, func(*http.Request, int) int {
		time.Sleep(10 * time.Millisecond)
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), strict(v1alpha1.OnFailureContinue))
	first := r.stop
	r.start(nil)
	r.publish(numbered(messages, "a", "")...)
	testtransport.Eventually(t, "some calls", func() bool { return len(p.got()) >= 10 })
	first()
	testtransport.Eventually(t, "all calls", func() bool { return r.Ready(testtransport.Queue) == 0 && len(p.got()) >= messages })
	r.stop()
	var want []string
	for _, m := range numbered(messages, "a", "") {
		want = append(want, m.MessageId+"1")
	}
	if !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want each message once, in order", p.order())
	}
}

func TestStrict_BlocksUntilItsPolicyLetsItGoOn(t *testing.T) {
	var works atomic.Bool
	p := newPartner(t, func(*http.Request, int) int {
		if works.Load() {
			return 200
		}
		return 502
	})
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond), strict(v1alpha1.OnFailureBlock))
	r.publish(letters("a", "b")...)
	blocked := func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Reason == v1alpha1.ReasonQueueBlocked && troubles[0].Subject == testtransport.Queue
	}
	testtransport.Eventually(t, "the queue to block", blocked)
	if want := []string{"a1", "a2"}; !slices.Equal(p.order(), want) || r.Ready("async.failed") != 0 {
		t.Errorf("calls %v, %d failed; want %v and none", p.order(), r.Ready("async.failed"), want)
	}
	// A worker that is replaced finds it blocked, too, after some more tries at most.
	r.stop()
	r.start(nil)
	testtransport.Eventually(t, "the queue to block again", blocked)
	if slices.ContainsFunc(p.order(), func(call string) bool { return call[0] == 'b' }) {
		t.Errorf("calls %v: the next message overtook", p.order())
	}
	works.Store(true)
	config := r.config
	more := testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond)
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": more}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
	if len(r.worker.Status().Troubles) != 0 {
		t.Errorf("troubles %v", r.worker.Status().Troubles)
	}
}

func TestStrict_FailsABlockedMessageWhenTheQueueIsToGoOn(t *testing.T) {
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") == "a" {
			return 422
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(), strict(v1alpha1.OnFailureBlock))
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "the queue to block", func() bool { return len(r.worker.Status().Troubles) == 1 })
	config := r.config
	config.Queues = slices.Clone(config.Queues)
	config.Queues[0].Strict = v1alpha1.OnFailureContinue
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	if failed := r.Take("async.failed"); failed.MessageId != "a" {
		t.Errorf("%s failed", failed.MessageId)
	}
	testtransport.Eventually(t, "the next one handled", func() bool { return r.handled() == 1 })
}

func TestStrict_HandlesNoMessageTwiceAtATimeAfterACut(t *testing.T) {
	var calls, running, beside atomic.Int64
	release := make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		if running.Add(1) > 1 {
			beside.Add(1)
		}
		defer running.Add(-1)
		switch calls.Add(1) {
		case 1:
			<-release
		case 2:
			return 502
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "the first call", func() bool { return len(p.got()) == 1 })
	sessions := func() float64 { return r.counted("redrive_connections_total") }
	stale := func() float64 { return r.counted("redrive_messages_handled_total", "outcome", "stale") }
	for stale() < 2 { // what comes again and waits for the call has made no attempt, however often its session ends
		before := sessions()
		r.proxy.Cut()
		testtransport.Eventually(t, "new sessions", func() bool { return sessions() > before && r.worker.Ready() == nil })
		testtransport.Eventually(t, "the message to come again", func() bool { return r.Ready("test") == 1 })
	}
	close(release)
	testtransport.Eventually(t, "the last call", func() bool { return len(p.got()) == 4 })
	r.stop()
	if want := []string{"a1", "a2", "a3", "b1"}; !slices.Equal(p.order(), want) || beside.Load() != 0 {
		t.Errorf("calls %v, %d beside another; want %v and none", p.order(), beside.Load(), want)
	}
}

func TestStrict_GivesAWaitingMessageBackAndMakesRoomForOthers(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureContinue)(tr)
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "free", BindingKeys: []string{"free"}})
		tr.Spec.Broker.ConsumerTimeout = v1alpha1.NewDuration(10 * time.Second)
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Second)
		tr.Spec.Workers[0].Concurrency = new(int32(1))
		limitedTo(v1alpha1.RateLimit{
			Name: "partner", PerSecond: intstr.FromString("0.02"), Burst: new(int32(1)), Key: new("message.headers.partner"),
		})(tr)
	})
	r.publish(numbered(2, "partner", "slow")...)
	testtransport.Eventually(t, "the first", func() bool { return r.handled() == 1 })
	for _, partner := range []string{"a", "b", "c"} {
		r.Publish("async", "free", numbered(1, "partner", partner)...)
	}
	testtransport.Eventually(t, "the other queue's messages", func() bool { return r.handled() == 4 })
	testtransport.Eventually(t, "the one that waits to go back", func() bool {
		return r.counted("redrive_messages_handled_total", "outcome", "returned") > 0
	})
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
}

func TestStrict_BlockedQueueTakesUpAPolicyThatChangedMeanwhile(t *testing.T) {
	var works atomic.Bool
	p := newPartner(t, func(*http.Request, int) int {
		if works.Load() {
			return 200
		}
		return 502
	})
	r := newRig(t, p, testtransport.Explicit(), strict(v1alpha1.OnFailureBlock))
	r.publish(letters("a", "b")...)
	blocked := func() bool { return len(r.worker.Status().Troubles) == 1 }
	testtransport.Eventually(t, "the queue to block", blocked)
	r.proxy.Refuse(true)
	r.proxy.Cut()
	testtransport.Eventually(t, "the session to end", func() bool { return !blocked() })
	works.Store(true)
	config := r.config
	config.Policies = map[string]v1alpha1.RetryPolicySpec{
		"policy": testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond),
	}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	r.proxy.Refuse(false)
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
}

func TestStrict_KeepsABlockedMessageWhenItsQueueChangesGroups(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureBlock)(tr)
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "free", BindingKeys: []string{"free"}})
	})
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "the queue to block", func() bool { return len(r.worker.Status().Troubles) == 1 })
	config := r.config
	config.Queues = config.Queues[1:]
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "both in their queue", func() bool { return r.Ready(testtransport.Queue) == 2 })
	if failed := r.Ready("async.failed"); failed != 0 || len(r.worker.Status().Troubles) != 0 {
		t.Errorf("%d messages failed, troubles %v", failed, r.worker.Status().Troubles)
	}
}

func TestStrict_TakesNoInterruptedMessageForPoison(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(), strict(v1alpha1.OnFailureContinue))
	r.stop()
	r.publish(letters("a")...)
	for range 7 { // more often than its retries and crashes account for
		r.interrupt(testtransport.Queue)
	}
	r.start(nil)
	testtransport.Eventually(t, "the message handled", func() bool { return r.handled() == 1 })
	r.stop()
	r.publish(letters("b")...)
	for range 14 { // as one does that brings down each worker
		r.interrupt(testtransport.Queue)
	}
	r.start(nil)
	if failed := r.Take("async.failed"); failed.MessageId != "b" || text(t, failed.Headers, "redrive-reason") != "PoisonCrash" {
		t.Errorf("%s failed with %v", failed.MessageId, failed.Headers)
	}
	if want := []string{"a8"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}

// interrupt receives the first message of a queue and ends the session.
func (r *rig) interrupt(queue string) {
	r.t.Helper()
	conn, err := amqp091.Dial(r.url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	channel, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-deliveries:
	case <-time.After(testtransport.Patience):
		r.t.Fatalf("waited for a message in %s", queue)
	}
}

func TestHolding_StopsAQueueThatThenGoesOnInOrder(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(), strict(v1alpha1.OnFailureContinue))
	r.publish(letters("a")...)
	testtransport.Eventually(t, "the first handled", func() bool { return r.handled() == 1 })
	free := r.config
	held, _ := free.Holding(map[string]string{testtransport.Queue: "its order would break"})
	if err := r.worker.Reload(held); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "nobody consumes", func() bool {
		q, err := r.Channel().QueueDeclarePassive(testtransport.Queue, true, false, false, false, nil)
		return err == nil && q.Consumers == 0
	})
	r.publish(letters("b", "c")...)
	testtransport.Eventually(t, "they wait", func() bool { return r.Ready(testtransport.Queue) == 2 })
	if err := r.worker.Ready(); err != nil {
		t.Errorf("the worker is not ready: %v", err)
	}
	if told := r.worker.Status().Troubles; len(told) != 1 || told[0].Reason != "QueueHeld" || told[0].Subject != testtransport.Queue ||
		told[0].Message != `queue "test" is not consumed: its order would break` || r.counted("redrive_queue_held") != 1 {
		t.Errorf("it tells of %+v, and redrive_queue_held is %v", told, r.counted("redrive_queue_held"))
	}
	if err := r.worker.Reload(free); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the rest handled", func() bool { return r.handled() == 3 })
	if told := r.worker.Status().Troubles; len(told) > 0 || r.counted("redrive_queue_held") != 0 {
		t.Errorf("it tells of %+v, and redrive_queue_held is %v", told, r.counted("redrive_queue_held"))
	}
	if want := []string{"a1", "b1", "c1"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}

// Each time that a blocked message goes back counts as a delivery, which is all that a pod after it knows. More retries in the policy were too few for all of
// them, and the queue stayed blocked, its message called poison.
func TestBlock_MoreRetriesUnblockAQueueWhosePodWasReplaced(t *testing.T) {
	var works atomic.Bool
	p := newPartner(t, func(*http.Request, int) int {
		if works.Load() {
			return 200
		}
		return 502
	})
	r := newRig(t, p, testtransport.Explicit(), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureBlock)(tr)
		tr.Spec.Broker.ConsumerTimeout, tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Second), v1alpha1.NewDuration(100*time.Millisecond)
	})
	r.publish(letters("a", "b")...)
	const returns = 8 // more than the crashes and the retries below account for
	testtransport.Eventually(t, "it to have gone back", func() bool {
		return r.counted("redrive_messages_handled_total", "outcome", "returned") >= returns
	})
	r.stop()
	r.start(nil)
	blocked := func() bool { return len(r.worker.Status().Troubles) == 1 }
	testtransport.Eventually(t, "the queue to block", blocked)
	more := func(retries int) {
		t.Helper()
		config := r.config
		delays := slices.Repeat([]time.Duration{50 * time.Millisecond}, retries)
		config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": testtransport.Explicit(delays...)}
		if err := r.worker.Reload(config); err != nil {
			t.Fatal(err)
		}
	}
	before := len(p.got())
	more(1)
	testtransport.Eventually(t, "one attempt", func() bool { return len(p.got()) == before+1 && blocked() })
	works.Store(true)
	more(2)
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
}
