package handler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// told is an error with all that one can tell.
type told struct {
	class, text string
	status      int
	after       *time.Duration
}

func (t *told) Error() string { return t.text }
func (t *told) Class() string { return t.class }
func (t *told) Status() int   { return t.status }

// delayed is told with a delay.
type delayed struct{ *told }

func (d delayed) RetryAfter() time.Duration { return *d.after }

// obeying is a team's program that does what a message orders.
func obeying(ctx context.Context, m *public.Message) error {
	answer := handlertest.Obey(handler.Request{
		Body: m.Body, Headers: m.Headers, ID: m.ID, IdempotencyKey: m.IdempotencyKey, Attempt: m.Attempt, Retries: m.Retries, Queue: m.Queue,
		Exchange: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, CorrelationID: m.CorrelationID, ContentType: m.ContentType,
		ReplyTo: m.ReplyTo, AppID: m.AppID, UserID: m.UserID, Priority: m.Priority, Expiration: m.Expiration,
		ContentEncoding: m.ContentEncoding, Timestamp: m.Timestamp, FirstFailure: m.FirstFailure, Traceparent: m.Traceparent, Tracestate: m.Tracestate,
	})
	clear(m.Headers) // it is its own
	clear(m.Body)
	f := answer.Failure
	switch {
	case answer.Hangs:
		answer.Hang(ctx.Done())
		return ctx.Err()
	case answer.Crash:
		panic("as ordered")
	case f == nil:
		return nil
	}
	text := f.Message
	if answer.Flood > 0 {
		text = strings.Repeat(text, answer.Flood/len(text))
	}
	var err error = &told{f.Class, text, f.Status, f.RetryAfter}
	if f.RetryAfter != nil {
		err = delayed{&told{f.Class, text, f.Status, f.RetryAfter}}
	}
	switch f.Advice {
	case retry.AdviseFail:
		return public.Fail(err)
	case retry.AdviseDrop:
		return public.Drop(err)
	case retry.AdviseRetry:
		return public.RetryAfter(*f.RetryAfter, err)
	case retry.AdviseRelease:
		return public.Release(*f.RetryAfter, err)
	default:
		return err
	}
}

func TestInProcess_Conforms(t *testing.T) {
	t.Parallel()
	handlertest.Run(t, func(t *testing.T) handlertest.Subject {
		t.Helper()
		return handlertest.Subject{Handler: inProcess(t, obeying, handler.Options{Concurrency: 4})}
	})
}

func inProcess(t *testing.T, program public.Func, o handler.Options) *handler.InProcess {
	t.Helper()
	h, err := handler.NewInProcess(program, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func TestNewInProcess_SaysWhatToDoWithoutAProgram(t *testing.T) {
	_, err := handler.NewInProcess(nil, handler.Options{})
	if err == nil || !strings.Contains(err.Error(), "redrive.dev/redrive/handler/run") {
		t.Errorf("got %v", err)
	}
}

// baker panics below code that is not the team's.
type baker struct{}

func (baker) MarshalJSON() ([]byte, error) { panic("no flour left") }

func (baker) bake(context.Context, *public.Message) error {
	_, err := json.Marshal(map[string]any{"bread": map[string]any{"loaf": baker{}}})
	return err
}

// nilError panics when it is read.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// ending ends its goroutine when it is read, as a test's FailNow does.
type ending struct{}

func (ending) Error() string { runtime.Goexit(); return "" }

func TestInProcess_TakesAPanicForACrashInTheTeamsCode(t *testing.T) {
	var nothing map[string]int
	tests := map[string]struct {
		program public.Func
		class   string
		want    []string
	}{
		"a text":   {func(context.Context, *public.Message) error { panic("no flour left") }, "panic", []string{"panic: no flour left, at ", "inprocess_test.go:"}},
		"an error": {func(context.Context, *public.Message) error { panic(errors.New("no flour left")) }, "panic", []string{"panic: no flour left, at "}},
		"of the language": {
			func(context.Context, *public.Message) error { nothing["a"] = 1; return nil }, "panic",
			[]string{"panic: assignment to entry in nil map, at redrive.dev/redrive/internal/handler_test.TestInProcess_TakesAPanic", "(inprocess_test.go:"},
		},
		"below a library": {baker{}.bake, "panic", []string{"panic: no flour left, at redrive.dev/redrive/internal/handler_test.baker.MarshalJSON (inprocess_test.go:"}},
		"in a library": {
			func(context.Context, *public.Message) error { _ = strings.Repeat("x", -1); return nil }, "panic",
			[]string{"panic: strings: negative Repeat count, at redrive.dev/redrive/internal/handler_test.TestInProcess_TakesAPanic"},
		},
		"nil":                  {func(context.Context, *public.Message) error { panic(nil) }, "panic", []string{"panic called with nil"}},
		"an error that panics": {func(context.Context, *public.Message) error { return (*nilError)(nil) }, "panic", []string{"nil pointer dereference, at redrive.dev/redrive/internal/handler_test.(*nilError).Error"}},
		"a panic after a recover": {func(context.Context, *public.Message) error {
			defer func() { panic(fmt.Sprint("again: ", recover())) }()
			panic("first")
		}, "panic", []string{"panic: again: first, at"}},
		"a huge one":                     {func(context.Context, *public.Message) error { panic(strings.Repeat("x", 10<<20)) }, "panic", []string{"inprocess_test.go:"}},
		"one that ends while it is read": {func(context.Context, *public.Message) error { panic(ending{}) }, "Goexit", []string{"runtime.Goexit"}},
		"no panic at all":                {func(context.Context, *public.Message) error { runtime.Goexit(); return nil }, "Goexit", []string{"runtime.Goexit"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := inProcess(t, tt.program, handler.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			got := h.Handle(t.Context(), handlertest.Message(handlertest.Succeed, "{}"))
			if got == nil || got.Source != retry.SourceCrash || got.Class != tt.class || len(got.Message) > 500 {
				t.Fatalf("got %+v", got)
			}
			for _, want := range tt.want {
				if !strings.Contains(got.Message, want) {
					t.Errorf("%q is not in %q", want, got.Message)
				}
			}
			if tt.class == "panic" && (!strings.Contains(log.String(), "goroutine ") || !strings.Contains(log.String(), "message=id-1") || log.Len() > 128<<10) {
				t.Errorf("the log does not show the stack: %.500s", &log)
			}
		})
	}
}

func TestInProcess_CountsAResultFromTheLastMoment(t *testing.T) {
	tests := map[string]struct {
		program func(ctx context.Context) error
		source  retry.Source // empty for success
		advice  retry.Advice
		text    string
	}{
		"success":                   {func(context.Context) error { return nil }, "", "", ""},
		"the end itself":            {func(ctx context.Context) error { return fmt.Errorf("bake: %w", ctx.Err()) }, retry.SourceTimeout, "", "bake: context deadline exceeded"},
		"an error in other words":   {func(context.Context) error { return errors.New("query interrupted") }, retry.SourceTimeout, "", "query interrupted"},
		"advice about something":    {func(context.Context) error { return public.Drop(errors.New("no order")) }, retry.SourceHandler, retry.AdviseDrop, "no order"},
		"advice about the end only": {func(ctx context.Context) error { return public.Fail(ctx.Err()) }, retry.SourceTimeout, "", "context deadline exceeded"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := inProcess(t, func(ctx context.Context, _ *public.Message) error {
				<-ctx.Done()
				return tt.program(ctx)
			}, handler.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			got := h.Handle(ctx, handlertest.Message(handlertest.Succeed, "{}"))
			switch {
			case tt.source == "":
				if got != nil {
					t.Errorf("got %+v", got)
				}
			case got == nil || got.Source != tt.source || got.Advice != tt.advice || !strings.Contains(got.Message, tt.text):
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestInProcess_GivesTheProgramItsOwnMessage(t *testing.T) {
	request := handlertest.Message(handlertest.Succeed, "body")
	list := []any{map[string]any{"deep": []byte("abc")}}
	request.Headers["list"], request.Headers["nothing"] = list, nil
	h := inProcess(t, func(_ context.Context, m *public.Message) error {
		if !reflect.DeepEqual(m.Headers, request.Headers) {
			t.Errorf("got the headers %v, want %v", m.Headers, request.Headers)
		}
		inner, _ := m.Headers["list"].([]any)
		table, _ := inner[0].(map[string]any)
		deep, _ := table["deep"].([]byte)
		deep[0], table["more"], inner[0], m.Headers["x"], m.Body[0] = 'X', 1, nil, 1, 'X'
		return nil
	}, handler.Options{})
	h.Handle(t.Context(), request)
	if string(request.Body) != "body" || len(request.Headers) != 4 || !reflect.DeepEqual(list, []any{map[string]any{"deep": []byte("abc")}}) {
		t.Errorf("the message was altered: %q %v", request.Body, request.Headers)
	}
}

// runaways are calls that do not heed their context, until they are let go.
type runaways struct {
	mu    sync.Mutex
	holds []chan struct{}
}

func (r *runaways) handle(_ context.Context, m *public.Message) error {
	if m.ID != "runaway" {
		return nil
	}
	hold := make(chan struct{})
	r.mu.Lock()
	r.holds = append(r.holds, hold)
	r.mu.Unlock()
	<-hold
	return nil
}

func (r *runaways) letGo(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, hold := range r.holds[:n] {
		close(hold)
	}
	r.holds = r.holds[n:]
}

func TestInProcess_CountsAndBoundsCallsThatRunOn(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &lockedLog{}
	r := &runaways{}
	h := inProcess(t, r.handle, handler.Options{Concurrency: 2, Metrics: registry, Log: slog.New(slog.NewTextHandler(log, nil))})
	runAway := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		got := h.Handle(ctx, handler.Request{ID: "runaway", Queue: "work"})
		if got == nil || got.Source != retry.SourceTimeout || !strings.Contains(got.Message, "still runs") {
			t.Fatalf("got %+v", got)
		}
	}
	expect := func(ready bool, now, total float64) {
		t.Helper()
		why, changed := h.Ready()
		if (why == nil) != ready {
			t.Errorf("ready: %v, want %t", why, ready)
		}
		select {
		case <-changed:
			t.Error("a change is announced, and nothing changed")
		default:
		}
		if got := values(t, registry); got["redrive_handler_abandoned_calls"] != now || got["redrive_handler_abandoned_calls_total"] != total {
			t.Errorf("metrics %v, want %v now and %v in total", got, now, total)
		}
	}
	expect(true, 0, 0)
	runAway()
	expect(true, 1, 1)
	_, changed := h.Ready()
	runAway()
	<-changed
	expect(false, 2, 2)
	if got := h.Handle(t.Context(), handler.Request{ID: "begun before"}); got != nil {
		t.Errorf("one that had been taken failed: %+v", got)
	}
	_, changed = h.Ready()
	r.letGo(1)
	<-changed
	expect(true, 1, 2)

	again, err := handler.NewInProcess(public.Func(r.handle), handler.Options{Metrics: registry})
	if err != nil {
		t.Fatalf("a handler that replaces another: %v", err)
	}
	if why, _ := again.Ready(); why != nil {
		t.Errorf("the handler in its place is not ready: %v", why)
	}
	r.letGo(1)
	log.await(t, "has returned after its time was over", 2)
	expect(true, 0, 2)
}

// Ten calls that hung with a message of 20 MiB each had their worker killed, long before they were as many as it may have at a time.
func TestInProcess_BoundsTheMemoryOfCallsThatRunOn(t *testing.T) {
	const size = 1 << 20
	r, log := &runaways{}, &lockedLog{}
	h := inProcess(t, r.handle, handler.Options{
		Concurrency: 100, Abandoned: handler.NewAbandoned(2*size + size/2), Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	for n := range 3 {
		if why, _ := h.Ready(); why != nil {
			t.Fatalf("not ready with %d of them: %v", n, why)
		}
		body := make([]byte, size)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		h.Handle(ctx, handler.Request{ID: "runaway", Body: body})
	}
	why, changed := h.Ready()
	if why == nil || !strings.Contains(why.Error(), "3 calls") || !strings.Contains(why.Error(), "3 MiB") {
		t.Errorf("with 3 of them: %v", why)
	}
	r.letGo(1)
	<-changed
	if why, _ := h.Ready(); why != nil {
		t.Errorf("after one has returned: %v", why)
	}
	r.letGo(2)
	log.await(t, "has returned", 3)
	small, large := h.FrameSize(&message.Message{}), h.FrameSize(&message.Message{Body: make([]byte, size)})
	if large-small < size {
		t.Errorf("a copy of %d bytes counts as %d", size, large-small)
	}
}

// Each reload that changed the handler let as many calls keep as much again: the new handler knew of none of them.
func TestInProcess_CountsCallsThatRunOnForTheNextHandler(t *testing.T) {
	const size = 1 << 20
	for _, test := range []struct {
		want   string
		places int
		memory int64
	}{
		{want: "by their number", places: 2},
		{want: "by the memory that they keep", places: 100, memory: 2 * size},
	} {
		t.Run(test.want, func(t *testing.T) {
			r, log := &runaways{}, &lockedLog{}
			options := handler.Options{
				Concurrency: test.places, Abandoned: handler.NewAbandoned(test.memory), Log: slog.New(slog.NewTextHandler(log, nil)),
			}
			before := inProcess(t, r.handle, options)
			for range 2 {
				body := make([]byte, size)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				before.Handle(ctx, handler.Request{ID: "runaway", Body: body})
			}
			after := inProcess(t, r.handle, options)
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			why, changed := after.Ready()
			if why == nil || !strings.Contains(why.Error(), "2 calls") {
				t.Fatalf("the handler that replaces another is ready, although calls of that one hold all that they may: %v", why)
			}
			r.letGo(1)
			<-changed
			if why, _ := after.Ready(); why != nil {
				t.Errorf("after one of them has returned: %v", why)
			}
			r.letGo(1)
			log.await(t, "has returned", 2)
		})
	}
}

func TestInProcess_IsStuckWhereRunawaysHoldAllPlacesForLong(t *testing.T) {
	r := &runaways{}
	log := &lockedLog{}
	h := inProcess(t, r.handle, handler.Options{Concurrency: 1, Log: slog.New(slog.NewTextHandler(log, nil))})
	runAway := func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		h.Handle(ctx, handler.Request{ID: "runaway"})
	}
	h.SetStuckAfter(time.Hour)
	runAway()
	r.letGo(1)
	log.await(t, "has returned", 1)
	select {
	case <-h.Stuck():
		t.Fatal("stuck, although the call has returned")
	default:
	}
	h.SetStuckAfter(time.Millisecond)
	runAway()
	<-h.Stuck()
	r.letGo(1)
	log.await(t, "has returned", 2)
}

// lockedLog may be read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) await(t *testing.T, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		found := strings.Count(l.text.String(), text)
		l.mu.Unlock()
		if found >= times {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q stands %d times in the log, want %d", text, found, times)
		}
	}
}

func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			all[family.GetName()] = value(metric)
		}
	}
	return all
}

func value(metric *dto.Metric) float64 {
	if metric.GetGauge() != nil {
		return metric.GetGauge().GetValue()
	}
	return metric.GetCounter().GetValue()
}

func BenchmarkInProcess(b *testing.B) {
	h, err := handler.NewInProcess(public.Func(func(context.Context, *public.Message) error { return nil }), handler.Options{Concurrency: 10})
	if err != nil {
		b.Fatal(err)
	}
	request := handlertest.Message(handlertest.Succeed, strings.Repeat("x", 1024))
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if failure := h.Handle(ctx, request); failure != nil {
			b.Fatal(failure)
		}
	}
}
