package worker_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// leaveUnsettled receives what is in a queue and ends the session, as a worker that is killed does.
func (r *rig) leaveUnsettled(queue string, n int) {
	r.t.Helper()
	conn, err := amqp091.Dial(r.url)
	if err != nil {
		r.t.Fatal(err)
	}
	channel, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		testtransport.Eventually(r.t, "a message in "+queue, func() bool {
			_, ok, err := channel.Get(queue, false)
			if err != nil {
				r.t.Fatal(err)
			}
			return ok
		})
	}
	_ = conn.CloseDeadline(time.Now().Add(time.Second))
}

func TestQuarantine_GetsAMessageThatASessionLeftUnsettled(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	r.publish(amqp091.Publishing{MessageId: "m-1", Body: []byte("x"), Headers: amqp091.Table{"tenant": "acme"}})
	r.leaveUnsettled(testtransport.Queue, 1)
	r.start(nil)
	quarantined := r.next("test.quarantine")
	if quarantined.MessageId != "m-1" || string(quarantined.Body) != "x" || quarantined.Headers["tenant"] != "acme" {
		t.Errorf("the message changed: %+v", quarantined)
	}
	if quarantined.Headers["redrive-attempts"] != nil || quarantined.Headers["redrive-crashes"] != nil {
		t.Errorf("headers %v: want nothing charged", quarantined.Headers)
	}
	if got := p.got(); len(got) != 0 {
		t.Errorf("%d calls, want none", len(got))
	}
}

// RabbitMQ marks all that a consumer without a prefetch had when it stopped, and all in a classic queue whose node was killed. A backlog was handled one
// message at a time.
func TestQuarantine_GetsNoMoreThanWorkersCanHaveHad(t *testing.T) {
	const backlog, fresh, concurrency = 200, 400, 10
	for name, c := range map[string]struct {
		claimed int64 // deliveries
		ends    int
		fresh   int
	}{
		"after a consumer without a prefetch":  {0, 1, 0},
		"after two of them":                    {0, 2, 0},
		"with counts that somebody has copied": {2, 1, 0},
		"beside a queue with fresh messages":   {0, 1, fresh},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPartner(t, always(200))
			r := newRig(t, p, testtransport.Explicit(time.Second), nil)
			r.stop()
			queueType := map[bool]string{true: "classic", false: "quorum"}[c.claimed > 0]
			if _, err := r.Channel().QueueDeclare(standin, true, false, false, false, amqp091.Table{"x-queue-type": queueType}); err != nil {
				t.Fatal(err)
			}
			messages := numbered(backlog, "partner", "a")
			for i := range messages {
				if c.claimed > 0 {
					messages[i].Headers["x-delivery-count"] = c.claimed
				}
			}
			r.Publish("", standin, messages...)
			for range c.ends {
				r.leaveUnsettled(standin, backlog)
				testtransport.Eventually(t, "all back", func() bool { return r.Ready(standin) == backlog })
			}
			r.publish(numbered(c.fresh, "partner", "b")...)
			r.config = r.config.WithStandIns(map[string]compile.Standin{testtransport.Queue: {Queue: standin, Reads: compile.ReadsBoth}})
			r.start(nil)
			testtransport.Eventually(t, "the rest to be handled", func() bool {
				return r.Ready(standin)+r.Ready(testtransport.Queue) == 0 && len(p.got())+r.Ready("test.quarantine") == backlog+c.fresh
			})
			if quarantined := r.Ready("test.quarantine"); quarantined < 2*concurrency || quarantined > 4*concurrency {
				t.Errorf("%d messages are quarantined, want at least the %d that a worker has, and not many more", quarantined, 2*concurrency)
			}
		})
	}
}

// next takes one message as a consumer; queues with a single active consumer allow for nothing else.
func (r *rig) next(queue string) amqp091.Delivery {
	r.t.Helper()
	deliveries, err := r.Channel().Consume(queue, "next", true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = r.Channel().Cancel("next", false) }()
	select {
	case d := <-deliveries:
		return d
	case <-time.After(testtransport.Patience):
		r.t.Fatalf("waited for a message in %s", queue)
		return amqp091.Delivery{}
	}
}

// notebook is a journal in memory, for which crashes are made up.
type notebook struct {
	mu      sync.Mutex
	crashes map[string]int64
	running string
	seen    []string
	// lines are all that was written.
	lines []string
}

func (n *notebook) Begin(id, _ string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = id
	if !slices.Contains(n.seen, id) {
		n.seen = append(n.seen, id)
	}
	n.lines = append(n.lines, "begin "+id)
	return nil
}

func (n *notebook) End() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, "end "+n.running)
	n.running = ""
	return nil
}

// written is what the journal says at last.
func (n *notebook) written() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

func (n *notebook) Crashes(id, _ string) (int64, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.crashes[id], "signal: killed"
}

func (n *notebook) Charged(id, _ string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.crashes, id)
	return nil
}

func TestQuarantine_HandlesAChargedMessageLastAndJournalsEach(t *testing.T) {
	var atHandler atomic.Int64
	var together atomic.Bool
	p := newPartner(t, func(*http.Request, int) int {
		if atHandler.Add(1) > 1 {
			together.Store(true)
		}
		defer atHandler.Add(-1)
		time.Sleep(50 * time.Millisecond) // in which others would come
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	journal := &notebook{crashes: map[string]int64{"twice": 2}}
	for _, id := range []string{"a", "twice", "b"} {
		r.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: id})
	}
	r.start(journal)
	testtransport.Eventually(t, "all three handled", func() bool { return len(p.got()) == 3 })
	if got := p.got(); got[0].header.Get("Redrive-Queue") != testtransport.Queue || got[2].header.Get("Redrive-Message-Id") != "twice" {
		t.Errorf("requests %+v: want those of the work queue, the charged one last", got)
	}
	r.stop()
	if journal.running != "" || strings.Join(journal.seen, " ") != "a b twice" || len(journal.crashes) != 0 {
		t.Errorf("journal %+v: want each run written down, and the crashes on the message", journal)
	}
	if together.Load() {
		t.Error("more than one is handled at a time")
	}
}

// A message that is published again with the same id, from the failure queue, was charged for the crashes of the one before.
func TestQuarantine_ForgetsTheCrashesOfWhatTheBrokerDeadLetters(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	r.stop()
	journal := &notebook{crashes: map[string]int64{"large": 100}}
	r.Publish("async.return", "test.quarantine", amqp091.Publishing{
		MessageId: "large", Headers: amqp091.Table{"x": strings.Repeat("x", 130_800)}, // no room for a header of ours
	})
	r.start(journal)
	testtransport.Eventually(t, "it failed", func() bool { return r.Ready("async.failed") == 1 })
	r.stop()
	if crashes, _ := journal.Crashes("large", ""); crashes != 0 {
		t.Errorf("the journal has %d crashes", crashes)
	}
}

func TestQuarantine_FailsAMessageThatBringsDownTooManyWorkers(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	r.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "poison", Headers: amqp091.Table{"redrive-crashes": int64(2)}})
	r.start(&notebook{crashes: map[string]int64{"poison": 1}})
	failed := r.Take("async.failed")
	for name, want := range map[string]string{
		"redrive-reason": "PoisonCrash", "redrive-queue": testtransport.Queue, "redrive-crash-exit": "signal: killed",
		"redrive-worker": "worker-0", "redrive-error-source": "Crash",
	} {
		if got := text(t, failed.Headers, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if failed.Headers["redrive-crashes"] != int64(3) || len(p.got()) != 0 {
		t.Errorf("crashes %v, %d calls; want 3 and none", failed.Headers["redrive-crashes"], len(p.got()))
	}
}

func TestQuarantine_KeepsRetriesOfMessagesWithACrash(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt < 2 {
			return 502
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond), nil)
	r.stop()
	r.Publish("async.return", "test.quarantine",
		amqp091.Publishing{MessageId: "crashed", Headers: amqp091.Table{"redrive-crashes": int64(1)}}, amqp091.Publishing{MessageId: "innocent"})
	r.start(&notebook{})
	testtransport.Eventually(t, "three calls", func() bool { return len(p.got()) == 3 })
	if back := r.Take(testtransport.Queue); back.MessageId != "innocent" {
		t.Errorf("%s came back to its work queue", back.MessageId)
	}
}

func TestQuarantine_KeepsAMessageThatWaitsForItsTurn(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "partner", PerSecond: intstr.FromString("0.5"), Key: new("message.headers.partner"),
	}))
	r.stop() // whatever comes into the work queue stays there
	r.Publish("async.return", "test.quarantine", numbered(3, "partner", "a")...)
	r.start(&notebook{})
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == 3 })
	if r.counted("redrive_rate_limited_total") == 0 || r.Ready(testtransport.Queue) != 0 {
		t.Errorf("%v turned away, %d in the work queue", r.counted("redrive_rate_limited_total"), r.Ready(testtransport.Queue))
	}
}

func TestQuarantine_JournalsNoMessageThatOnlyWaits(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromString("2"),
	}))
	r.stop()
	r.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "a"}, amqp091.Publishing{MessageId: "b"})
	journal := &notebook{}
	r.start(journal)
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
	r.stop()
	if want := []string{"begin a", "end a", "begin b", "end b", "begin b", "end b"}; !slices.Equal(journal.written(), want) {
		t.Errorf("the journal had %q, want %q: the second waits for its turn at the rate limit", journal.written(), want)
	}
}

func TestQuarantine_StopLeavesNoWaitingMessageInTheJournal(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromString("0.02"),
	}))
	r.stop()
	r.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "a"}, amqp091.Publishing{MessageId: "b"})
	journal := &notebook{}
	r.start(journal)
	testtransport.Eventually(t, "the second to wait", func() bool { return slices.Contains(journal.written(), "end b") })
	r.stop()
	if written := journal.written(); written[len(written)-1] != "end b" {
		t.Errorf("the journal had %q", written)
	}
	if back := r.next("test.quarantine"); back.MessageId != "b" || back.Headers["redrive-crashes"] != nil {
		t.Errorf("%s came back with %v", back.MessageId, back.Headers)
	}
}

func TestBodies_TooLargeForTheMemoryAreNotReadByExpressions(t *testing.T) {
	p := newPartner(t, always(502))
	policy := testtransport.Explicit(time.Second)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "first", When: "message.body[0] == 1", Action: v1alpha1.ActionDrop},
		{Name: "rest", When: "true", Action: v1alpha1.ActionFail},
	}
	r := newRig(t, p, policy, nil)
	r.stop()
	r.memory = 128 << 10
	r.start(nil)
	r.publish(amqp091.Publishing{MessageId: "large", Body: []byte("[1" + strings.Repeat(",0", 1000) + "]")})
	if failed := r.Take("async.failed"); failed.MessageId != "large" || text(t, failed.Headers, "redrive-strategy") != "rest" {
		t.Errorf("%s failed with %v", failed.MessageId, failed.Headers)
	}
	if r.counted("redrive_expression_errors_total") != 1 {
		t.Error("the expression that could not read it is not counted")
	}
}
