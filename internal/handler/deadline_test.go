package handler_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/internal/handler"
)

func TestExtended_ExtendsFromNowOnButNotOverItsLimit(t *testing.T) {
	cases := map[string]struct {
		timeout, limit, pass, remaining, want time.Duration
	}{
		"its whole timeout anew":               {time.Minute, time.Hour, 10 * time.Second, 0, 70 * time.Second},
		"what was left of it":                  {time.Minute, time.Hour, 10 * time.Second, 5 * time.Second, 15 * time.Second},
		"up to the limit":                      {time.Minute, 65 * time.Second, 10 * time.Second, 0, 65 * time.Second},
		"a limit below the timeout is none":    {time.Minute, time.Second, 10 * time.Second, 0, time.Minute},
		"even when its first deadline is over": {time.Minute, time.Hour, 2 * time.Minute, 0, 3 * time.Minute},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := handler.WithTimeout(t.Context(), c.timeout, c.limit)
				defer cancel()
				time.Sleep(c.pass)
				extended, cancelExtended := handler.Extended(ctx, c.remaining)
				defer cancelExtended()
				again, cancelAgain := handler.Extended(extended, c.want-c.pass) // an extension can be extended
				defer cancelAgain()
				<-extended.Done()
				if took := time.Since(began); took != c.want || !errors.Is(extended.Err(), context.DeadlineExceeded) {
					t.Errorf("it ended after %s with %v, not after %s", took, extended.Err(), c.want)
				}
				<-again.Done()
				if took := time.Since(began); took != c.want {
					t.Errorf("the second ended after %s, not after %s", took, c.want)
				}
			})
		})
	}
}

func TestExtended_EndsWithItsParent(t *testing.T) {
	parent, end := context.WithCancel(t.Context())
	ctx, cancel := handler.WithTimeout(parent, time.Hour, 2*time.Hour)
	defer cancel()
	extended, cancelExtended := handler.Extended(ctx, 0)
	defer cancelExtended()
	end()
	<-extended.Done()
	if !errors.Is(extended.Err(), context.Canceled) {
		t.Errorf("got %v", extended.Err())
	}
}

func TestExtended_LeavesOtherContextsTheirDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	extended, cancelExtended := handler.Extended(ctx, 0)
	defer cancelExtended()
	if extended != ctx {
		t.Error("it is another one")
	}
}
