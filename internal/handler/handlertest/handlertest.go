// Package handlertest is the conformance suite of handlers: what the worker relies on, whatever the handler does with a
// message. A handler's own tests start a program behind it that obeys the orders in this package, and call Run.
package handlertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// The headers of a message by which the suite talks to the program.
const (
	// OrderHeader holds the Order.
	OrderHeader = "test-order"
	// SumHeader holds the SHA-256 of the body in hexadecimal digits.
	SumHeader = "test-sum"
)

// Order is what the program does with a message, after it has read the body whole.
type Order string

const (
	// Succeed compares the body with the sum and answers success, or else a failure of the class "Mismatch".
	Succeed Order = "succeed"
	// Refuse answers the failure that Refusal returns.
	Refuse Order = "refuse"
	// Describe answers a failure of the class "Described" whose message is what Description returns for the request
	// that the program sees.
	Describe Order = "describe"
	// Hang reports on Subject.Hanging and does not answer before the attempt is over.
	Hang Order = "hang"
	// Crash ends without an answer.
	Crash Order = "crash"
	// FloodSuccess answers success, and with it FloodSize bytes.
	FloodSuccess Order = "flood success"
	// FloodFailure answers a failure of the class "Flood" or of none, and with it FloodSize bytes.
	FloodFailure Order = "flood failure"
)

const (
	// FloodSize is how much a flooding program tries to answer, in bytes.
	FloodSize = 64 << 20

	bigBody  = 20 << 20
	patience = 20 * time.Second
	brief    = 50 * time.Millisecond
)

// Refusal is the failure that the order Refuse stands for. The status is the handler's affair.
func Refusal() retry.Failure {
	delay := 7 * time.Second
	return retry.Failure{Source: retry.SourceHandler, Class: "OutOfStock", Message: "no flour left", RetryAfter: &delay}
}

// Description puts what a program is told about a message into a line.
func Description(r handler.Request) string {
	return strings.Join([]string{
		r.ID, r.IdempotencyKey, strconv.FormatInt(r.Attempt, 10), strconv.FormatInt(r.Retries, 10), r.Queue, r.RoutingKey,
		r.ContentType, r.FirstFailure.UTC().Format(time.RFC3339),
	}, "|")
}

// Matches reports whether a body has the sum.
func Matches(body []byte, sum string) bool {
	return Sum(body) == sum
}

// Sum of a body, as SumHeader holds it.
func Sum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Subject is a handler under test with its program.
type Subject struct {
	Handler handler.Handler
	// Hanging gets a value each time that the program begins to hang.
	Hanging <-chan struct{}
}

// Run runs the suite. start is called for each case; it ends the program, and closes the handler, with the test.
func Run(t *testing.T, start func(t *testing.T) Subject) {
	t.Helper()
	cases := map[string]func(t *testing.T, s Subject){
		"success is no failure":                             succeeds("{}"),
		"an empty body arrives":                             succeeds(""),
		"a body of all bytes arrives":                       succeeds(allBytes()),
		"a body of 20 MiB arrives":                          succeeds(strings.Repeat("0123456789abcdef", bigBody/16)),
		"a failure tells its class, message and delay":      refuses,
		"the program is told about the message":             describes,
		"a program that hangs is a timeout":                 hangs,
		"a program that ends without an answer is a crash":  crashes,
		"a success with a flood is a success":               floodsSuccess,
		"a failure with a flood is a bounded failure":       floodsFailure,
		"a cancelled attempt returns":                       cancels,
		"an attempt whose context has ended returns":        ended,
		"calls at the same time each get their own outcome": concurrent,
		"after each bad outcome the next message succeeds":  recovers,
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
		Queue: "work", Exchange: "async", RoutingKey: "order.created", Type: "order",
		FirstFailure: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Headers:      map[string]any{OrderHeader: string(order), SumHeader: Sum([]byte(body))},
	}
}

// call makes an attempt that has all the time it needs, and fails the test if it does not return.
func call(t *testing.T, s Subject, request handler.Request) *retry.Failure {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return within(t, func() *retry.Failure { return s.Handler.Handle(ctx, request) })
}

// within fails the test if an attempt outlives its context by far.
func within(t *testing.T, attempt func() *retry.Failure) *retry.Failure {
	t.Helper()
	done := make(chan *retry.Failure, 1)
	go func() { done <- attempt() }()
	select {
	case failure := <-done:
		return failure
	case <-time.After(patience + patience/2):
		t.Fatal("the attempt does not return")
		return nil
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

func refuses(t *testing.T, s Subject) {
	t.Helper()
	if err := isRefusal(call(t, s, Message(Refuse, "{}"))); err != nil {
		t.Error(err)
	}
}

func isRefusal(got *retry.Failure) error {
	want := Refusal()
	switch {
	case got == nil:
		return errors.New("got success")
	case got.Source != want.Source || got.Class != want.Class || !strings.Contains(got.Message, want.Message):
		return fmt.Errorf("got %+v", got)
	case got.RetryAfter == nil || *got.RetryAfter != *want.RetryAfter:
		return fmt.Errorf("got the delay %v", got.RetryAfter)
	}
	return nil
}

func describes(t *testing.T, s Subject) {
	t.Helper()
	request := Message(Describe, "{}")
	got := call(t, s, request)
	if got == nil || got.Class != "Described" || !strings.Contains(got.Message, Description(request)) {
		t.Errorf("got %+v, want %q", got, Description(request))
	}
}

func hangs(t *testing.T, s Subject) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	got := within(t, func() *retry.Failure { return s.Handler.Handle(ctx, Message(Hang, "{}")) })
	if got == nil || got.Source != retry.SourceTimeout || got.Message == "" {
		t.Errorf("got %+v", got)
	}
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
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-s.Hanging
		cancel()
	}()
	isCanceled(t, within(t, func() *retry.Failure { return s.Handler.Handle(ctx, Message(Hang, "{}")) }))
}

func ended(t *testing.T, s Subject) {
	t.Helper()
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

func concurrent(t *testing.T, s Subject) {
	t.Helper()
	var calls sync.WaitGroup
	for i := range 48 {
		calls.Go(func() {
			body := strings.Repeat(strconv.Itoa(i), 1000+i)
			order := []Order{Succeed, Refuse, Crash}[i%3]
			got := s.Handler.Handle(t.Context(), Message(order, body))
			switch {
			case order == Succeed && got != nil,
				order == Refuse && isRefusal(got) != nil,
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
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if bad == Hang {
			ctx, cancel = context.WithTimeout(t.Context(), brief)
		}
		within(t, func() *retry.Failure { return s.Handler.Handle(ctx, Message(bad, "{}")) })
		cancel()
		if got := call(t, s, Message(Succeed, "{}")); got != nil {
			t.Errorf("after %s: got %+v", bad, got)
		}
	}
}
