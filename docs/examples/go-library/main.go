// Command orders handles orders, and is the worker of its Transport itself: the handler is a function in its own process.
//
//	redrive run -f redrive.yaml -- go run .
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/run"
)

func main() { run.Main(handler.Func(store)) }

// order is the body of a message.
type order struct {
	Customer string `json:"customer"`
	// Busy stands for a partner that does not take the order at once.
	Busy bool `json:"busy"`
}

var errNoCustomer = errors.New("an order needs a customer")

// store is called for each message, by as many goroutines at a time as the worker's concurrency says. An error is a failed attempt,
// and the RetryPolicy decides what follows; where the handler knows better, it says so.
func store(ctx context.Context, m *handler.Message) error {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return handler.Fail(fmt.Errorf("the body is no order: %w", err)) // it will not be one next time
	}
	switch {
	case o.Customer == "":
		return handler.Fail(errNoCustomer)
	case o.Busy && m.Attempt == 1:
		return handler.RetryAfter(time.Second, errors.New("the partner is busy")) // this counts as no retry
	}
	// A message may come twice, after a crash for instance: m.IdempotencyKey is the same for all its attempts.
	slog.InfoContext(ctx, "order stored", "customer", o.Customer, "attempt", m.Attempt, "key", m.IdempotencyKey)
	return nil
}
