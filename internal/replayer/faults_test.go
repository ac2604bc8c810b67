package replayer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// watched is a connection that sees what is read and written. Both may be nil.
type watched struct {
	net.Conn

	reads, writes func(net.Conn, []byte)
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if w.reads != nil {
		w.reads(w.Conn, p[:n])
	}
	return n, err
}

func (w *watched) Write(p []byte) (int, error) {
	if w.writes != nil {
		w.writes(w.Conn, p)
	}
	return w.Conn.Write(p)
}

func watching(reads, writes func(net.Conn, []byte)) amqp.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		return &watched{conn, reads, writes}, err
	}
}

// cutOnceItReads ends the first connection that brings a checkpoint, before the rest of the log is read.
func cutOnceItReads() amqp.Dial {
	var once sync.Once
	return watching(func(conn net.Conn, p []byte) {
		if bytes.Contains(p, []byte(`"revision":`)) {
			once.Do(func() { time.AfterFunc(1500*time.Millisecond, func() { _ = conn.Close() }) })
		}
	}, nil)
}

// The broker is away for as long as the replay waits for outcomes, and a little later the workers are back.
func TestReplay_TakesNoOutageForSilence(t *testing.T) {
	testtransport.Long(t)
	r := newRig(t, testbroker.Shared(t))
	const messages, within = 20, 8 * time.Second
	r.fill(messages)
	options := r.options()
	proxy := testtransport.NewProxy(t, options.Target.Address)
	options.Target.Address, options.SettleWithin = proxy.Address, within
	done := make(chan Result, 1)
	go func() {
		result, err := Run(t.Context(), options)
		if err != nil {
			t.Error(err)
		}
		done <- result
	}()
	testtransport.Eventually(t, "all to be released", func() bool { return r.broker.Ready("test") == messages/2 })
	time.Sleep(3 * time.Second) // a checkpoint is kept
	proxy.Refuse(true)
	proxy.Cut()
	time.Sleep(within + 2*time.Second)
	proxy.Refuse(false)
	time.Sleep(within / 2)
	r.work()
	if result := <-done; result.Counts.Unknown != 0 {
		t.Errorf("%+v", result.Counts)
	}
}

// It is resumed long after it was begun, and its first session is cut while it reads the log.
func TestReplay_TakesNoTimeInWhichItWasLeftForSilence(t *testing.T) {
	testtransport.Long(t)
	r := newRig(t, testbroker.Shared(t))
	const messages, within = 20, 15 * time.Second
	r.fill(messages)
	options := r.options()
	options.SettleWithin = within
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	options.Progress = func(p replay.Phase, _ replay.Counts) {
		if p == replay.Settling {
			leave()
		}
	}
	if result, err := Run(ctx, options); !errors.Is(err, context.Canceled) {
		t.Fatalf("%+v, %v", result, err)
	}
	time.Sleep(within + time.Second)
	options = r.options()
	options.Order, options.Settings, options.SettleWithin, options.Dial = nil, nil, within, cutOnceItReads()
	time.AfterFunc(within/2, r.work)
	if result, err := Run(t.Context(), options); err != nil || result.Counts.Unknown != 0 {
		t.Errorf("%+v, %v", result.Counts, err)
	}
}

func TestReplay_KeepsTheSettingsOfAResumeWhoseFirstSessionIsCut(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(100)
	options := r.options()
	options.Settings.Canary, options.Settings.CanaryWithin = 1, time.Second
	if result, err := Run(t.Context(), options); err != nil || result.Phase != replay.Stopped {
		t.Fatalf("%+v, %v", result, err)
	}
	r.work()
	options = r.options()
	options.Order, options.Settings, options.Dial = nil, &replay.Settings{MaxInFlight: 200, Rate: 20}, cutOnceItReads()
	if result, err := Run(t.Context(), options); err != nil || result.Phase != replay.Completed || result.Settings != *options.Settings {
		t.Errorf("%+v, %v", result, err)
	}
}

// The connection that publishes ends while messages are chosen, and the other one does not.
func TestReplay_GoesOnWithoutItsPublisher(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	const messages = 400
	r.fill(messages)
	r.work()
	options := r.options()
	var publisher atomic.Pointer[net.Conn]
	options.Dial = watching(nil, func(conn net.Conn, p []byte) {
		if bytes.Contains(p, []byte("redrive-staged")) {
			publisher.Store(&conn)
		}
	})
	var staged atomic.Int64
	options.at = func(p point) {
		if p == pointStaged && staged.Add(1) == 50 {
			_ = (*publisher.Load()).Close()
		}
	}
	r.completes(messages, options)
}

// Somebody looks at the failure queue at the moment at which the replay does.
func TestReplay_WaitsForALookOfOthers(t *testing.T) {
	r := newRig(t, testbroker.Shared(t))
	r.fill(20)
	lock := testtransport.Connect(t, r.url).Channel()
	options := r.options()
	options.SettleWithin = 3 * time.Second
	var once sync.Once
	options.Progress = func(p replay.Phase, _ replay.Counts) {
		if p == replay.Settling {
			once.Do(func() {
				if _, err := lock.QueueDeclare("async.failed.lock", false, false, true, false, nil); err != nil {
					t.Error(err)
				}
				time.AfterFunc(8*time.Second, func() { _, _ = lock.QueueDelete("async.failed.lock", false, false, false) })
			})
		}
	}
	if result, err := Run(t.Context(), options); err != nil || result.Counts.Unknown != 10 {
		t.Errorf("%+v, %v", result, err)
	}
}

// What was given back to the staging queue is not counted before it is delivered again, however slowly the broker confirms a checkpoint.
func TestReplay_GoesOnAfterItHasGivenMessagesBack(t *testing.T) {
	testtransport.Long(t)
	r := newRig(t, testbroker.Shared(t))
	const messages = 600
	r.fill(messages)
	options := r.options()
	options.Settings.MaxInFlight, options.renewEvery = 10, time.Second
	options.at = func(p point) {
		if p == pointSaved {
			time.Sleep(2500 * time.Millisecond)
		}
	}
	options.Progress = func(p replay.Phase, c replay.Counts) {
		if p == replay.Releasing && c.InFlight > options.Settings.MaxInFlight {
			t.Errorf("%d in flight", c.InFlight)
		}
	}
	time.AfterFunc(15*time.Second, r.work)
	r.completes(messages, options)
}

// fillWithALarge puts failed messages into the failure queue, the sixth of which is large.
func (r *rig) fillWithALarge() {
	for n := range 11 {
		body := bytes.Repeat([]byte("x"), 100)
		if n == 5 {
			body = bytes.Repeat([]byte("x"), 2<<20)
		}
		r.broker.Publish("async.failed", "test", amqp091.Publishing{MessageId: "m", Headers: amqp091.Table{"chosen": true}, Body: body})
	}
	time.Sleep(youngFor)
}

// RabbitMQ 4.0 takes messages of up to 16 MiB, and those before it of up to 128.
func TestReplay_LeavesWhatRabbitMQDoesNotTakeAnyMore(t *testing.T) {
	testtransport.Long(t)
	for name, order := range map[string]func(r *rig) Options{"a replay": (*rig).options, "a discard": func(r *rig) Options { return r.discards(0) }} {
		t.Run(name, func(t *testing.T) {
			own := testbroker.Private(t)
			r := newRig(t, own)
			r.fillWithALarge()
			own.SetEnvironment(t, "max_message_size", 1<<20)
			options := order(r)
			options.SettleWithin = 2 * time.Second
			result, err := Run(t.Context(), options)
			if left := r.broker.Ready("async.failed"); err != nil || result.Phase != replay.Completed || result.Counts.Selected != 10 || left != 1 {
				t.Errorf("%d left, %+v, %v", left, result, err)
			}
		})
	}
}

func TestCancel_SaysWhatRabbitMQDoesNotTakeAnyMore(t *testing.T) {
	testtransport.Long(t)
	own := testbroker.Private(t)
	r := newRig(t, own)
	r.fillWithALarge()
	if result, err := Run(t.Context(), r.discards(time.Hour)); err != nil || result.Phase != replay.Held {
		t.Fatalf("%+v, %v", result, err)
	}
	own.SetEnvironment(t, "max_message_size", 1<<20)
	for range 2 {
		options := r.options()
		options.Order, options.Settings, options.Cancel = nil, nil, true
		result, err := Run(t.Context(), options)
		if err == nil || !strings.Contains(err.Error(), `1 messages stay in "async.replay.`+id) || result.Counts.Recalled != 10 {
			t.Errorf("%+v, %v", result, err)
		}
	}
	own.SetEnvironment(t, "max_message_size", 16<<20)
	options := r.options()
	options.Order, options.Settings, options.Cancel = nil, nil, true
	result, err := Run(t.Context(), options)
	if left := r.broker.Ready("async.failed"); err != nil || result.Phase != replay.Cancelled || left != 11 {
		t.Errorf("%d are back, %+v, %v", left, result, err)
	}
}

// One of two work queues refuses messages. The other one gets each of its own once, however often the replay has to begin a session.
func TestReplay_SendsNothingTwiceBesideAQueueThatRefuses(t *testing.T) {
	shared := testbroker.Shared(t)
	r := newRig(t, shared)
	vhost := r.url[strings.LastIndex(r.url, "/")+1:]
	shared.SetPolicy(t, vhost, "bounded", `^test$`, "queues", 2000, map[string]any{"max-length": 1, "overflow": "reject-publish", "delivery-limit": 100})
	channel := testtransport.Connect(t, r.url).Channel()
	if _, err := channel.QueueDeclare("other", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind("other", "other", "async.return", false, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(youngFor)
	r.broker.Publish("async.return", "test", amqp091.Publishing{MessageId: "first"}, amqp091.Publishing{MessageId: "second"})
	const each = 100
	for n := range 2 * each {
		r.failedIn([]string{"test", "other"}[n%2], n)
	}
	options := r.options()
	options.Settings.MaxInFlight = 1000
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	options.Progress = func(_ replay.Phase, c replay.Counts) {
		if c.InFlight >= each {
			time.AfterFunc(3*time.Second, cancel)
		}
	}
	if result, err := Run(ctx, options); err == nil {
		t.Fatalf("it has ended: %+v", result)
	}
	came := map[string]int{}
	for _, d := range r.broker.TakeAll("other") {
		if came[d.MessageId]++; came[d.MessageId] > 1 {
			t.Errorf("message %s came %d times", d.MessageId, came[d.MessageId])
		}
	}
	if len(came) < each/2 { // the last may wait behind those that are refused
		t.Errorf("%d of %d messages came", len(came), each)
	}
}

// failedIn puts a message into the failure queue that a worker of a queue has given up.
func (r *rig) failedIn(queue string, n int) {
	r.t.Helper()
	m, err := message.Failed(message.Message{
		MessageID: strconv.Itoa(n), Headers: map[string]any{"chosen": true}, Exchange: "async", RoutingKey: queue,
	}, message.State{ID: strconv.Itoa(n), Exchange: "async", RoutingKey: queue}, queue, message.Final{Reason: "MaxRetries", At: time.UnixMilli(int64(n) + 1), ID: rand.Text()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.broker.Publish("async.failed", "", amqp091.Publishing{MessageId: m.MessageID, Body: m.Body, Headers: m.Headers})
}
