package retry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/retry"
)

// A call that fails now and then is tried again within the attempt; what still fails is left to the retry policy.
func ExampleRetrier() {
	quickly := retry.Retrier{MaxRetries: 2, Delay: 10 * time.Millisecond, FullJitter: true}
	calls := 0
	handle := handler.Func(func(ctx context.Context, m *handler.Message) error {
		return quickly.Do(ctx, func(context.Context) error {
			if calls++; calls == 1 {
				return errors.New("connection reset by peer")
			}
			fmt.Println("charged for", m.ID, "at call", calls)
			return nil
		})
	})
	fmt.Println(handle.Handle(context.Background(), &handler.Message{ID: "order-7"}))
	// Output:
	// charged for order-7 at call 2
	// <nil>
}
