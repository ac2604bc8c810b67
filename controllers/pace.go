package controllers

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	// slowRequest is what makes a management API slow. Reading 10,000 queues takes one that is not about a second.
	slowRequest = 2 * time.Second
	// slowFor is how long a management API counts as slow after a slow request.
	slowFor = 30 * time.Second
	// slowSeats is how many reconciles may be busy with a slow management API at a time. The others come back later, so that
	// the Transports of other brokers find workers of the operator that are free.
	slowSeats = 2
	// busyPause is when they come back.
	busyPause = 3 * time.Second
)

// errBusy says that enough reconciles are busy with a slow broker already.
var errBusy = errors.New("the management API answers slowly, and other Transports are busy with it: this one has its turn later")

// pace watches how fast a management API answers, and counts who is busy with it. It is safe for concurrent use.
type pace struct {
	mu sync.Mutex
	// seats are the reconciles that are busy with it.
	seats int
	// waiting are the beginnings of the requests that have no answer yet.
	waiting map[*http.Request]time.Time
	// slowUntil is the end of the last slow request and slowFor.
	slowUntil time.Time
}

// enter takes a seat. leave gives it back.
func (p *pace) enter(now time.Time) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seats >= slowSeats && p.slow(now) {
		return nil, errBusy
	}
	p.seats++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seats--
	}, nil
}

// crowded is true where the API has become slow while more reconciles than it should have were busy with it.
func (p *pace) crowded(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seats > slowSeats && p.slow(now)
}

func (p *pace) slow(now time.Time) bool {
	if now.Before(p.slowUntil) {
		return true
	}
	for _, began := range p.waiting {
		if now.Sub(began) >= slowRequest {
			return true
		}
	}
	return false
}

// wrap lets the pace see a client's requests. A request ends with its headers: the broker makes the whole answer before it
// sends them.
func (p *pace) wrap(next http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		p.begin(r, time.Now())
		defer func() { p.end(r, time.Now()) }()
		return next.RoundTrip(r)
	})
}

func (p *pace) begin(r *http.Request, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[*http.Request]time.Time{}
	}
	p.waiting[r] = now
}

func (p *pace) end(r *http.Request, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.waiting[r]) >= slowRequest {
		p.slowUntil = now.Add(slowFor)
	}
	delete(p.waiting, r)
}

// tripper is a transport of one function.
type tripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
