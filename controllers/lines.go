package controllers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// lookers is how many Transports are worked on at a time, with those that wait in a line: these cost a few kilobytes each. So
	// brokers that are slow, or do not answer at all, need not be told from others, unless Transports wait for several such by hundreds.
	lookers = 1024
	// lineLength is how many wait at one management API: the Transports of the others have to find lookers, too.
	lineLength = lookers / 4
	// settledLength is how many of these are only looked at again: what is new or changed finds a place, and then goes first.
	settledLength = lineLength * 3 / 4
	// lookUp is how often one that waits sees whether it still has to, and in this line; the second time its status says that it waits.
	lookUp = 10 * time.Second
	// fullPause is when one comes back that found the line full.
	fullPause = 10 * time.Second
	// mostOvertake is how many in a row may have their turn before who came first.
	mostOvertake = 64
)

// errFull says that nobody can join the line any more.
var errFull = errors.New("hundreds of Transports wait for their turn at this broker: this one comes back later")

// line is that of one management API. Those at the head of it are busy with the API, as many as there are seats; the others have
// their turn one after the other. Each API has a line of its own, so none waits for another. It is safe for concurrent use.
type line struct {
	mu sync.Mutex
	// seats that are free.
	seats int
	// waiting are those that have none, in the order in which they came.
	waiting []*place
	// overtaking counts those who had their turn before who came first, since that one's predecessor had it.
	overtaking int

	// looks are the seats of those who ask for autoscaling: they are asked themselves, and cannot wait behind a reconcile.
	looks chan struct{}
}

func newLine(seats int) *line { return &line{seats: seats, looks: make(chan struct{}, seats)} }

// place is one in a line.
type place struct {
	line *line
	port *sharedPort
	// settled is true for a Transport that is ready, and only looked at again.
	settled bool
	// turn is closed when it has a seat.
	turn chan struct{}
}

// join takes a place, which is to be left in any case. It fails with errFull.
func (l *line) join(port *sharedPort, settled bool) (*place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= lineLength || settled && len(l.waiting) >= settledLength {
		return nil, errFull
	}
	p := &place{line: l, port: port, settled: settled, turn: make(chan struct{})}
	l.waiting = append(l.waiting, p)
	l.proceed(time.Now())
	return p, nil
}

// leave gives a place back, at any time, and once.
func (p *place) leave() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if i := slices.Index(p.line.waiting, p); i >= 0 {
		p.line.waiting = slices.Delete(p.line.waiting, i, i+1)
		return
	}
	p.line.seats++
	p.line.proceed(time.Now())
}

// proceed gives the free seats to those whose turn it is.
func (l *line) proceed(now time.Time) {
	for l.seats > 0 && len(l.waiting) > 0 {
		i := l.next(now)
		p := l.waiting[i]
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.seats--
		close(p.turn)
	}
}

// next is whose turn it is: that of who came first. But what is new, changed or not ready goes before what is only looked at again; and
// who is served by a snapshot that is there already before who is not: else hundreds that come at once, from many vhosts, would need a snapshot
// each, for it serves only a few seconds.
func (l *line) next(now time.Time) int {
	best := 0
	if l.overtaking < mostOvertake {
		most := -1
		for i, p := range l.waiting {
			if claim := p.claim(now); claim > most {
				best, most = i, claim
			}
		}
	}
	if l.overtaking++; best == 0 {
		l.overtaking = 0
	}
	return best
}

// claim is the larger, the sooner a place has its turn.
func (p *place) claim(now time.Time) (claim int) {
	if !p.settled {
		claim += 2
	}
	if p.port.serves(now) {
		claim++
	}
	return claim
}

// waitFor waits for a turn, so long at most. It is false where the turn did not come, or nobody is to take it any more.
func waitFor(ctx context.Context, turn <-chan struct{}, most time.Duration) bool {
	select {
	case <-turn:
		return ctx.Err() == nil
	case <-time.After(most):
	case <-ctx.Done():
	}
	return false
}
