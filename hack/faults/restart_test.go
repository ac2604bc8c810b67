package faults

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// A worker that stops settles what it has begun and gives back what it has not, so that the broker delivers nothing again and
// nothing is quarantined.
func TestWorker_RepeatsNothingWhenReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const stops = 10
		s := newScene(t, testbroker.Shared(t), plan{
			policy: testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), answer: failsFirst, replicas: 2,
		})
		s.publish(200 * stops)
		for n := range stops {
			s.acknowledgesAgain()
			p := s.group.workers[n%2]
			p.terminate()
			p.start()
		}
		s.settle(bounds{faults: stops})
		for _, p := range s.group.all() {
			if again, _ := p.wire.suspicions(); again != 0 {
				t.Errorf("%d messages were delivered to %s a second time", again, p.name)
			}
		}
	})
}

// The handler is done with the messages of a connection when another one has taken its place, on which other messages have
// their delivery tags. Were one of those acknowledged for them, it would be gone after the kill.
func TestWorker_SettlesNoOtherMessageByALateAck(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const reconnects = 3
		g := newGate(t)
		s := newScene(t, testbroker.Shared(t), plan{
			policy: testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), answer: func(call) int { return g.pass() },
		})
		for range reconnects {
			// These have the tags that on the next connection those have which move to the quarantined messages.
			s.publish(prefetch)
			s.idle()

			openFirst := g.shut()
			s.publish(3 * prefetch)
			s.await(atOnceWithin, "the handler to be busy", func() bool {
				return g.waiting() == concurrency && s.wire.onLoan() == prefetch
			})
			s.wire.cut()
			moved := s.quarantined() + prefetch
			s.worksAgain(func() bool {
				return s.quarantined() >= moved && s.wire.onLoan() == prefetch && g.waiting() == concurrency+1
			})

			openSecond := g.shut()
			openFirst(http.StatusOK)
			// The next ones are at the handler, and the next quarantined message: it is done with the first, and their acks are late.
			s.await(atOnceWithin, "the handler to be busy again", func() bool { return g.waiting() == concurrency+1 })
			s.group.workers[0].kill()
			openSecond(http.StatusBadGateway) // no success of theirs: what is handled is handled after the kill
			g.shut()(http.StatusOK)
			s.group.revive()
			s.idle()
		}
		s.settle(bounds{faults: 2 * reconnects, duplicates: 2 * reconnects * prefetch, atLeast: reconnects * concurrency})
	})
}

// gate holds calls.
type gate struct {
	t    testing.TB
	mu   sync.Mutex
	held *held
}

// held are the calls since the gate was shut, until they are answered with a status.
type held struct {
	calls, status int
	answered      chan struct{}
}

func newGate(t testing.TB) *gate {
	t.Helper()
	g := &gate{t: t}
	g.shut()(http.StatusOK)
	return g
}

// shut lets all calls from now on wait for the status that is given to the function that it returns.
func (g *gate) shut() (open func(status int)) {
	h := &held{answered: make(chan struct{})}
	g.mu.Lock()
	g.held = h
	g.mu.Unlock()
	var once sync.Once
	open = func(status int) {
		once.Do(func() {
			h.status = status
			close(h.answered)
		})
	}
	g.t.Cleanup(func() { open(http.StatusServiceUnavailable) })
	return open
}

func (g *gate) pass() (status int) {
	g.mu.Lock()
	h := g.held
	h.calls++
	g.mu.Unlock()
	<-h.answered
	return h.status
}

// waiting is the number of calls since it was shut.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held.calls
}
