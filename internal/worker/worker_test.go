package worker_test

import (
	"cmp"
	"context"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/trace"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/worker"
)

func TestMain(m *testing.M) {
	// The tests wait for lanes, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

// partner is the code that the worker calls: it remembers every request and answers as told.
type partner struct {
	*httptest.Server

	mu       sync.Mutex
	requests []request
	answer   func(r *http.Request, attempt int) int
}

type request struct {
	at     time.Time
	header http.Header
	body   string
}

func newPartner(t *testing.T, answer func(r *http.Request, attempt int) int) *partner {
	t.Helper()
	p := &partner{answer: answer}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.requests = append(p.requests, request{at: time.Now(), header: r.Header, body: string(body)})
		p.mu.Unlock()
		attempt, _ := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
		w.WriteHeader(p.answer(r, attempt))
	}))
	t.Cleanup(func() {
		if t.Failed() { // Requests that the test did not come to answer would keep it from ending.
			go p.Close()
			return
		}
		p.Close()
	})
	return p
}

func always(status int) func(*http.Request, int) int {
	return func(*http.Request, int) int { return status }
}

func (p *partner) got() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]request(nil), p.requests...)
}

// rig is a Transport on a real broker, with a worker that can be started and stopped.
type rig struct {
	*testtransport.Broker

	t        *testing.T
	proxy    *testtransport.Proxy
	worker   *worker.Worker
	registry *prometheus.Registry
	config   compile.Config
	stop     func()
	password string
	// url of the vhost for a user with all rights.
	url string

	// traces of workers that are started from now on.
	traces trace.TracerProvider
	// handlers, memory and log of workers that are started from now on; nil and 0 for the usual ones.
	handlers worker.HandlerFactory
	memory   int64
	shared   *worker.Memory
	log      slog.Handler

	mu     sync.Mutex
	target amqp.Target
}

// use changes where and as whom the worker's next sessions are made.
func (r *rig) use(change func(*amqp.Target)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.target)
}

// newRig declares the topology and starts the worker, under a login that has no right too many.
func newRig(t *testing.T, p *partner, policy v1alpha1.RetryPolicySpec, change func(*v1alpha1.Transport)) *rig {
	t.Helper()
	t.Parallel() // Every rig has its vhost, its login and its worker.
	return newRigOn(t, testbroker.Shared(t), p, policy, change)
}

// newRigAlone is newRig for a test that sets the environment, or in which others would take the time that it measures.
func newRigAlone(t *testing.T, p *partner, policy v1alpha1.RetryPolicySpec, change func(*v1alpha1.Transport)) *rig {
	t.Helper()
	return newRigOn(t, testbroker.Shared(t), p, policy, change)
}

// newRigOn is newRigAlone on a broker of its own.
func newRigOn(t *testing.T, shared *testbroker.Broker, p *partner, policy v1alpha1.RetryPolicySpec, change func(*v1alpha1.Transport)) *rig {
	t.Helper()
	transport := testtransport.New(p.URL)
	if change != nil {
		change(transport)
	}
	result := testtransport.Compile(t, transport, policy)
	vhost := shared.Vhost(t)
	r := &rig{
		t:      t,
		Broker: testtransport.Declare(t, shared.URL(vhost), transport, result),
		proxy:  testtransport.NewProxy(t, testtransport.Address(t, shared.AMQPURL)),
		config: result.Workers[0],
	}
	// Exactly the rights that a worker needs.
	username := "worker-" + vhost
	r.password = shared.User(t, username, "", vhost, "^$", `^async\.(fallback|return|failed)$`, `^(test|free|q[0-9]+)(\.(quarantine|migrating))?$`)
	r.url = shared.URL(vhost)
	for _, policy := range r.policies(transport, result) {
		shared.SetPolicy(t, vhost, policy.Name, policy.Pattern, policy.ApplyTo, policy.Priority, policy.Definition)
	}
	r.target = amqp.Target{Address: r.proxy.Address, Username: username, Password: r.password, VHost: vhost}
	r.start(nil)
	return r
}

// policies are the RabbitMQ policies of the work queues.
func (r *rig) policies(transport *v1alpha1.Transport, result *compile.Result) []topology.Policy {
	r.t.Helper()
	objects, err := topology.Desired(transport, result.Needs, "test/default/async")
	if err != nil {
		r.t.Fatal(err)
	}
	return objects.Policies
}

// start runs the rig's worker: the quarantined messages' one where there is a journal.
func (r *rig) start(journal worker.Journal) {
	r.t.Helper()
	r.registry = prometheus.NewRegistry()
	r.worker, r.stop = r.run(r.registry, journal)
}

// handleQuarantine runs a quarantine worker beside the rig's own until the test ends.
func (r *rig) handleQuarantine() {
	r.t.Helper()
	r.run(prometheus.NewRegistry(), &notebook{})
}

// run runs a worker until stop is called or the test ends.
func (r *rig) run(registry *prometheus.Registry, journal worker.Journal) (w *worker.Worker, stop func()) {
	t := r.t
	t.Helper()
	w, err := worker.New(worker.Options{
		Config: r.config,
		Source: func() (amqp.Target, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.target, nil
		},
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			if r.handlers != nil {
				return r.handlers(spec, concurrency)
			}
			return newHandler(spec, concurrency)
		},
		Memory:  r.memory,
		Shared:  r.shared,
		Now:     time.Now,
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(registry),
		Log:     slog.New(cmp.Or[slog.Handler](r.log, slog.NewTextHandler(t.Output(), nil))),
		Journal: journal,
		Traces:  r.traces,
		Name:    "worker-0",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-stopped
	}
	t.Cleanup(stop)
	if r.handlers == nil {
		testtransport.Eventually(t, "the worker", func() bool { return w.Ready() == nil })
	}
	return w, stop
}

// newHandler makes the handlers of a rig's workers.
func newHandler(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
	return handler.New(spec, handler.Options{Concurrency: concurrency, Version: "test"})
}

func (r *rig) publish(messages ...amqp091.Publishing) {
	r.t.Helper()
	r.Publish("async", testtransport.Queue, messages...)
}

// empty waits until the work queue and the lanes hold nothing, and nothing is on loan.
func (r *rig) empty() {
	r.t.Helper()
	testtransport.Eventually(r.t, "an empty work queue and empty lanes", func() bool {
		return r.Ready(testtransport.Queue) == 0 && r.Waiting() == 0
	})
}

func text(t *testing.T, headers amqp091.Table, name string) string {
	t.Helper()
	s, ok := headers[name].(string)
	if !ok {
		t.Errorf("header %s is %#v, want text", name, headers[name])
	}
	return s
}

func TestWorker_PostsAMessageWithItsMetadata(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.publish(amqp091.Publishing{MessageId: "m-1", ContentType: "application/json", Body: []byte(`{"a":1}`), Headers: amqp091.Table{"tenant": "acme"}})
	testtransport.Eventually(t, "the request", func() bool { return len(p.got()) == 1 })
	got := p.got()[0]
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Redrive-Message-Id": "m-1", "Redrive-Attempt": "1", "Redrive-Retries": "0",
		"Redrive-Queue": "test", "Redrive-Routing-Key": "test", "Redrive-Header-Tenant": "acme", "Redrive-First-Failure": "",
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.header.Get(name), want)
		}
	}
	if got.body != `{"a":1}` || got.header.Get("Idempotency-Key") == "" {
		t.Errorf("body %q, idempotency key %q", got.body, got.header.Get("Idempotency-Key"))
	}
	r.stop()
	if left := r.Ready(testtransport.Queue) + r.Ready("async.failed"); left != 0 {
		t.Errorf("%d messages left", left)
	}
}

// failsTwice answers each message with two failures, and then takes it.
func failsTwice(_ *http.Request, attempt int) int {
	if attempt < 3 {
		return 502
	}
	return 200
}

func TestWorker_RetriesAFailedMessageOnSchedule(t *testing.T) {
	p := newPartner(t, failsTwice)
	r := newRig(t, p, testtransport.Explicit(300*time.Millisecond, 600*time.Millisecond), nil)
	r.publish(amqp091.Publishing{Body: []byte("x")})
	testtransport.Eventually(t, "three attempts", func() bool { return len(p.got()) == 3 })
	got := p.got()
	if first, second := got[1].at.Sub(got[0].at), got[2].at.Sub(got[1].at); first < 300*time.Millisecond || second < 600*time.Millisecond {
		t.Errorf("retried after %s and %s: too early", first, second)
	}
	for i, attempt := range got {
		if attempt.header.Get("Redrive-Attempt") != strconv.Itoa(i+1) || attempt.header.Get("Redrive-Routing-Key") != "test" {
			t.Errorf("attempt %d: %v", i+1, attempt.header)
		}
		if attempt.header.Get("Idempotency-Key") != got[1].header.Get("Idempotency-Key") && i > 0 {
			t.Error("the idempotency key changes between attempts")
		}
	}
	if got[1].header.Get("Redrive-First-Failure") == "" {
		t.Error("the first failure is not told")
	}
}

func TestHandler_IsToldTheSameOfAMessageOnEachAttempt(t *testing.T) {
	p := newPartner(t, failsTwice)
	r := newRig(t, p, testtransport.Explicit(300*time.Millisecond, 300*time.Millisecond), nil)
	if err := r.Channel().QueueBind(testtransport.Queue, "order.created", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	r.Publish("async", "order.created", amqp091.Publishing{Body: []byte("x")})
	testtransport.Eventually(t, "three attempts", func() bool { return len(p.got()) == 3 })
	got := p.got()
	for i, attempt := range got {
		if key, retries := attempt.header.Get("Redrive-Routing-Key"), attempt.header.Get("Redrive-Retries"); key != "order.created" || retries != strconv.Itoa(i) {
			t.Errorf("attempt %d: key %q, retries %q", i+1, key, retries)
		}
	}
	first, err := time.Parse(time.RFC3339, got[1].header.Get("Redrive-First-Failure"))
	if err != nil || first.Before(before.Truncate(time.Millisecond)) || first.After(got[1].at.Add(-300*time.Millisecond)) {
		t.Errorf("first failure %s (%v), between %s and the second attempt at %s", first, err, before, got[1].at)
	}
	if again := got[2].header.Get("Redrive-First-Failure"); again != got[1].header.Get("Redrive-First-Failure") {
		t.Errorf("first failure %s, then %s", first, again)
	}
}

func TestWorker_GivesUpAMessageWithItsReason(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	r.publish(amqp091.Publishing{MessageId: "m-1", Body: []byte("keep me"), Headers: amqp091.Table{"tenant": "acme"}})
	failed := r.Take("async.failed")
	if string(failed.Body) != "keep me" || failed.MessageId != "m-1" || text(t, failed.Headers, "tenant") != "acme" {
		t.Errorf("the message changed: %+v", failed)
	}
	for name, want := range map[string]string{
		"redrive-reason": "MaxRetries", "redrive-queue": "test", "redrive-error-source": "Handler", "redrive-exchange": "async", "redrive-routing-key": "test",
	} {
		if got := text(t, failed.Headers, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if failed.Headers["redrive-attempts"] != int64(3) || failed.Headers["redrive-error-status"] != int64(502) {
		t.Errorf("attempts %v, status %v; want 3 and 502", failed.Headers["redrive-attempts"], failed.Headers["redrive-error-status"])
	}
	if history := text(t, failed.Headers, "redrive-history"); strings.Count(history, `"attempt"`) != 3 {
		t.Errorf("history %s: want three attempts", history)
	}
	if len(p.got()) != 3 {
		t.Errorf("%d attempts, want 3", len(p.got()))
	}
}

func TestStrategies_FailAndDropMessages(t *testing.T) {
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail},
		{Name: "forget", When: "error.status == 410", Action: v1alpha1.ActionDrop},
	}
	p := newPartner(t, func(r *http.Request, _ int) int {
		status, _ := strconv.Atoi(r.Header.Get("Redrive-Header-Answer"))
		return status
	})
	r := newRig(t, p, policy, nil)
	r.publish(
		amqp091.Publishing{Headers: amqp091.Table{"answer": "422"}},
		amqp091.Publishing{Headers: amqp091.Table{"answer": "410"}},
	)
	failed := r.Take("async.failed")
	if text(t, failed.Headers, "redrive-strategy") != "rejected" || text(t, failed.Headers, "redrive-reason") != "Strategy" {
		t.Errorf("headers %v: want the strategy rejected", failed.Headers)
	}
	testtransport.Eventually(t, "both requests", func() bool { return len(p.got()) == 2 })
	r.stop()
	if left := r.Ready(testtransport.Queue) + r.Waiting() + r.Ready("async.failed"); left != 0 {
		t.Errorf("%d messages left: the dropped one is kept", left)
	}
}

func TestHandler_FailuresTellTheirSource(t *testing.T) {
	p := newPartner(t, nil)
	p.answer = func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Header-Behave") == "hang" {
			<-r.Context().Done()
		}
		return 200
	}
	r := newRig(t, p, testtransport.Explicit(), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(300 * time.Millisecond)
	})
	r.publish(amqp091.Publishing{Headers: amqp091.Table{"behave": "hang"}})
	if source := text(t, r.Take("async.failed").Headers, "redrive-error-source"); source != "Timeout" {
		t.Errorf("source of a hanging handler: %q", source)
	}
	p.CloseClientConnections()
	p.Listener.Close()
	r.publish(amqp091.Publishing{})
	if source := text(t, r.Take("async.failed").Headers, "redrive-error-source"); source != "Connection" {
		t.Errorf("source of a handler that is away: %q", source)
	}
}

func TestEarly_ParksAMessageAgainWithoutCounting(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	due := time.Now().Add(1500 * time.Millisecond)
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{Headers: amqp091.Table{
		"redrive-not-before": due.UnixMilli(), "redrive-attempts": int64(1), "redrive-first-failure": time.Now().UnixMilli(),
	}})
	testtransport.Eventually(t, "the request", func() bool { return len(p.got()) == 1 })
	got := p.got()[0]
	if early := due.Sub(got.at); early > 250*time.Millisecond {
		t.Errorf("handled %s before it was due", early)
	}
	if got.header.Get("Redrive-Attempt") != "2" {
		t.Errorf("attempt %s, want 2: parking counts nothing", got.header.Get("Redrive-Attempt"))
	}
}

func TestEarly_WaitsForAFarTimeInAHundredHopsAtMost(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond), nil)
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{Headers: amqp091.Table{"redrive-not-before": time.Now().Add(time.Hour).UnixMilli()}})
	testtransport.Eventually(t, "the request", func() bool { return len(p.got()) == 1 })
	if hops := r.counted("redrive_messages_handled_total", "outcome", "redelayed"); hops == 0 || hops > 100 {
		t.Errorf("%v hops, want 100 at most", hops)
	}
}

func TestExpired_FailsAMessagePastItsDeadline(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{Headers: amqp091.Table{"redrive-deadline": time.Now().Add(-time.Second).UnixMilli()}})
	if reason := text(t, r.Take("async.failed").Headers, "redrive-reason"); reason != "Expired" {
		t.Errorf("reason %q, want Expired", reason)
	}
	if len(p.got()) != 0 {
		t.Error("the handler was called")
	}
}

func TestExpired_HoldsThroughTheLanes(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(1500*time.Millisecond), nil)
	r.publish(amqp091.Publishing{Expiration: "1000"})
	failed := r.Take("async.failed")
	if text(t, failed.Headers, "redrive-reason") != "Expired" || len(p.got()) != 1 {
		t.Errorf("reason %v after %d attempts, want Expired after 1", failed.Headers["redrive-reason"], len(p.got()))
	}
}

// largeBody is 20 MiB, or what a broker takes that is not ours and allows for less.
func largeBody(t *testing.T) int {
	t.Helper()
	shared := testbroker.Shared(t)
	b := testtransport.Connect(t, shared.URL(shared.Vhost(t)))
	if _, err := b.Channel().QueueDeclare("probe", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	const wanted, rabbitMQ4 = 20 << 20, 16 << 20
	confirm, err := b.Channel().PublishWithDeferredConfirm("", "probe", true, false, amqp091.Publishing{Body: make([]byte, wanted)})
	if err != nil || !confirm.Wait() {
		return rabbitMQ4
	}
	return wanted
}

func TestWorker_FailsGarbageAndNeverLoops(t *testing.T) {
	t.Parallel()
	nested := amqp091.Table{"deep": amqp091.Table{"deeper": []any{int32(1), "x", nil}}}
	cases := []struct {
		name    string
		message amqp091.Publishing
	}{
		{"an empty body", amqp091.Publishing{}},
		{"a body that is not what its type says", amqp091.Publishing{ContentType: "application/json", Body: []byte{0xff, 0x00, '{'}}},
		{"a negative count", amqp091.Publishing{Headers: amqp091.Table{"redrive-retries": int64(-7), "redrive-attempts": int64(-1)}}},
		{"a huge count", amqp091.Publishing{Headers: amqp091.Table{"redrive-attempts": int64(1) << 62, "redrive-streak": int64(1) << 62}}},
		{"a count as text", amqp091.Publishing{Headers: amqp091.Table{"redrive-retries": "two", "redrive-attempts": 1.5}}},
		{"a not-before in the year 9999", amqp091.Publishing{Headers: amqp091.Table{"redrive-not-before": int64(253_370_764_800_000)}}},
		{"a first failure in the future", amqp091.Publishing{Headers: amqp091.Table{"redrive-first-failure": int64(253_370_764_800_000)}}},
		{"tables where text belongs", amqp091.Publishing{Headers: amqp091.Table{"redrive-strategy": nested, "redrive-history": nested, "redrive-lane": true, "redrive-id": nested}}},
		{"a history that is not JSON", amqp091.Publishing{Headers: amqp091.Table{"redrive-history": strings.Repeat("[", 10_000)}}},
		{"100 KiB of headers", amqp091.Publishing{Headers: amqp091.Table{"big": strings.Repeat("x", 100<<10)}}},
		{"headers up to the frame", amqp091.Publishing{Headers: amqp091.Table{"big": strings.Repeat("x", 127<<10)}}},
		{"20 MiB of body", amqp091.Publishing{Body: make([]byte, largeBody(t))}},
		{"odd properties", amqp091.Publishing{Priority: 255, ReplyTo: "amq.rabbitmq.reply-to.x", CorrelationId: strings.Repeat("c", 255), Headers: amqp091.Table{"CC": []any{"test"}, "x-death": nested}}},
	}
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{{Name: "reads-the-body", When: "message.body.kind == 'x' && message.headers.nope == 1", Action: v1alpha1.ActionFail}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := newPartner(t, always(500))
			r := newRig(t, p, policy, nil)
			// Around the exchange: a broker with a smaller limit for messages says so here.
			r.Publish("", testtransport.Queue, c.message)
			failed := r.Take("async.failed")
			if len(failed.Body) != len(c.message.Body) {
				t.Errorf("%d bytes of body arrive, want %d", len(failed.Body), len(c.message.Body))
			}
			if attempts := len(p.got()); attempts < 1 || attempts > 3 {
				t.Errorf("%d attempts", attempts)
			}
			r.empty()
		})
	}
}

func TestDrain_GivesBackWhatHasNotBegun(t *testing.T) {
	release := make(chan struct{})
	p := newPartner(t, nil)
	p.answer = func(*http.Request, int) int {
		<-release
		return 200
	}
	r := newRig(t, p, testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		one := int32(1)
		tr.Spec.Workers[0].Concurrency = &one
	})
	r.publish(make([]amqp091.Publishing, 5)...)
	testtransport.Eventually(t, "the first attempt", func() bool { return len(p.got()) == 1 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	testtransport.Eventually(t, "the others in their queue", func() bool { return r.Ready(testtransport.Queue) == 4 })
	close(release)
	<-stopped
	for _, d := range r.TakeAll(testtransport.Queue) {
		if d.Redelivered || d.Headers["redrive-attempts"] != nil {
			t.Errorf("a message that was given back counts as redelivered (%v) or attempted (%v)", d.Redelivered, d.Headers["redrive-attempts"])
		}
	}
	if len(p.got()) != 1 {
		t.Errorf("%d attempts, want 1", len(p.got()))
	}
}

func TestDetour_TakesTheNextLargerLaneWhereOneIsGone(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return 502
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, time.Second), nil)
	if err := r.Channel().QueueUnbind("async.fallback.100ms", "", "async.fallback", amqp091.Table{"x-match": "all", "redrive-lane": "100ms"}); err != nil {
		t.Fatal(err)
	}
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the second attempt", func() bool { return len(p.got()) == 2 })
	if got := p.got(); got[1].at.Sub(got[0].at) < time.Second {
		t.Errorf("retried after %s: not by the larger lane", got[1].at.Sub(got[0].at))
	}
}

func TestSettle_HoldsMessagesWhilePublishingIsImpossible(t *testing.T) {
	p := newPartner(t, always(422))
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{{Name: "rejected", When: "true", Action: v1alpha1.ActionFail}}
	r := newRig(t, p, policy, nil)
	if err := r.Channel().ExchangeDelete("async.failed", false, false); err != nil {
		t.Fatal(err)
	}
	r.publish(make([]amqp091.Publishing, 50)...)
	// No more than the prefetch are held, and that begins small.
	testtransport.Eventually(t, "attempts", func() bool { return len(p.got()) >= 4 })
	testtransport.Eventually(t, "the worker to say so", func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Reason == "PublishFailing" && strings.HasPrefix(troubles[0].Subject, "async.failed ")
	})
	if got := value(t, r.registry, "redrive_publish_failing"); got != 1 {
		t.Errorf("redrive_publish_failing is %v, want 1", got)
	}
	if err := r.worker.Ready(); err != nil {
		t.Errorf("not ready, for one exchange: %v", err)
	}
	if err := r.Channel().ExchangeDeclare("async.failed", "fanout", true, false, false, false, amqp091.Table{"redrive-owner": "test/default/async"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Channel().QueueBind("async.failed", "", "async.failed", false, nil); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "all in the failure queue", func() bool { return r.Ready("async.failed") == 50 })
	r.empty()
}

func TestWorker_LosesNothingWhenItsConnectionIsCut(t *testing.T) {
	const messages = 300
	handled := sync.Map{}
	p := newPartner(t, nil)
	p.answer = func(r *http.Request, attempt int) int {
		if attempt < 2 {
			return 502
		}
		handled.Store(r.Header.Get("Redrive-Message-Id"), true)
		return 200
	}
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond), nil)
	r.handleQuarantine()
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		all[i].MessageId = strconv.Itoa(i)
	}
	r.publish(all...)
	for _, at := range []int{50, 150, 300, 450} {
		testtransport.Eventually(t, "attempts", func() bool { return len(p.got()) >= at })
		r.proxy.Cut()
	}
	count := func() (n int) {
		handled.Range(func(any, any) bool { n++; return true })
		return n
	}
	testtransport.Eventually(t, "every message handled or failed", func() bool {
		return r.Stored() == 0 && count()+r.Ready("async.failed") >= messages
	})
	for _, d := range r.TakeAll("async.failed") {
		handled.Store(d.MessageId, true)
	}
	if count() != messages {
		t.Errorf("%d of %d ids handled or failed", count(), messages)
	}
}

func TestReload_ChangesThePolicyAndKeepsTheSessions(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	config := r.config
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": testtransport.Explicit()}
	before, sessions := r.worker.ConfigHash(), r.counted("redrive_connections_total")
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	if r.worker.ConfigHash() == before {
		t.Error("the hash does not change")
	}
	r.publish(amqp091.Publishing{})
	if failed := r.Take("async.failed"); failed.Headers["redrive-attempts"] != int64(1) {
		t.Errorf("attempts %v, want 1: the new policy has no retries", failed.Headers["redrive-attempts"])
	}
	if now := r.counted("redrive_connections_total"); sessions == 0 || now != sessions {
		t.Errorf("%v sessions before, and %v after", sessions, now)
	}
}

func TestReload_RefusesAConfigurationThatDoesNotCompile(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(), nil)
	broken := r.config
	policy := testtransport.Explicit()
	policy.Strategies = []v1alpha1.Strategy{{Name: "typo", When: "error.statsu == 1"}}
	broken.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": policy}
	before := r.worker.ConfigHash()
	if err := r.worker.Reload(broken); err == nil || !strings.Contains(err.Error(), "statsu") {
		t.Errorf("error %v, want one that names the typo", err)
	}
	if r.worker.ConfigHash() != before {
		t.Error("the broken configuration is in force")
	}
	r.publish(amqp091.Publishing{})
	r.Take("async.failed")
}

func TestRules_ComeBeforeThePolicyOfTheQueue(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(), nil)
	config := r.config
	config.Rules = []compile.Rule{{When: "message.headers.partner == 'acme'", Policy: "acme"}}
	config.Policies = map[string]v1alpha1.RetryPolicySpec{
		"policy": testtransport.Explicit(),
		"acme":   {Strategies: []v1alpha1.Strategy{{Name: "acme-only", When: "true", Action: v1alpha1.ActionFail}}},
	}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	r.publish(amqp091.Publishing{MessageId: "acme", Headers: amqp091.Table{"partner": "acme"}}, amqp091.Publishing{MessageId: "other"})
	for range 2 {
		failed := r.Take("async.failed")
		strategy, _ := failed.Headers["redrive-strategy"].(string)
		if want := map[string]string{"acme": "acme-only", "other": ""}[failed.MessageId]; strategy != want {
			t.Errorf("message %s decided by %q, want %q", failed.MessageId, strategy, want)
		}
	}
}
