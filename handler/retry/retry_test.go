package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/retry"
	policy "redrive.dev/redrive/internal/retry"
)

// failing fails so many calls with an error, and counts all.
func failing(times int64, err error) (func(context.Context) error, *atomic.Int64) {
	var calls atomic.Int64
	return func(context.Context) error {
		if calls.Add(1) <= times {
			return err
		}
		return nil
	}, &calls
}

func TestDo_TriesAgainAfterTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := failing(3, io.ErrUnexpectedEOF)
		began := time.Now()
		if err := (retry.Retrier{MaxRetries: 3}).Do(t.Context(), f); err != nil || calls.Load() != 4 || time.Since(began) != 7*time.Second {
			t.Errorf("%v after %d calls and %s", err, calls.Load(), time.Since(began))
		}
	})
}

func TestDo_ReturnsTheLastErrorWithoutFurtherTries(t *testing.T) {
	no := func(error) bool { return false }
	cases := map[string]struct {
		retrier retry.Retrier
		err     error
		calls   int64
	}{
		"no retries":           {retry.Retrier{}, io.EOF, 1},
		"all are used":         {retry.Retrier{MaxRetries: 2}, io.EOF, 3},
		"not retryable":        {retry.Retrier{MaxRetries: 2, Retryable: no}, io.EOF, 1},
		"the handler's Fail":   {retry.Retrier{MaxRetries: 2}, fmt.Errorf("bake: %w", handler.Fail(io.EOF)), 1},
		"the handler's Drop":   {retry.Retrier{MaxRetries: -1}, handler.Drop(io.EOF), 1},
		"a delay for the lane": {retry.Retrier{MaxRetries: 2}, handler.RetryAfter(time.Hour, io.EOF), 1},
		"a release":            {retry.Retrier{MaxRetries: 2}, handler.Release(time.Hour, io.EOF), 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, calls := failing(math.MaxInt64, c.err)
				if err := c.retrier.Do(t.Context(), f); err != c.err || calls.Load() != c.calls { //nolint:errorlint // the very same
					t.Errorf("%v after %d calls", err, calls.Load())
				}
			})
		})
	}
}

func TestDo_StopsWithItsContext(t *testing.T) {
	gone := errors.New("the worker stops")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		f, calls := failing(math.MaxInt64, io.EOF)
		time.AfterFunc(10*time.Second, func() { cancel(gone) })
		began := time.Now()
		err := (retry.Retrier{MaxRetries: -1}).Do(ctx, f)
		if !errors.Is(err, io.EOF) || !errors.Is(err, gone) || calls.Load() != 4 || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %d calls and %s", err, calls.Load(), time.Since(began))
		}
		if err := (retry.Retrier{}).Do(ctx, f); !errors.Is(err, gone) || calls.Load() != 4 {
			t.Errorf("afterwards: %v after %d calls", err, calls.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		f, calls := failing(math.MaxInt64, io.EOF)
		began := time.Now()
		// The third retry would begin after 7 s.
		if err := (retry.Retrier{MaxRetries: -1}).Do(ctx, f); !errors.Is(err, io.EOF) || calls.Load() != 3 || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %d calls and %s", err, calls.Load(), time.Since(began))
		}
	})
}

// busy asks for half a minute.
type busy struct{ error }

func (busy) RetryAfter() time.Duration { return 30 * time.Second }

func TestDo_WaitsLongerWhereTheErrorAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := failing(1, busy{io.EOF})
		began := time.Now()
		if err := (retry.Retrier{MaxRetries: 1, FullJitter: true}).Do(t.Context(), f); err != nil || time.Since(began) != 30*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestDo_DrawsJitterUpToTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := failing(100, io.EOF)
		began := time.Now()
		r := retry.Retrier{MaxRetries: 100, Multiplier: 1, FullJitter: true}
		if err := r.Do(t.Context(), f); err != nil || time.Since(began) >= 100*time.Second || time.Since(began) == 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestRetrier_ServesManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := retry.Retrier{MaxRetries: 5, Delay: time.Millisecond}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				f, calls := failing(5, io.EOF)
				if err := r.Do(t.Context(), f); err != nil || calls.Load() != 6 {
					t.Errorf("%v after %d calls", err, calls.Load())
				}
			})
		}
		all.Wait()
	})
}

func TestRetrier_HasTheDelaysOfARetryPolicy(t *testing.T) {
	cases := map[string]struct {
		retrier retry.Retrier
		backoff *v1alpha1.Backoff
	}{
		"the defaults": {retry.Retrier{}, nil},
		"all fields": {
			retry.Retrier{Delay: 1500 * time.Millisecond, Multiplier: 1.1, MaxDelay: 7 * time.Second},
			&v1alpha1.Backoff{
				Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(1500 * time.Millisecond), Multiplier: new("1.1"),
				MaxDelay: v1alpha1.NewDuration(7 * time.Second),
			},
		},
		"a delay over the default bound": {
			retry.Retrier{Delay: 2 * time.Minute}, &v1alpha1.Backoff{Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(2 * time.Minute)},
		},
		"constant": {retry.Retrier{Multiplier: 1}, &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Compile("p", v1alpha1.RetryPolicySpec{Unlimited: new(true), Backoff: c.backoff})
			if err != nil {
				t.Fatal(err)
			}
			for n := range 100 {
				v := p.Decide(policy.Failure{}, policy.Message{}, policy.History{Attempts: int64(n), Retries: int64(n)}, time.Now(), nil)
				if got := c.retrier.Backoff(n); got != v.Delay {
					t.Fatalf("retry %d: %s, and the policy's is %s", n+1, got, v.Delay)
				}
			}
		})
	}
	if got := (retry.Retrier{Multiplier: math.NaN()}).Backoff(-1); got != time.Second {
		t.Errorf("nonsense: %s", got)
	}
}
