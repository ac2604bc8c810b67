package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/process"
)

// worker is the other side of a Serve.
type worker struct {
	t       *testing.T
	to      io.WriteCloser
	from    *bufio.Scanner
	outcome chan error
}

// serve starts Serve, and reads its hello.
func serve(ctx context.Context, t *testing.T, concurrency int, handle handler.Func) *worker {
	t.Helper()
	in, to := io.Pipe()
	from, out := io.Pipe()
	w := &worker{t: t, to: to, from: bufio.NewScanner(from), outcome: make(chan error, 1)}
	go func() {
		err := process.Serve(ctx, in, out, handle, concurrency)
		_ = out.Close()
		_ = in.Close()
		w.outcome <- err
	}()
	if got, want := w.read(), fmt.Sprintf("map[concurrency:%d protocol:1 type:hello]", concurrency); fmt.Sprint(got) != want {
		t.Fatalf("hello is %v", got)
	}
	return w
}

func (w *worker) read() map[string]any {
	w.t.Helper()
	var frame map[string]any
	if !w.from.Scan() {
		w.t.Fatalf("the output has ended: %v", w.from.Err())
	}
	if err := json.Unmarshal(w.from.Bytes(), &frame); err != nil {
		w.t.Fatalf("%v: %s", err, w.from.Bytes())
	}
	return frame
}

func (w *worker) write(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w.to, text); err != nil {
		w.t.Fatal(err)
	}
}

// end closes the input and returns what Serve does.
func (w *worker) end() error {
	_ = w.to.Close()
	return <-w.outcome
}

func message(id, rest string) string {
	return fmt.Sprintf(`{"type":"message","id":%q,"deadline":"2099-01-01T00:00:00.000Z","message":{"id":"m-%s","attempt":2,"queue":"work","headers":{"big":9007199254740993,"half":0.5,"list":[1,{"x":2}]}}%s}`+"\n", id, id, rest)
}

// coded is an error that says all that one can.
type coded struct{ error }

func (coded) Class() string { return "OutOfStock" }
func (coded) Status() int   { return 409 }

func TestServe_WritesWhatTheHandlerReturns(t *testing.T) {
	outcomes := map[string]error{
		"none": nil, "plain": errors.New("broken"), "coded": coded{errors.New("no flour left")},
		"fail": handler.Fail(errors.New("never")), "drop": handler.Drop(nil), "retry": handler.RetryAfter(1500*time.Millisecond, errors.New("later")),
		"long": errors.New(strings.Repeat("x", 1<<20)), "carry": handler.Carry("step 2", handler.Release(time.Second, nil)), "taken back": handler.Carry("", nil),
	}
	want := map[string]string{
		"none":  `"id":"none","outcome":"ack"`,
		"plain": `"message":"broken","outcome":"failure"`,
		"coded": `"class":"OutOfStock","id":"coded","message":"no flour left","outcome":"failure","status":409`,
		"fail":  `"advice":"fail"`, "drop": `"advice":"drop"`, "retry": `"advice":"retry","id":"retry","message":"later","outcome":"failure","retryAfter":1.5`,
		"long": `xxx`, "carry": `"advice":"release","carry":"step 2"`, "taken back": `"carry":""`,
	}
	w := serve(t.Context(), t, 1, func(_ context.Context, m *handler.Message) error { return outcomes[string(m.Body)] })
	for name, part := range want {
		w.write(message(name, fmt.Sprintf(`,"body":%q`, name)))
		got, err := json.Marshal(w.read())
		if err != nil || !strings.Contains(string(got), part) || !strings.Contains(string(got), `"type":"result"`) || len(got) > 64<<10 {
			t.Errorf("%s: got %.300s", name, got)
		}
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

// A helper of a test library may end the goroutine. The worker waited for the result until the timeout, and killed the process with all that it handled.
func TestServe_AHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	w := serve(t.Context(), t, 1, func(_ context.Context, m *handler.Message) error {
		if string(m.Body) == "ends" {
			runtime.Goexit()
		}
		return nil
	})
	for body, part := range map[string]string{"ends": `"class":"Goexit"`, "returns": `"outcome":"ack"`} {
		w.write(message(body, fmt.Sprintf(`,"body":%q`, body)))
		if got, err := json.Marshal(w.read()); err != nil || !strings.Contains(string(got), part) || !strings.Contains(string(got), `"id":"`+body) {
			t.Errorf("%s: got %s", body, got)
		}
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestServe_CarryOfTheLastAttempt(t *testing.T) {
	w := serve(t.Context(), t, 1, func(_ context.Context, m *handler.Message) error { return handler.Carry(m.Carry+"+1", nil) })
	w.write(`{"type":"message","id":"1","message":{"id":"m","carry":"done: é\n"},"body":""}` + "\n")
	if got := w.read()["carry"]; got != "done: é\n+1" {
		t.Errorf("got %q", got)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestServe_ShowsTheMessageToTheHandler(t *testing.T) {
	w := serve(t.Context(), t, 1, func(ctx context.Context, m *handler.Message) error {
		deadline, ok := ctx.Deadline()
		return fmt.Errorf("%s %s %d %q %v %v %v %v %t", m.ID, m.Queue, m.Attempt, m.Body, m.Headers["big"], m.Headers["half"], m.Headers["list"], deadline.Year(), ok)
	})
	const about = ` 9007199254740993 0.5 [1 map[x:2]] 2099 true`
	for rest, body := range map[string]string{`,"body":"text"`: `"text"`, `,"body":""`: `""`, `,"bodyBase64":"AP8="`: `"\x00\xff"`} {
		w.write(message("1", rest))
		if got := w.read()["message"]; got != "m-1 work 2 "+body+about {
			t.Errorf("got %v", got)
		}
	}
	w.write(`{"type":"news","of":"a later version"}` + "\n" + message("2", `,"body":""`))
	if got := w.read()["id"]; got != "2" {
		t.Errorf("got the result of %v", got)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestServe_HandlesMessagesAtOnceAndAnswersAllBeforeItEnds(t *testing.T) {
	begun, release := make(chan struct{}, 2), make(chan struct{})
	w := serve(t.Context(), t, 2, func(context.Context, *handler.Message) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	w.write(message("1", `,"body":""`) + message("2", `,"body":""`))
	<-begun
	<-begun
	_ = w.to.Close()
	close(release)
	if first, second := w.read()["id"], w.read()["id"]; first == second {
		t.Errorf("%v was answered twice", first)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestProgress_IsToldAndMovesTheDeadline(t *testing.T) {
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
	w := serve(t.Context(), t, 1, func(ctx context.Context, _ *handler.Message) error {
		before, _ := ctx.Deadline()
		time.Sleep(time.Millisecond) // time passes, and nothing else is waited for
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		process.Progress(inner)
		after, _ := ctx.Deadline()
		process.Progress(context.Background()) //nolint:contextcheck // that it is not of a message is the point
		return fmt.Errorf("%t", after.After(before))
	})
	w.write(fmt.Sprintf(`{"type":"message","id":"7","deadline":%q,"message":{},"body":""}`+"\n", soon))
	if got := fmt.Sprint(w.read()); got != "map[id:7 type:progress]" {
		t.Errorf("got %s", got)
	}
	if got := w.read()["message"]; got != "true" {
		t.Errorf("the deadline moved: %v", got)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestServe_EndsTheContextOfAMessageAtItsDeadline(t *testing.T) {
	w := serve(t.Context(), t, 1, func(ctx context.Context, _ *handler.Message) error {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		<-inner.Done()
		process.Progress(ctx) // too late
		return fmt.Errorf("%t", errors.Is(ctx.Err(), context.DeadlineExceeded))
	})
	w.write(`{"type":"message","id":"7","deadline":"2020-01-01T00:00:00.000Z","message":{},"body":""}` + "\n")
	if got := w.read()["message"]; got != "true" {
		t.Errorf("got %v", got)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func TestServe_EndsWithItsContextAfterMessagesInHand(t *testing.T) {
	begun := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := serve(ctx, t, 1, func(ctx context.Context, _ *handler.Message) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	})
	w.write(message("1", `,"body":""`))
	<-begun
	cancel()
	if got := w.read()["message"]; got != "context canceled" {
		t.Errorf("got %v", got)
	}
	if err := <-w.outcome; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestServe_CancelsTheHandlersContextWithItsCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w := serve(ctx, t, 1, func(ctx context.Context, _ *handler.Message) error {
		cancel(io.ErrUnexpectedEOF)
		<-ctx.Done()
		return fmt.Errorf("%w, for %w", ctx.Err(), context.Cause(ctx))
	})
	w.write(message("1", `,"body":""`))
	if got := w.read()["message"]; got != "context canceled, for unexpected EOF" {
		t.Errorf("got %v", got)
	}
	if err := <-w.outcome; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

func TestServe_FailsOnABrokenFrame(t *testing.T) {
	for input, want := range map[string]string{
		"nonsense\n": "read a frame", `{"type":"message"}` + "\n": "a message without an id", `{"type":"mess`: "amid a frame",
		`{"type":"message","id":"1","message":{"attempt":"x"}}` + "\n": "read a frame",
	} {
		w := serve(t.Context(), t, 1, func(context.Context, *handler.Message) error { return nil })
		w.write(input)
		if err := w.end(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", input, err)
		}
	}
}

func TestServe_RefusesAConcurrencyOutOfRange(t *testing.T) {
	for _, concurrency := range []int{-1, 0, 1001} {
		if err := process.Serve(t.Context(), strings.NewReader(""), io.Discard, nil, concurrency); err == nil {
			t.Errorf("%d is taken", concurrency)
		}
	}
}
