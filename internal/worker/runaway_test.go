package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
)

// running is a handler of which a call runs on for a while.
type running struct {
	handler.Handler

	mu      sync.Mutex
	until   time.Time
	changed chan struct{}
}

// Ready implements handler.Handler.
func (r *running) Ready() (why error, changed <-chan struct{}) { //nolint:revive,staticcheck // the order is Handler's
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return errors.New("its call still runs"), r.changed
	}
	return nil, r.changed
}

// Stuck is what a handler in this process has.
func (r *running) Stuck() <-chan struct{} { return nil }

// A message whose call ended its process a moment after its time was charged to nobody, and came back to the workers of its queue, to end one at each attempt.
func TestAwaitRunaway_KeepsAMessageWhileItsCallRunsOn(t *testing.T) {
	for name, tt := range map[string]struct{ runs, stops, drains, want time.Duration }{
		"a call that returns late":  {runs: 10 * time.Second, want: 10 * time.Second},
		"a call that never returns": {runs: time.Hour, want: runawayTime},
		"a call that has returned":  {},
		"a session that ends":       {runs: 10 * time.Second, stops: 3 * time.Second, want: 3 * time.Second},
		"a worker that stops":       {runs: 10 * time.Second, drains: 4 * time.Second, want: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stops > 0 {
					defer time.AfterFunc(tt.stops, cancel).Stop()
				}
				w := &Worker{draining: make(chan struct{})}
				if tt.drains > 0 {
					defer time.AfterFunc(tt.drains, func() { close(w.draining) }).Stop()
				}
				calls := &running{until: time.Now().Add(tt.runs), changed: make(chan struct{})}
				if tt.runs > 0 {
					defer time.AfterFunc(tt.runs, func() { close(calls.changed) }).Stop()
				}
				j := &job{received: time.Now(), program: &program{handler: share(calls, nil), config: compile.Config{}}}
				j.program.config.ConsumerTimeout.Duration.Duration = 30 * time.Minute
				began := time.Now()
				w.awaitRunaway(ctx, j)
				if took := time.Since(began); took != tt.want {
					t.Errorf("it waited %s, want %s", took, tt.want)
				}
			})
		})
	}
}
