package amqp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// rotation is a source whose credentials change, and what the session makes of that.
type rotation struct {
	*broker

	mu       sync.Mutex
	target   amqp.Target
	renewals []error
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	b := newBroker(t)
	b.queue(t, "q", nil)
	return &rotation{broker: b, target: b.target}
}

func (r *rotation) options(t *testing.T) amqp.Options {
	t.Helper()
	options := r.broker.options(t)
	options.Source = func() (amqp.Target, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.target, nil
	}
	options.OnRenewal = func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.renewals = append(r.renewals, err)
	}
	return options
}

func (r *rotation) use(username, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Username, r.target.Password = username, password
}

// user makes a user with certain rights to read, and returns its password.
func (r *rotation) user(t *testing.T, name, read string) string {
	t.Helper()
	return testbroker.Shared(t).User(t, name+"-"+r.target.VHost, "", r.target.VHost, "", ".*", read)
}

// awaitRefusal waits until so many renewals failed.
func (r *rotation) awaitRefusal(t *testing.T) error {
	t.Helper()
	var refusal error
	testtransport.Eventually(t, "the refusal", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, err := range r.renewals {
			refusal = errors.Join(refusal, err)
		}
		return refusal != nil
	})
	return refusal
}

func (r *rotation) awaitRenewals(t *testing.T, n int) {
	t.Helper()
	testtransport.Eventually(t, "the renewals", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		done := 0
		for _, err := range r.renewals {
			if err == nil {
				done++
			}
		}
		return done > n // the first session counts too
	})
}

func (r *rotation) start(t *testing.T, prefetch int) (*amqp.Consumer, *inbox) {
	t.Helper()
	consumer, in := amqp.NewConsumer(r.options(t)), &inbox{}
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: prefetch}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	testtransport.Eventually(t, "the consumer", func() bool { return consumer.Active() == 1 })
	return consumer, in
}

func TestRenew_FinishesLoansAndGivesNothingBack(t *testing.T) {
	r := newRotation(t)
	r.fill(3)
	consumer, in := r.start(t, 3)
	held := in.wait(t, 3)
	r.use("second-"+r.target.VHost, r.user(t, "second", ".*"))
	consumer.Renew()
	r.awaitRenewals(t, 1)
	r.fill(3)
	fresh := in.wait(t, 3)
	for _, d := range append(held, fresh...) {
		if d.Redelivered || !d.Live() || d.Ack() != nil {
			t.Errorf("redelivered %v, live %v", d.Redelivered, d.Live())
		}
	}
	testtransport.Eventually(t, "the end of the session before", func() bool { return !held[0].Live() && consumer.Active() == 1 })
	if !fresh[0].Live() || r.Ready("q") != 0 || len(in.take()) != 0 {
		t.Errorf("live %v, %d messages left, want a session that stands and none", fresh[0].Live(), r.Ready("q"))
	}
}

func TestRenew_LeavesTheSessionWhereCredentialsAreRefused(t *testing.T) {
	cases := map[string]struct {
		use  func(t *testing.T, r *rotation)
		want string
	}{
		"a wrong password": {
			use:  func(_ *testing.T, r *rotation) { r.use(r.target.Username, "not-the-password") },
			want: "not allowed",
		},
		"a user without the right to read the queue": {
			use:  func(t *testing.T, r *rotation) { t.Helper(); r.use("blind-"+r.target.VHost, r.user(t, "blind", "^$")) },
			want: "ACCESS_REFUSED",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRotation(t)
			right := r.target
			r.fill(1)
			consumer, in := r.start(t, 1)
			held := in.wait(t, 1)[0]
			c.use(t, r)
			consumer.Renew()
			refusal := r.awaitRefusal(t)
			if !strings.Contains(refusal.Error(), c.want) || strings.Contains(refusal.Error(), "not-the-password") {
				t.Errorf("refusal %v, want %q and no password", refusal, c.want)
			}
			if consumer.Trouble() == nil || !held.Live() || held.Ack() != nil {
				t.Errorf("trouble %v, live %v", consumer.Trouble(), held.Live())
			}
			r.fill(1)
			if d := in.wait(t, 1)[0]; d.Ack() != nil || d.Redelivered {
				t.Error("the session does not go on")
			}
			r.use(right.Username, right.Password)
			consumer.Renew()
			testtransport.Eventually(t, "the next session", func() bool { return consumer.Trouble() == nil && consumer.Active() == 1 })
		})
	}
}

func TestTrouble_StaysWhileOnlyRefusedCredentialsAreLeft(t *testing.T) {
	r := newRotation(t)
	blind := "blind-" + r.target.VHost
	password := r.user(t, "blind", "^$")
	var consumer *amqp.Consumer
	var sessions atomic.Int64
	options := r.options(t)
	options.OnState = func(up bool) {
		if up && sessions.Add(1) > 1 && consumer.Trouble() == nil {
			t.Error("the refusal is forgotten before the credentials are accepted")
		}
	}
	consumer = amqp.NewConsumer(options)
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, func(*amqp.Delivery) {}) })
	testtransport.Eventually(t, "the consumer", func() bool { return consumer.Active() == 1 })
	r.use(blind, password)
	consumer.Renew()
	if err := r.awaitRefusal(t); !strings.Contains(err.Error(), "ACCESS_REFUSED") {
		t.Errorf("refusal %v", err)
	}
	r.proxy.Cut()
	testtransport.Eventually(t, "the refusal of the session that is left", func() bool {
		err := consumer.Trouble()
		return sessions.Load() == 2 && err != nil && strings.Contains(err.Error(), "ACCESS_REFUSED")
	})
	testbroker.Shared(t).Permit(t, blind, r.target.VHost, "", ".*", ".*")
	testtransport.Eventually(t, "the end of the trouble", func() bool { return consumer.Trouble() == nil && consumer.Active() == 1 })
}

func TestRenew_SettlesWhatARefusedSessionTook(t *testing.T) {
	r := newRotation(t)
	r.queue(t, "closed", nil)
	r.fill(1)
	consumer, in := amqp.NewConsumer(r.options(t)), &inbox{}
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}, {Queue: "closed", Prefetch: 1}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	held := in.wait(t, 1)[0]
	testtransport.Eventually(t, "both queues to be consumed", func() bool { return consumer.Active() == 2 })

	r.use("half-"+r.target.VHost, r.user(t, "half", "^q$"))
	r.fill(1) // the session that stands has its one message, so this one is for the new session
	consumer.Renew()
	taken := in.wait(t, 1)[0]
	if taken.Redelivered || !taken.Live() || taken.Ack() != nil {
		t.Errorf("redelivered %v, live %v", taken.Redelivered, taken.Live())
	}
	if refusal := r.awaitRefusal(t); !strings.Contains(refusal.Error(), `queue "closed"`) {
		t.Errorf("refusal %v", refusal)
	}
	if !held.Live() || held.Ack() != nil {
		t.Error("the session that stood has ended")
	}
	testtransport.Eventually(t, "the queue to be empty", func() bool { return r.Ready("q") == 0 })
	if left := in.take(); len(left) > 0 {
		t.Errorf("%d messages came again", len(left))
	}
}

func TestRenew_LeavesAWorkingSessionWhenOneBreaksMeanwhile(t *testing.T) {
	r := newRotation(t)
	consumer, in := r.start(t, 10)
	r.fill(5)
	held := in.wait(t, 5)
	consumer.Renew()
	r.proxy.Cut()
	again := in.wait(t, 5)
	for _, d := range append(held, again...) {
		_ = d.Ack()
	}
	testtransport.Eventually(t, "one consumer", func() bool { return consumer.Active() == 1 && consumer.Trouble() == nil })
	r.fill(1)
	in.wait(t, 1)
}

func TestPublisher_GoesOnThroughRenewals(t *testing.T) {
	r := newRotation(t)
	passwords := map[string]string{}
	for _, name := range []string{"one", "two"} {
		passwords[name] = r.user(t, name, "")
	}
	publisher := amqp.NewPublisher(r.options(t))
	run(t, publisher.Run)
	var published atomic.Int64
	var all sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
					t.Errorf("publish: %v", err)
					return
				}
				published.Add(1)
			}
		})
	}
	testtransport.Eventually(t, "the first messages", func() bool { return published.Load() > 0 })
	for i := range 10 {
		name := []string{"one", "two"}[i%2]
		r.use(name+"-"+r.target.VHost, passwords[name])
		publisher.Renew()
		r.awaitRenewals(t, i+1)
		if ready, _ := publisher.Ready(); !ready {
			t.Error("not ready after a renewal")
		}
	}
	close(done)
	all.Wait()
	if got := int64(r.Ready("q")); got != published.Load() {
		t.Errorf("%d messages in the queue, want the %d that were confirmed", got, published.Load())
	}
}

func TestConsumer_CountsAQueueOfTwoSessionsOnce(t *testing.T) {
	r := newRotation(t)
	options := r.options(t)
	var mu sync.Mutex
	var troubles []error
	options.OnQueue = func(queue string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if queue == "q" && err != nil {
			troubles = append(troubles, err)
		}
	}
	consumer, in := amqp.NewConsumer(options), &inbox{}
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 2}, {Queue: "later", Prefetch: 1}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	r.fill(1)
	held := in.wait(t, 1)[0]
	most := 0
	right := r.target
	r.use("blind-"+r.target.VHost, r.user(t, "blind", "^later$"))
	consumer.Renew()
	_ = r.awaitRefusal(t)
	r.use(right.Username, right.Password)
	consumer.Renew()
	_ = held.Ack()
	testtransport.Eventually(t, "the end of the session before", func() bool {
		most = max(most, consumer.Active())
		return !held.Live()
	})
	if most != 1 {
		t.Errorf("%d queues are consumed, and the other one is missing", most)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(troubles) > 0 {
		t.Errorf("a queue that is consumed is in trouble: %v", troubles)
	}
}

func TestRenew_JudgesNoCredentialsWhileNothingIsReceived(t *testing.T) {
	r := newRotation(t)
	right := r.target
	consumer, in := r.start(t, 1)
	consumer.Receive(false)
	testtransport.Eventually(t, "the end of receiving", consumer.Quiet)
	r.use("blind-"+r.target.VHost, r.user(t, "blind", "^$"))
	consumer.Renew()
	time.Sleep(time.Second)
	r.mu.Lock()
	if len(r.renewals) != 1 {
		t.Errorf("credentials are judged unasked: %v", r.renewals)
	}
	r.mu.Unlock()
	consumer.Receive(true)
	if refusal := r.awaitRefusal(t); !strings.Contains(refusal.Error(), "ACCESS_REFUSED") {
		t.Errorf("refusal %v", refusal)
	}
	r.fill(1)
	if d := in.wait(t, 1)[0]; d.Ack() != nil {
		t.Error("the session before does not go on")
	}
	consumer.Receive(false)
	testtransport.Eventually(t, "the end of receiving", consumer.Quiet)
	r.use("other-"+r.target.VHost, r.user(t, "other", ".*"))
	consumer.Renew()
	time.Sleep(time.Second)
	r.use(right.Username, right.Password)
	consumer.Renew() // before there was a verdict on the ones before
	time.Sleep(time.Second)
	consumer.Receive(true)
	r.awaitRenewals(t, 1)
	if err := consumer.Trouble(); err != nil {
		t.Errorf("trouble %v", err)
	}
	r.fill(1)
	in.wait(t, 1)
}
