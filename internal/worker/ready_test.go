package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// program is a handler within the test: it is ready or not, takes its time, and remembers what happened to it.
type program struct {
	handle func(ctx context.Context, request handler.Request) *retry.Failure

	mu      sync.Mutex
	why     error
	changed chan struct{}
	calls   []string
	running int
	closed  int
	// wrong is what a worker must not do.
	wrong []string
}

func newProgram() *program { return &program{changed: make(chan struct{})} }

// started changes the rig's worker to one with this handler, and does something while there is none.
func (p *program) started(r *rig, meanwhile ...func()) {
	r.t.Helper()
	r.stop()
	for _, do := range meanwhile {
		do()
	}
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return p, nil }
	r.start(nil)
}

func (p *program) Handle(ctx context.Context, request handler.Request) *retry.Failure {
	p.mu.Lock()
	p.calls = append(p.calls, fmt.Sprintf("%s%d", request.ID, request.Attempt))
	p.running++
	if p.closed > 0 {
		p.wrong = append(p.wrong, "handled by one that is closed: "+request.ID)
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
	}()
	if p.handle == nil {
		return nil
	}
	return p.handle(ctx, request)
}

//nolint:revive,staticcheck // the interface has them in this order
func (p *program) Ready() (why error, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why, p.changed
}

func (p *program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed++; p.running > 0 || p.closed > 1 {
		p.wrong = append(p.wrong, fmt.Sprintf("closed %d times, with %d messages at it", p.closed, p.running))
	}
	return nil
}

// ready makes it ready, or not.
func (p *program) ready(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = why
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *program) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *program) closings() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// check says what the worker did that it must not do.
func (p *program) check(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, what := range p.wrong {
		t.Error(what)
	}
}

func outcomes(r *rig, kind string) int {
	r.t.Helper()
	return int(r.counted("redrive_messages_handled_total", "outcome", kind))
}

func TestHandler_NotReadyGetsNoMessageAndCostsNoAttempt(t *testing.T) {
	const messages = 60
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	p, atHandler := newProgram(), make(chan struct{}, messages)
	release := make(chan struct{})
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		atHandler <- struct{}{}
		<-release
		return nil
	}
	p.started(r)
	r.publish(numbered(messages, "a", "m")...)
	for range 10 {
		<-atHandler
	}
	p.ready(errors.New("the pool's processes do not start: exit status 3"))
	testtransport.Eventually(t, "what has not begun in its queue again", func() bool { return r.Ready(testtransport.Queue) == messages-10 })
	if err := r.worker.Ready(); err != nil {
		t.Errorf("readiness: %v, want none missing: the worker works, and its handler is a trouble of its own", err)
	}
	troubles := r.worker.Status().Troubles
	if len(troubles) != 1 || troubles[0].Reason != v1alpha1.ReasonHandlerNotReady || !strings.Contains(troubles[0].Message, "exit status 3") {
		t.Errorf("troubles: %+v", troubles)
	}
	if ready := value(t, r.registry, "redrive_handler_ready"); ready != 0 {
		t.Errorf("redrive_handler_ready is %v", ready)
	}
	close(release) // what is at the handler goes on
	testtransport.Eventually(t, "those at the handler", func() bool { return outcomes(r, "succeeded") == 10 })
	if calls := p.called(); len(calls) != 10 {
		t.Errorf("%d calls of a handler that is not ready", len(calls)-10)
	}
	p.ready(nil)
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == messages })
	for _, call := range p.called() {
		if !strings.HasSuffix(call, "1") {
			t.Errorf("call %s: an attempt was counted", call)
		}
	}
	if moved := outcomes(r, "quarantined"); moved != 0 || len(r.worker.Status().Troubles) != 0 || value(t, r.registry, "redrive_handler_ready") != 1 {
		t.Errorf("%d messages came back as if their worker had crashed; troubles %v", moved, r.worker.Status().Troubles)
	}
	p.check(t)
}

func TestHandler_GetsNothingUntilItIsReady(t *testing.T) {
	t.Parallel()
	for name, journal := range map[string]*notebook{"a worker": nil, "the quarantine worker": {}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
			r.stop()
			queue := testtransport.Queue
			p := newProgram()
			p.why = errors.New("not yet")
			r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return p, nil }
			if journal == nil {
				r.start(nil)
				r.publish(letters("a", "b", "c")...)
			} else {
				queue = "test.quarantine"
				r.start(journal)
				r.Publish("async.return", queue, letters("a", "b", "c")...)
			}
			testtransport.Eventually(t, "the trouble", func() bool { return len(r.worker.Status().Troubles) == 1 })
			if err := r.worker.Ready(); err == nil {
				t.Error("ready before its handler was once")
			}
			// Both sessions stand when the publisher takes messages; nothing is received all the same.
			testtransport.Eventually(t, "the sessions", func() bool { return r.counted("redrive_connections_total") == 2 })
			if waiting := r.Ready(queue); waiting != 3 || len(p.called()) != 0 {
				t.Errorf("%d in the queue, calls %v; want 3 and none", waiting, p.called())
			}
			p.ready(nil)
			testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == 3 })
			if calls := p.called(); len(calls) != 3 {
				t.Errorf("calls %v", calls)
			}
		})
	}
}

func TestStrict_KeepsItsOrderWhileItsHandlerComesAndGoes(t *testing.T) {
	const messages = 30
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), strict(v1alpha1.OnFailureContinue))
	p, progress := newProgram(), make(chan int, messages)
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		progress <- 1
		return nil
	}
	p.started(r)
	r.publish(numbered(messages, "a", "m")...)
	for range messages / 10 {
		for range 5 {
			<-progress
		}
		p.ready(errors.New("restarting"))
		testtransport.Eventually(t, "the trouble", func() bool { return len(r.worker.Status().Troubles) == 1 })
		p.ready(nil)
	}
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == messages })
	var want []string
	for _, m := range numbered(messages, "a", "m") {
		want = append(want, m.MessageId+"1")
	}
	if calls := p.called(); !slices.Equal(calls, want) {
		t.Errorf("calls %v, want each message once and in order", calls)
	}
}

// handlersOf gives each handler that is made to the test.
func handlersOf(r *rig) chan *program {
	made := make(chan *program, 10)
	r.handlers = func(spec v1alpha1.Handler, _ int) (handler.Handler, error) {
		if spec.HTTP.URL == "http://broken/" {
			return nil, errors.New("no such program")
		}
		p := newProgram()
		made <- p
		return p, nil
	}
	return made
}

func TestHandler_IsClosedAfterItsLastMessageWhenReplaced(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	r.stop()
	made := handlersOf(r)
	r.start(nil)
	first := <-made
	release := make(chan struct{})
	first.handle = func(context.Context, handler.Request) *retry.Failure {
		<-release
		return nil
	}
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "both at the handler", func() bool { return len(first.called()) == 2 })
	config := r.config
	config.Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://broken/"}}
	if err := r.worker.Reload(config); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("reload with a handler that cannot be made: %v", err)
	}
	config.Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://other/"}}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	second := <-made
	r.publish(letters("c")...)
	testtransport.Eventually(t, "the next message at the other handler", func() bool { return len(second.called()) == 1 })
	if first.closings() != 0 {
		t.Error("a handler was closed that has messages")
	}
	// Only a changed handler is another one.
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": testtransport.Explicit(2 * time.Second)}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	close(release)
	testtransport.Eventually(t, "the first handler to close", func() bool { return first.closings() == 1 })
	if second.closings() != 0 || len(made) != 0 {
		t.Errorf("the handler in force was closed %d times, %d more were made", second.closings(), len(made))
	}
	r.stop()
	if second.closings() != 1 {
		t.Errorf("the handler in force was closed %d times when the worker had stopped, want once", second.closings())
	}
	first.check(t)
	second.check(t)
}

func TestHandler_ReplacedUnderLoadIsClosedAndNotUsedAgain(t *testing.T) {
	const messages, handlers = 400, 8
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(100*time.Millisecond), nil)
	r.stop()
	var mu sync.Mutex
	var made []*program
	progress := make(chan struct{}, messages)
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) {
		p := newProgram()
		p.handle = func(context.Context, handler.Request) *retry.Failure {
			progress <- struct{}{}
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		made = append(made, p)
		return p, nil
	}
	r.start(nil)
	r.publish(numbered(messages, "a", "m")...)
	for i := range messages {
		<-progress
		if i%(messages/handlers) != 0 {
			continue
		}
		config := r.config
		config.Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: fmt.Sprintf("http://%d/", i)}}
		config.Concurrency = 5 + i%3
		if err := r.worker.Reload(config); err != nil {
			t.Fatal(err)
		}
	}
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == messages })
	r.stop()
	if len(made) != handlers+1 {
		t.Errorf("%d handlers were made", len(made))
	}
	for i, p := range made {
		if p.closings() != 1 {
			t.Errorf("handler %d was closed %d times", i, p.closings())
		}
		p.check(t)
	}
}

// slowStart is a handler that takes its time to start.
type slowStart struct {
	*program

	time    time.Duration
	retired *atomic.Bool
}

func (s slowStart) StartTime() time.Duration { return s.time }

func (s slowStart) Retire() { s.retired.Store(true) }

// All pods take a configuration over within seconds: none handled anything until its next program had started, and for good where that does not start.
func TestReload_GoesOnWithTheHandlerBeforeUntilTheNextHasStarted(t *testing.T) {
	for name, tt := range map[string]struct {
		limit time.Duration
		then  func(r *rig, next *program)
	}{
		"it starts":        {time.Hour, func(_ *rig, next *program) { next.ready(nil) }},
		"it does not":      {100 * time.Millisecond, func(*rig, *program) {}},
		"the worker stops": {time.Hour, func(r *rig, _ *program) { r.stop() }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
			r.stop()
			first, next, retired := newProgram(), newProgram(), &atomic.Bool{}
			next.why = errors.New("it has not started")
			r.handlers = func(spec v1alpha1.Handler, _ int) (handler.Handler, error) {
				if spec.HTTP.URL == "http://next/" {
					return slowStart{next, tt.limit, &atomic.Bool{}}, nil
				}
				return slowStart{first, tt.limit, retired}, nil
			}
			r.start(nil)
			before, reloaded := r.worker.ConfigHash(), make(chan error, 1)
			config := r.config
			config.Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://next/"}}
			go func() { reloaded <- r.worker.Reload(config) }()
			if tt.limit == time.Hour {
				r.publish(letters("a")...)
				testtransport.Eventually(t, "a message to be handled meanwhile", func() bool { return len(first.called()) == 1 })
				if r.worker.ConfigHash() != before || retired.Load() {
					t.Error("the next handler is in force, and has not started")
				}
			}
			tt.then(r, next)
			if err := <-reloaded; err != nil || r.worker.ConfigHash() == before || !retired.Load() {
				t.Errorf("the configuration is not taken over, %v, or the handler before not retired", err)
			}
			next.ready(nil)
		})
	}
}
