package handler

import (
	"context"
	"slices"
	"sync"
)

// attemptOf is the key of a context for that of the attempt, or of the question at the readiness URL, that a connection is made for.
type attemptOf struct{}

// dials are those of a transport that are under way. net/http has one go on when its attempt is over, so that others get the connection: a server
// whose handshake takes longer than an attempt may is reached in the end. But one that never completes it would get connections without end. So
// there are no more than a number, but for attempts that still wait for theirs: a new one ends the oldest of which the attempt is over.
type dials struct {
	most int

	mu      sync.Mutex
	running []*dialing
}

type dialing struct {
	attempt context.Context //nolint:containedctx // it is looked at when others begin
	cancel  context.CancelFunc
}

// begin returns the context of a dial, and what is to be called at its end.
func (s *dials) begin(ctx context.Context) (_ context.Context, end func()) {
	attempt, known := ctx.Value(attemptOf{}).(context.Context)
	if !known {
		attempt = ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	own := &dialing{attempt, cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.running) >= s.most {
		oldest := slices.IndexFunc(s.running, func(other *dialing) bool { return other.attempt.Err() != nil })
		if oldest < 0 {
			break
		}
		s.running[oldest].cancel()
		s.running = slices.Delete(s.running, oldest, oldest+1)
	}
	s.running = append(s.running, own)
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running = slices.DeleteFunc(s.running, func(other *dialing) bool { return other == own })
	}
}
