// Package handlertest is the conformance suite of handlers: what the worker relies on, whatever the handler does with a
// message. A handler's own tests start a program behind it that obeys the orders in this package, and call Run.
//
// The program may be a server, a process for each message, one that stays, or a Go function. It passes what it sees of a
// message to Obey and does what the Answer says. A test binary can be its own program: it starts itself, with an argument
// that its TestMain knows.
package handlertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

const (
	bigBody  = 20 << 20
	patience = 30 * time.Second
	brief    = 50 * time.Millisecond
)

// Subject is a handler under test with its program. There is nothing in it by which a subject leaves out a case: each order
// can be obeyed by a server, by a process and by a Go function, and the worker treats them alike.
type Subject struct {
	// Handler for at least four messages at a time. It may take a moment until it is ready.
	Handler handler.Handler
}

// Run runs the suite. start is called for each case; it ends the program, and closes the handler, with the test.
func Run(t *testing.T, start func(t *testing.T) Subject) {
	t.Helper()
	cases := map[string]func(t *testing.T, s Subject){
		"a handler that is ready says so and handles":       getsReady,
		"success is no failure":                             succeeds("{}"),
		"an empty body arrives":                             succeeds(""),
		"a body of all bytes arrives":                       succeeds(allBytes()),
		"a body of 20 MiB arrives":                          succeeds(strings.Repeat("0123456789abcdef", bigBody/16)),
		"a body that nobody reads is no failure":            succeedsUnread,
		"a failure tells its class, message and delay":      refuses,
		"advice to fail arrives":                            advises(AdviseFail),
		"advice to drop arrives":                            advises(AdviseDrop),
		"advice to retry arrives":                           advises(AdviseRetry),
		"advice to release arrives":                         advises(AdviseRelease),
		"the program is told about the message":             describes,
		"odd words about the message arrive":                describesOddly,
		"the trace context is the attempt's":                traces,
		"a program that hangs is a timeout":                 hangs,
		"a program that ends without an answer is a crash":  crashes,
		"a success with a flood is a success":               floodsSuccess,
		"a failure with a flood is a bounded failure":       floodsFailure,
		"a cancelled attempt returns, and the program ends": cancels,
		"an attempt whose context has ended returns":        ended,
		"calls at the same time each get their own outcome": concurrent,
		"after each bad outcome the next message succeeds":  recovers,
		"a handler may be closed twice":                     closesTwice,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start(t))
		})
	}
}

// Message returns a request with an order.
func Message(order Order, body string) handler.Request {
	return handler.Request{
		Body: []byte(body), ContentType: "application/json", ID: "id-1", IdempotencyKey: "key-1", Attempt: 3, Retries: 2,
		Queue: "work", Exchange: "async", RoutingKey: "order.created", Type: "order", CorrelationID: "correlation-1",
		ReplyTo: "replies", AppID: "shop", UserID: "producer", Priority: 4, Expiration: "60000",
		Timestamp:    time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		FirstFailure: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Headers:      map[string]any{OrderHeader: string(order), SumHeader: Sum([]byte(body))},
	}
}

// order returns an order to hang whose report goes to a witness.
func (w *witness) order() handler.Request {
	request := Message(Hang, "{}")
	request.Headers[ReportHeader] = w.address
	return request
}

// call makes an attempt that has all the time it needs.
func call(t *testing.T, s Subject, request handler.Request) *retry.Failure {
	t.Helper()
	return attempt(t, s, patience, request)
}

// attempt does what a worker does: it waits until the handler is ready, and gives it a message for some time. It fails the
// test if that does not return, or alters the message.
func attempt(t *testing.T, s Subject, timeout time.Duration, request handler.Request) *retry.Failure {
	t.Helper()
	awaitReady(t, s.Handler)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	body, headers := bytes.Clone(request.Body), maps.Clone(request.Headers)
	failure := within(t, func() *retry.Failure { return s.Handler.Handle(ctx, request) })
	if !bytes.Equal(body, request.Body) || !maps.Equal(headers, request.Headers) {
		t.Error("the handler altered the message")
	}
	return failure
}

// within fails the test if an attempt outlives its context by far.
func within(t *testing.T, attempt func() *retry.Failure) *retry.Failure {
	t.Helper()
	done := make(chan *retry.Failure, 1)
	go func() { done <- attempt() }()
	select {
	case failure := <-done:
		return failure
	case <-time.After(2 * patience):
		t.Fatal("the attempt does not return")
		return nil
	}
}

// awaitReady looks again only when the handler announces a change, as the worker does.
func awaitReady(t *testing.T, h handler.Handler) {
	t.Helper()
	deadline := time.After(patience)
	for {
		why, changed := h.Ready()
		if why == nil {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("the handler does not get ready: %v", why)
		}
	}
}

func getsReady(t *testing.T, s Subject) {
	t.Helper()
	awaitReady(t, s.Handler)
	// A change may come at any time, but a handler that announces one whenever it is asked keeps the worker busy.
	changes := 0
	for range 100 {
		_, changed := s.Handler.Ready()
		select {
		case <-changed:
			changes++
		default:
		}
	}
	if changes > 10 {
		t.Errorf("%d of 100 times a change was announced", changes)
	}
	if failure := call(t, s, Message(Succeed, "{}")); failure != nil {
		t.Errorf("got %+v", failure)
	}
}

func closesTwice(t *testing.T, s Subject) {
	t.Helper()
	awaitReady(t, s.Handler)
	for range 2 {
		if err := s.Handler.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

func succeeds(body string) func(*testing.T, Subject) {
	return func(t *testing.T, s Subject) {
		t.Helper()
		if failure := call(t, s, Message(Succeed, body)); failure != nil {
			t.Errorf("got %+v", failure)
		}
	}
}

func allBytes() string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return string(bytes.Repeat(all, 3))
}

func succeedsUnread(t *testing.T, s Subject) {
	t.Helper()
	for range 3 {
		if failure := call(t, s, Message(SucceedUnread, strings.Repeat("x", bigBody))); failure != nil {
			t.Errorf("got %+v", failure)
		}
	}
}

func refuses(t *testing.T, s Subject) {
	t.Helper()
	if err := differs(call(t, s, Message(Refuse, "{}")), Refusal()); err != nil {
		t.Error(err)
	}
}

func advises(order Order) func(*testing.T, Subject) {
	return func(t *testing.T, s Subject) {
		t.Helper()
		if err := differs(call(t, s, Message(order, "{}")), Advised(order)); err != nil {
			t.Error(err)
		}
	}
}

// differs says in what a failure is not what the program answered.
func differs(got, want *retry.Failure) error {
	switch {
	case got == nil:
		return errors.New("got success")
	case got.Source != want.Source || got.Class != want.Class || !strings.Contains(got.Message, want.Message):
		return fmt.Errorf("got %+v", got)
	case got.Advice != want.Advice:
		return fmt.Errorf("got the advice %q, want %q", got.Advice, want.Advice)
	case (got.RetryAfter == nil) != (want.RetryAfter == nil), got.RetryAfter != nil && *got.RetryAfter != *want.RetryAfter:
		return fmt.Errorf("got the delay %v, want %v", got.RetryAfter, want.RetryAfter)
	}
	return nil
}

func describes(t *testing.T, s Subject) {
	t.Helper()
	isDescribed(t, s, Message(Describe, "{}"))
}

func describesOddly(t *testing.T, s Subject) {
	t.Helper()
	request := Message(Describe, "{}")
	request.Queue, request.RoutingKey, request.Type = "zürich/ab & zu", "заказ.#", `App\Message\Order`
	request.CorrelationID, request.ContentEncoding = `{"a": "b=c;d"}`, "gzip"
	isDescribed(t, s, request)
}

// traces expects that a program learns the context of this attempt, not the one that the producer left in the headers.
func traces(t *testing.T, s Subject) {
	t.Helper()
	request := Message(Describe, "{}")
	request.Traceparent, request.Tracestate = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1"
	request.Headers["traceparent"], request.Headers["tracestate"] = "00-11111111111111111111111111111111-2222222222222222-00", "other=2"
	isDescribed(t, s, request)
}

func isDescribed(t *testing.T, s Subject, request handler.Request) {
	t.Helper()
	got := call(t, s, request)
	if got == nil || got.Class != "Described" || !strings.Contains(got.Message, Description(request)) {
		t.Errorf("got  %+v\nwant %q", got, Description(request))
	}
}

func hangs(t *testing.T, s Subject) {
	t.Helper()
	var got *retry.Failure
	for timeout := brief; timeout < patience; timeout *= 2 { // a busy machine may not even connect in a brief time
		if got = attempt(t, s, timeout, Message(Hang, "{}")); got != nil && got.Source == retry.SourceTimeout && got.Message != "" {
			return
		}
	}
	t.Errorf("got %+v", got)
}

func crashes(t *testing.T, s Subject) {
	t.Helper()
	got := call(t, s, Message(Crash, "{}"))
	if got == nil || got.Source != retry.SourceCrash || got.Message == "" {
		t.Errorf("got %+v", got)
	}
}

func floodsSuccess(t *testing.T, s Subject) {
	t.Helper()
	if got := call(t, s, Message(FloodSuccess, "{}")); got != nil {
		t.Errorf("got %+v", got)
	}
}

func floodsFailure(t *testing.T, s Subject) {
	t.Helper()
	got := call(t, s, Message(FloodFailure, "{}"))
	if got == nil || got.Source != retry.SourceHandler {
		t.Fatalf("got %+v", got)
	}
	if len(got.Message) > 500 || len(got.Class) > 100 {
		t.Errorf("%d bytes of message, %d of class", len(got.Message), len(got.Class))
	}
}

func cancels(t *testing.T, s Subject) {
	t.Helper()
	awaitReady(t, s.Handler)
	program := newWitness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcome := make(chan *retry.Failure, 1)
	go func() { outcome <- s.Handler.Handle(ctx, program.order()) }()
	await(t, "the program hangs", program.hanging)
	cancel()
	isCanceled(t, within(t, func() *retry.Failure { return <-outcome }))
	await(t, "the program ends", program.ended)
}

func ended(t *testing.T, s Subject) {
	t.Helper()
	awaitReady(t, s.Handler)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	isCanceled(t, within(t, func() *retry.Failure { return s.Handler.Handle(ctx, Message(Succeed, "{}")) }))
}

func isCanceled(t *testing.T, got *retry.Failure) {
	t.Helper()
	if got == nil || got.Class != handler.ClassCanceled {
		t.Errorf("got %+v", got)
	}
}

// concurrent hands over as many messages at a time as the handler is for.
func concurrent(t *testing.T, s Subject) {
	t.Helper()
	var calls sync.WaitGroup
	places := make(chan struct{}, 4)
	for i := range 48 {
		places <- struct{}{}
		awaitReady(t, s.Handler)
		calls.Go(func() {
			defer func() { <-places }()
			body := strings.Repeat(strconv.Itoa(i), 1000+i)
			order := []Order{Succeed, Refuse, Crash}[i%3]
			got := s.Handler.Handle(t.Context(), Message(order, body))
			switch {
			case order == Succeed && got != nil,
				order == Refuse && differs(got, Refusal()) != nil,
				order == Crash && (got == nil || got.Source != retry.SourceCrash):
				t.Errorf("%s: got %+v", order, got)
			}
		})
	}
	calls.Wait()
}

func recovers(t *testing.T, s Subject) {
	t.Helper()
	for _, bad := range []Order{Refuse, Crash, FloodFailure, FloodSuccess, Hang} {
		timeout := patience
		if bad == Hang {
			timeout = brief
		}
		got := attempt(t, s, timeout, Message(bad, "{}"))
		if (got == nil) != (bad == FloodSuccess) {
			t.Errorf("%s: got %+v", bad, got)
		}
		if got := call(t, s, Message(Succeed, "{}")); got != nil {
			t.Errorf("after %s: got %+v", bad, got)
		}
	}
}
