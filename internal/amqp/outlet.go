package amqp

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/message"
)

const (
	// stalledTime is how long a destination may confirm nothing before it gets no more messages.
	stalledTime = 5 * time.Second
	// overdueTime is how long a message that can go another way awaits its confirm.
	overdueTime = 30 * time.Second
	// recycleTime is how long a message awaits its confirm before its channel is given up: the next one may be luckier.
	recycleTime = 5 * time.Minute
	// forgetTime is how long a problem outlives the last message that had it: longer than the pause of who tries again.
	forgetTime = 15 * time.Second
	// maxOutlets bounds the channels of a session, as half of the broker's channel_max does. What goes beyond shares one for each exchange.
	maxOutlets = 512
)

// Destination is where messages go together, and have their troubles together: one queue, in general.
type Destination struct {
	Exchange string
	// Key is the lane, or the routing key of what goes to no lane.
	Key string
}

func destinationOf(m *message.Message) Destination {
	if lane, ok := m.Headers[message.HeaderLane].(string); ok {
		return Destination{Exchange: m.Exchange, Key: lane}
	}
	return Destination{Exchange: m.Exchange, Key: m.RoutingKey}
}

// Problem is why messages for a destination are held.
type Problem struct {
	Destination Destination
	// Since is when the broker last took a message for it, or should have.
	Since time.Time
	// Err is what the broker says, or that it says nothing.
	Err error
}

// Problems of all destinations that have messages waiting, in order.
func (p *Publisher) Problems() []Problem {
	outlets, _ := p.outlets.get()
	var problems []Problem
	for _, o := range outlets {
		if problem, is := o.trouble(time.Now()); is {
			problems = append(problems, problem)
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Destination.Exchange, b.Destination.Exchange), cmp.Compare(a.Destination.Key, b.Destination.Key))
	})
	return problems
}

// outlet is what is known of a destination, from session to session.
type outlet struct {
	to       Destination
	requests chan *request
	log      *slog.Logger
	// stalled is true while nothing more is published.
	stalled watched[bool]

	// waiting counts the callers, and troubled is true where there is a problem.
	waiting  atomic.Int64
	troubled atomic.Bool

	mu sync.Mutex
	// wanted is when somebody last waited while there was a problem, or had it.
	wanted time.Time
	// window is how many messages may be in flight, until calm have been answered.
	window, calm int
	// problem is that of the last channel; its Err is nil where there is none.
	problem Problem
	pauses  pauses
	until   time.Time

	// last is what was logged last, by any session.
	logging sync.Mutex
	last    repeated
}

func newOutlet(to Destination, log *slog.Logger) *outlet {
	log = log.With("exchange", to.Exchange, "destination", to.Key)
	return &outlet{to: to, requests: make(chan *request), log: log, window: inFlight, last: repeated{log: log}}
}

// hand gives a message to a session.
func (o *outlet) hand(ctx context.Context, r *request) error {
	for {
		stalled, changed := o.stalled.get()
		if stalled && r.elsewhere {
			return ErrStalled
		}
		if !r.elsewhere {
			changed = nil
		}
		select {
		case o.requests <- r:
			return nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // the caller's own context
		}
	}
}

func (o *outlet) trouble(now time.Time) (Problem, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.problem.Err == nil:
	case o.waiting.Load() > 0:
		o.wanted = now
	case now.Sub(o.wanted) > forgetTime && !o.isStalled():
		o.problem, o.pauses = Problem{}, pauses{}
		o.troubled.Store(false)
	}
	return o.problem, o.problem.Err != nil
}

// note takes down a problem. It lasts until the broker confirms a message.
func (o *outlet) note(since time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.problem.Err != nil {
		since = o.problem.Since
	}
	o.wanted = time.Now()
	o.problem = Problem{Destination: o.to, Since: since, Err: err}
	o.troubled.Store(true)
}

// stall stops or resumes publishing.
func (o *outlet) stall(stalled bool) {
	o.stalled.update(func(is *bool) (changed bool) {
		changed, *is = *is != stalled, stalled
		return changed
	})
}

func (o *outlet) isStalled() bool {
	stalled, _ := o.stalled.get()
	return stalled
}

// works says that the broker has confirmed a message.
func (o *outlet) works() {
	if !o.troubled.Swap(false) {
		return
	}
	o.mu.Lock()
	o.problem, o.pauses = Problem{}, pauses{}
	o.mu.Unlock()
	o.stall(false)
	o.log.Info("the broker takes messages for the destination again")
}

// unroutable says that the broker answers, but has no queue for a message that has no other way to go.
func (o *outlet) unroutable() {
	o.note(time.Now(), ErrUnroutable)
	o.stall(false)
}

// failed says that a channel has ended. The next one comes after a pause, with one message at a time until that is confirmed.
func (o *outlet) failed(err error) {
	o.note(time.Now(), err)
	o.narrow(1)
	o.mu.Lock()
	wait := o.pauses.next()
	o.until = time.Now().Add(wait)
	o.mu.Unlock()
	o.warn("messages are held: the broker does not take what is published to a destination", err, "retryIn", wait.Round(time.Millisecond))
}

// found says that a channel has ended over one message, which was found. Others need not wait for the next channel: each like it would have them wait
// for longer.
func (o *outlet) found() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pauses = pauses{}
}

func (o *outlet) warn(message string, err error, args ...any) {
	o.logging.Lock()
	defer o.logging.Unlock()
	o.last.warn(message, err, args...)
}

// narrow lets one message at a time be in flight, until so many were answered.
func (o *outlet) narrow(until int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.window, o.calm = 1, max(o.calm, until)
}

// answered returns the window after one more message.
func (o *outlet) answered() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calm--; o.calm <= 0 {
		o.window, o.calm = inFlight, 0
	}
	return o.window
}

func (o *outlet) windowNow() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.window
}

// pause is how long no channel is to be opened.
func (o *outlet) pause() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Until(o.until)
}
