package handler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/handler"
)

// order is what the messages of these examples hold.
type order struct {
	ID    string `json:"id"`
	Items int    `json:"items"`
}

var errCancelled = errors.New("the customer has cancelled the order")

// ship stands for a call of a partner.
func ship(_ context.Context, o order) error {
	switch {
	case o.Items == 0:
		return errCancelled
	case o.Items > 100:
		return throttled{}
	default:
		return nil
	}
}

// throttled is an error with a class and a status, which expressions of a retry policy can tell from others:
//
//	{name: throttled, when: error.class == 'Throttled', action: Retry, unlimited: true}
type throttled struct{}

func (throttled) Error() string { return "the partner takes no more orders this minute" }
func (throttled) Class() string { return "Throttled" }
func (throttled) Status() int   { return 429 }

// A handler decodes the body, does the work, and says of an error what it knows about it. What it does not know, the retry
// policy decides.
func Example() {
	h := handler.Func(func(ctx context.Context, m *handler.Message) error {
		var o order
		if err := json.Unmarshal(m.Body, &o); err != nil {
			return handler.Fail(fmt.Errorf("the body is no order: %w", err))
		}
		err := ship(ctx, o)
		if errors.Is(err, errCancelled) {
			return handler.Drop(err)
		}
		return err
	})
	for _, body := range []string{`{"id": "a", "items": 2}`, `{"id": "b"}`, `{"id": "c", "items": 500}`, `no JSON`} {
		err := h.Handle(context.Background(), &handler.Message{Body: []byte(body)})
		if err == nil {
			fmt.Println("done")
			continue
		}
		failure := handler.FailureOf(err)
		fmt.Printf("advice %q, class %q, status %d: %s\n", failure.Advice, failure.Class, failure.Status, failure.Message)
	}
	// Output:
	// done
	// advice "drop", class "", status 0: the customer has cancelled the order
	// advice "", class "Throttled", status 429: the partner takes no more orders this minute
	// advice "fail", class "json.SyntaxError", status 0: the body is no order: invalid character 'o' in literal null (expecting 'u')
}

// A message that can never be handled goes to the failure queue at once.
func ExampleFail() {
	err := handler.Fail(errors.New("the order has no customer"))
	fmt.Println(handler.FailureOf(err).Advice, err)
	// Output: fail the order has no customer
}

// A message that nobody needs any more is forgotten.
func ExampleDrop() {
	err := handler.Drop(errors.New("the order was cancelled"))
	fmt.Println(handler.FailureOf(err).Advice, err)
	// Output: drop the order was cancelled
}

// A message whose time has not come is tried again when the handler says, and that counts as no retry.
func ExampleRetryAfter() {
	err := handler.RetryAfter(30*time.Second, errors.New("the partner is closed until noon"))
	failure := handler.FailureOf(err)
	fmt.Println(failure.Advice, *failure.RetryAfter, err)
	// Output: retry 30s the partner is closed until noon
}

// What wraps an error with advice changes its text only.
func ExampleFailureOf() {
	err := fmt.Errorf("order 17: %w", handler.Fail(throttled{}))
	failure := handler.FailureOf(err)
	fmt.Println(failure.Advice, failure.Class, failure.Status)
	fmt.Println(failure.Message)
	// Output:
	// fail Throttled 429
	// order 17: the partner takes no more orders this minute
}
