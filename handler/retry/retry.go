// Package retry tries a call of a partner again within one attempt at a message, for faults that are over in a moment. It imports
// nothing but the standard library and redrive.dev/redrive/handler.
//
// A message occupies its worker meanwhile, and the attempt's timeout goes on. What lasts longer than a few seconds is for the retry
// policy: return the error, and the message waits in a lane.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"redrive.dev/redrive/handler"
)

// What a Retrier is where its fields are left out: the defaults of a RetryPolicy.
const (
	defaultDelay      = time.Second
	defaultMultiplier = 2
	defaultMaxDelay   = time.Minute
)

// Retrier says how often, and after which delays, a call is tried again. It may be copied and used by many goroutines at a time.
// Its delays are those of a RetryPolicy whose backoff is Exponential: Delay, Delay times Multiplier, and so on, MaxDelay at most.
type Retrier struct {
	// MaxRetries after the first try. 0 stands for none, and anything below it for as many as the context allows.
	MaxRetries int
	// Delay before the first retry. 0 stands for a second.
	Delay time.Duration
	// Multiplier of the delay from one retry to the next: 1 keeps it as it is. Below 1 it stands for 2.
	Multiplier float64
	// MaxDelay is the longest delay, but for one that an error asks for. 0 stands for a minute, or for Delay where that is longer.
	MaxDelay time.Duration
	// FullJitter draws each delay from 0 up to what it would be, so that callers that failed together do not come back together.
	FullJitter bool
	// Retryable says whether an error is worth another try. Left out, every error is.
	Retryable func(error) bool
}

// Do calls f until it succeeds, and returns nil then. Else it returns the error of the last call:
//
//   - at once, if it is made by handler.Fail, Drop, RetryAfter or Release, or is not Retryable;
//   - when MaxRetries are made;
//   - when ctx has ended, or would end before the next try: waiting for that would serve nobody. That is said in the error's text, and
//     errors.Is finds why ctx has ended.
//
// The delay is at least that of a handler.DelayError in the error, such as a Retry-After. f is called once at least, unless ctx has
// ended before.
func (r Retrier) Do(ctx context.Context, f func(context.Context) error) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("not tried: %w", err)
	}
	for n := 0; ; n++ {
		err := f(ctx)
		if err == nil || !r.again(err, n) {
			return err
		}
		if stopped := wait(ctx, r.delay(n, err)); stopped != nil {
			return fmt.Errorf("%w (tried %d times: %w)", err, n+1, stopped)
		}
	}
}

// again is true where an error of the n-th retry is to be followed by another one.
func (r Retrier) again(err error, n int) bool {
	switch {
	case r.MaxRetries >= 0 && n >= r.MaxRetries, handler.FailureOf(err).Advice != handler.AdviceNone:
		return false
	default:
		return r.Retryable == nil || r.Retryable(err)
	}
}

// delay before the n-th retry, counted from 0, after an error.
func (r Retrier) delay(n int, err error) time.Duration {
	delay := r.Backoff(n)
	if r.FullJitter && delay > 0 {
		delay = rand.N(delay) //nolint:gosec // jitter needs no secrecy
	}
	if told, ok := errors.AsType[handler.DelayError](err); ok {
		delay = max(delay, told.RetryAfter())
	}
	return delay
}

// Backoff is the delay before the n-th retry, counted from 0, without jitter.
func (r Retrier) Backoff(n int) time.Duration {
	delay, multiplier, longest := r.Delay, r.Multiplier, r.MaxDelay
	if delay <= 0 {
		delay = defaultDelay
	}
	if !(multiplier >= 1) { // not a number either
		multiplier = defaultMultiplier
	}
	if longest <= 0 {
		longest = max(defaultMaxDelay, delay)
	}
	exact := float64(delay) * math.Pow(multiplier, float64(max(n, 0)))
	if exact >= float64(longest) {
		return longest
	}
	return time.Duration(math.Round(exact))
}

// errNoTime says that the context would end before the next try.
var errNoTime = errors.New("no time is left for another try")

// wait returns nil after a delay, or else why there is no use in waiting.
func wait(ctx context.Context, delay time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
		return errNoTime
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx) //nolint:wrapcheck // the caller says of what
}
