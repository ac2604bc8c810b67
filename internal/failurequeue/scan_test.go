package failurequeue

import (
	"context"
	"errors"
	"flag"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func TestMain(m *testing.M) {
	// The tests wait for the broker, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

const (
	failed = "async.failed"
	lock   = "async.failed.lock"
)

// rig is a failure queue as the operator makes one.
type rig struct {
	t       *testing.T
	broker  *testbroker.Broker
	url     string
	amqp    *testtransport.Broker
	options Options
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRigOn(t, testbroker.Shared(t))
}

func newRigOn(t *testing.T, shared *testbroker.Broker) *rig {
	t.Helper()
	vhost := shared.Vhost(t)
	url := shared.URL(vhost)
	shared.SetPolicy(t, vhost, "redrive.async:failure:async.failed", `^async\.failed$`, "queues", 1000, map[string]any{"delivery-limit": 2147483647})
	transport := testtransport.New("http://127.0.0.1:1/")
	r := &rig{t: t, broker: shared, url: url, amqp: testtransport.Declare(t, url, transport, testtransport.Compile(t, transport, testtransport.Explicit(time.Hour)))}
	login, err := credentials.FromURLs(url, "")
	if err != nil {
		t.Fatal(err)
	}
	target, err := amqp.TargetOf(login, "")
	if err != nil {
		t.Fatal(err)
	}
	r.options = Options{Target: target, Queue: failed, Lock: lock, Holder: "a test"}
	return r
}

// fill publishes messages that are numbered, with headers and bodies of their own. The number begins where the last one ended.
func (r *rig) fill(from, to, size int) {
	r.t.Helper()
	messages := make([]amqp091.Publishing, 0, to-from)
	for i := from; i < to; i++ {
		messages = append(messages, amqp091.Publishing{
			MessageId: strconv.Itoa(i), DeliveryMode: amqp091.Persistent, ContentType: "text/plain", Type: "order",
			Headers: amqp091.Table{"n": int32(i), "nested": amqp091.Table{"list": []any{"a", int64(i)}}},
			Body:    []byte(strings.Repeat("x", size)),
		})
	}
	r.amqp.Publish(failed, "", messages...)
}

// scan reads the queue, and returns the IDs in the order in which they were seen.
func (r *rig) scan(ctx context.Context) ([]string, error) {
	r.t.Helper()
	var ids []string
	seen, err := Scan(ctx, r.options, func(m message.Message) error {
		ids = append(ids, m.MessageID)
		return nil
	})
	if seen != len(ids) {
		r.t.Errorf("%d messages are told, and %d were shown", seen, len(ids))
	}
	return ids, err
}

// want are the IDs from one number to the one before another.
func want(from, to int) []string {
	var ids []string
	for i := from; i < to; i++ {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids
}

// breaks are the places where the numbers do not go on.
func breaks(ids []string) (places []string) {
	for i := 1; i < len(ids); i++ {
		before, _ := strconv.Atoi(ids[i-1])
		if ids[i] != strconv.Itoa(before+1) {
			places = append(places, ids[i-1]+" "+ids[i])
		}
	}
	return places
}

// taken takes all messages out of the queue.
func (r *rig) taken(n int) []amqp091.Delivery {
	r.t.Helper()
	testtransport.Eventually(r.t, "all messages to be in the failure queue", func() bool { return r.amqp.Ready(failed) == n })
	return r.amqp.TakeAll(failed)
}

func ids(deliveries []amqp091.Delivery) []string {
	var ids []string
	for i := range deliveries {
		ids = append(ids, deliveries[i].MessageId)
	}
	return ids
}

func TestScan_GivesAllMessagesBackInTheirOrder(t *testing.T) {
	r := newRig(t)
	const messages = 3000
	r.fill(0, messages, 20_000) // blocks of some 200
	for range 25 {
		if ids, err := r.scan(t.Context()); err != nil || !slices.Equal(ids, want(0, messages)) {
			t.Fatalf("%d messages, %v, out of order at %v", len(ids), err, breaks(ids))
		}
	}
	deliveries := r.taken(messages)
	if !slices.Equal(ids(deliveries), want(0, messages)) {
		t.Error("they are not in their order any more")
	}
	for i := range deliveries {
		d := &deliveries[i]
		headers := maps.Clone(d.Headers)
		delete(headers, "x-delivery-count")
		delete(headers, "x-acquired-count")
		nested, _ := headers["nested"].(amqp091.Table)
		if len(headers) != 2 || headers["n"] != int32(i) || len(nested) != 1 || len(d.Body) != 20_000 || d.ContentType != "text/plain" || d.DeliveryMode != 2 {
			t.Fatalf("message %d has changed: %+v, %d bytes", i, headers, len(d.Body))
		}
	}
}

func TestScan_OfAnEmptyQueueSeesNothing(t *testing.T) {
	r := newRig(t)
	if ids, err := r.scan(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestScan_LeavesOutWhatComesMeanwhile(t *testing.T) {
	r := newRig(t)
	r.fill(0, 500, 10)
	more := 500
	seen, err := Scan(t.Context(), r.options, func(message.Message) error {
		if more < 600 {
			r.fill(more, more+1, 10)
			more++
		}
		return nil
	})
	if err != nil || seen != 500 {
		t.Errorf("%d messages, %v", seen, err)
	}
	if got := ids(r.taken(600)); !slices.Equal(got, want(0, 600)) {
		t.Error("the messages are not in their order any more")
	}
}

func TestScan_IsOneAtATime(t *testing.T) {
	r := newRig(t)
	r.fill(0, 300, 10)
	proxy := testtransport.NewProxy(t, r.options.Target.Address)
	first := r.options
	first.Target.Address = proxy.Address
	holds, goes := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		n := 0
		_, err := Scan(t.Context(), first, func(message.Message) error {
			if n++; n == 150 {
				close(holds)
				<-goes
			}
			return nil
		})
		ended <- err
	}()
	<-holds
	if _, err := r.scan(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("a second look: %v", err)
	}
	proxy.Cut() // as a kill of the first does
	testtransport.Eventually(t, "the lock to be free", func() bool {
		seen, err := r.scan(t.Context())
		if err != nil && !errors.Is(err, ErrLocked) {
			t.Fatal(err)
		}
		return err == nil && len(seen) == 300
	})
	close(goes)
	if err := <-ended; err == nil {
		t.Error("the first look has not noticed that its connection is gone")
	}
	if got := len(r.taken(300)); got != 300 {
		t.Errorf("%d messages are left", got)
	}
}

func TestScan_EndsEarlyAndGivesBackInOrder(t *testing.T) {
	problem := errors.New("a full disk")
	for name, ends := range map[string]struct{ with, want error }{"an error": {problem, problem}, "interrupted": {nil, context.Canceled}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.fill(0, 1000, 20_000)
			if _, err := r.scan(t.Context()); err != nil { // what was given back once goes behind the others when it is given back alone
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			_, err := Scan(ctx, r.options, func(message.Message) error {
				if n++; n < 77 {
					return nil
				}
				if ends.with == nil {
					cancel()
				}
				return ends.with
			})
			if !errors.Is(err, ends.want) || n != 77 {
				t.Errorf("%d messages, %v", n, err)
			}
			if got := ids(r.taken(1000)); !slices.Equal(got, want(0, 1000)) {
				t.Error("the messages are not in their order any more")
			}
		})
	}
}

func TestScan_SaysThatAnotherConsumerTakesMessages(t *testing.T) {
	r := newRig(t)
	r.fill(0, 300, 10)
	r.options.silence = time.Second
	n := 0
	seen, err := Scan(t.Context(), r.options, func(message.Message) error {
		if n++; n == 1 {
			for range 50 {
				if _, ok, err := r.amqp.Channel().Get(failed, false); !ok || err != nil {
					t.Fatalf("%t, %v", ok, err)
				}
			}
		}
		return nil
	})
	if err == nil || seen != 250 || !strings.Contains(err.Error(), `250 of 300 messages came, and none within 1s: another consumer takes them`) {
		t.Errorf("%d, %v", seen, err)
	}
}

// A message that expires while it is looked at must not have the others wait for it.
func TestScan_GivesBackInOrderWhereAMessageHasExpired(t *testing.T) {
	r := newRig(t)
	const messages = 800
	expired := time.Now().Add(16 * time.Second)
	r.amqp.Publish(failed, "", amqp091.Publishing{MessageId: "expires", DeliveryMode: amqp091.Persistent, Expiration: "15000"})
	r.fill(0, messages, 256_000) // blocks of 16
	var visited time.Time
	seen, err := Scan(t.Context(), r.options, func(m message.Message) error {
		if m.MessageID == "expires" {
			time.Sleep(time.Until(expired))
		}
		visited = time.Now()
		return nil
	})
	if took := time.Since(visited); err != nil || seen != messages+1 || took > 10*time.Second {
		t.Errorf("%d messages, %v, given back in %v", seen, err, took)
	}
	if got := ids(r.taken(messages)); !slices.Equal(got, want(0, messages)) {
		t.Errorf("the order has changed at %d places", len(breaks(got)))
	}
}

func TestScan_SaysThatTheQueueIsGone(t *testing.T) {
	r := newRig(t)
	r.fill(0, 2000, 20_000)
	n := 0
	_, err := Scan(t.Context(), r.options, func(message.Message) error {
		if n++; n == 120 {
			if _, err := r.amqp.Channel().QueueDelete(failed, false, false, false); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), failed) {
		t.Errorf("got %v", err)
	}
}

func TestScan_SaysWhatTheLoginMayNot(t *testing.T) {
	r := newRig(t)
	r.options.Target.Password = "wrong"
	if _, err := r.scan(t.Context()); err == nil || !strings.Contains(err.Error(), "username or password not allowed") || strings.Contains(err.Error(), "\"wrong") {
		t.Errorf("got %v", err)
	}
}

func TestBlockSize_IsSomeMegabytes(t *testing.T) {
	blocks := func(n int) []*block { return make([]*block, n) }
	for name, tt := range map[string]struct {
		scan       scan
		left, want int
	}{
		"the first one":                   {scan{blocks: blocks(1), taken: 1, bytes: 1000}, 1000, firstBlock},
		"the first one of large messages": {scan{blocks: blocks(1), taken: 1, bytes: 8 << 20}, 60, 1},
		"small messages":                  {scan{blocks: blocks(2), taken: 100, bytes: 100}, 1 << 20, mostBlock},
		"empty messages":                  {scan{blocks: blocks(2), taken: 100}, 1 << 20, mostBlock},
		"of 20 kB":                        {scan{blocks: blocks(2), taken: 100, bytes: 2_000_000}, 1 << 20, 525},
		"large messages":                  {scan{blocks: blocks(2), taken: 10, bytes: 160 << 20}, 100, 1},
		"more than channels":              {scan{blocks: blocks(2), taken: 10, bytes: 160 << 20}, 100_000, 51},
		"no channels are left":            {scan{blocks: blocks(maxBlocks + 1), taken: 10, bytes: 160 << 20}, 60_000, 60_000},
		"never beyond what is there":      {scan{blocks: blocks(maxBlocks - 1), taken: 10, bytes: 10}, 1 << 20, 65535},
		"RabbitMQ allows few channels":    {scan{channels: 128, blocks: blocks(20), taken: 10, bytes: 160 << 20}, 1000, 10},
		"it allows hardly any":            {scan{channels: 8, blocks: blocks(2), taken: 10, bytes: 160 << 20}, 1000, 1000},
	} {
		if tt.scan.channels == 0 {
			tt.scan.channels = 2047
		}
		if got := tt.scan.blockSize(tt.left); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
