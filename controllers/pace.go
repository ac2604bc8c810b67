package controllers

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slowRequest is what makes a management API slow. Reading 10,000 queues takes one that is not about a second.
	slowRequest = 2 * time.Second
	// slowFor is how long a management API counts as slow after two slow requests that came as soon after each other. A single
	// one may be a hiccup.
	slowFor = 30 * time.Second
	// silentSeats is how many reconciles may be busy with a management API that does not answer at a time. The others come back
	// later, so that the Transports of other brokers find workers of the operator that are free.
	silentSeats = 2
	// busyPause is when they come back, and silentPause where the API does not answer at all: each time costs the API server a
	// look at the Secret.
	busyPause   = 3 * time.Second
	silentPause = 10 * time.Second
)

// errBusy says that enough reconciles are busy with slow brokers already, and errSilent with ones that do not answer.
var (
	errBusy   = errors.New("the management API answers slowly, and other Transports are busy with it or with others that do: this one has its turn later")
	errSilent = meaning(errBusy, "the management API does not answer, and other Transports try it or others that do not: this one has its turn later")
)

// pauseOf is when one comes back who got errBusy.
func pauseOf(err error) time.Duration {
	if errors.Is(err, errSilent) {
		return jitter(silentPause)
	}
	return jitter(busyPause)
}

// paces are those of all management APIs. Together, those that answer slowly take half of the operator's workers at most, and
// those that do not answer a quarter: so the others always find a worker, and the slow ones need not wait for the silent ones. It is
// safe for concurrent use.
type paces struct {
	// slow and silent are how many reconciles may be busy with such brokers at a time.
	slow, silent int

	mu  sync.Mutex
	all map[string]*pace // by URL
}

func newPaces(workers int) *paces {
	return &paces{slow: max(1, workers/2), silent: max(1, workers/4), all: map[string]*pace{}}
}

// of is the pace of the management API at a URL.
func (ps *paces) of(url string) *pace {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.all[url] == nil {
		ps.all[url] = &pace{among: ps, waiting: map[*http.Request]time.Time{}}
	}
	return ps.all[url]
}

// keep forgets all but some.
func (ps *paces) keep(urls map[string]bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	maps.DeleteFunc(ps.all, func(url string, _ *pace) bool { return !urls[url] })
}

// free is how many more reconciles may be busy with brokers that are as slow, or as silent, as one. It is negative where some
// of them were so before anybody knew.
func (ps *paces) free(like *pace, now time.Time) int {
	free := ps.slow
	if like.silent {
		free = ps.silent
	}
	for _, p := range ps.all {
		if p.silent == like.silent && p.isSlow(now) {
			free -= p.seats
		}
	}
	return free
}

// long is how many requests besides one have waited long, without those to brokers that are known to be silent.
func (ps *paces) long(but *http.Request, now time.Time) int {
	n := 0
	for _, p := range ps.all {
		if !p.silent {
			n += p.long(but, now)
		}
	}
	return n
}

// pace watches how fast a management API answers, and counts who is busy with it. The lock of all paces guards it.
type pace struct {
	among *paces
	// seats are the reconciles that are busy with it.
	seats int
	// waiting are the beginnings of the requests that have no answer yet.
	waiting map[*http.Request]time.Time
	// answeredAt is when a request got its answer last.
	answeredAt time.Time
	// slowAt is the end of the last slow request, and slowUntil when it does not count as slow any more.
	slowAt, slowUntil time.Time
	// silent is true from a request that got no answer for long until the next that gets one.
	silent bool
}

// enter takes a seat. leave gives it back. It fails with errBusy.
func (p *pace) enter(now time.Time) (leave func(), err error) {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	if p.isSlow(now) && (p.seats >= p.places() || p.among.free(p, now) <= 0) {
		return nil, p.busy()
	}
	p.seats++
	return func() {
		p.among.mu.Lock()
		defer p.among.mu.Unlock()
		p.seats--
	}, nil
}

// crowded is errBusy where the API has become slow while more reconciles were busy with it, or with slow ones, than may be.
func (p *pace) crowded(now time.Time) error {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	if p.isSlow(now) && (p.seats > p.places() || p.among.free(p, now) < 0) {
		return p.busy()
	}
	return nil
}

// places are how many reconciles may be busy with it while it is slow. Where it answers, these are all that the slow ones have but
// one, which is for another of them: it may be the only broker there is.
func (p *pace) places() int {
	if p.silent {
		return silentSeats
	}
	return max(silentSeats, p.among.slow-1)
}

func (p *pace) busy() error {
	if p.silent {
		return errSilent
	}
	return errBusy
}

// isSlow is true also while a single request waits long: nobody can tell it from one that never gets an answer.
func (p *pace) isSlow(now time.Time) bool {
	return p.silent || now.Before(p.slowUntil) || p.long(nil, now) > 0
}

// toldBusy is the key under which a context holds whether a request was ended because too many waited.
type toldBusy struct{}

// tellBusy returns a context for requests, and whether one of them was ended because too many waited.
func tellBusy(ctx context.Context) (told context.Context, busy func() bool) {
	ended := &atomic.Bool{}
	return context.WithValue(ctx, toldBusy{}, ended), ended.Load
}

// wrap lets the pace see a client's requests. A request ends with its headers: the broker makes the whole answer before it
// sends them. Of those that only read, few wait for an API that answers nothing: the others are cancelled.
func (p *pace) wrap(next http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithCancelCause(r.Context())
		watched := r.WithContext(ctx)
		p.begin(watched, time.Now())
		if r.Method == http.MethodGet {
			defer time.AfterFunc(slowRequest, func() { p.relieve(watched, cancel, time.Now()) }).Stop()
		}
		response, err := next.RoundTrip(watched)
		p.end(watched, err == nil, time.Now())
		if err != nil {
			cancel(err)
			return nil, err //nolint:wrapcheck // A transport must not change what another one says.
		}
		response.Body = &cancelled{response.Body, cancel}
		return response, nil
	})
}

// relieve ends a request that has waited long, where as many have as there are seats: at this API, or at all slow ones.
func (p *pace) relieve(r *http.Request, cancel context.CancelCauseFunc, now time.Time) {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	began, waits := p.waiting[r]
	if !waits || p.answeredAt.After(began) { // One that answers, if slowly, would only be asked the same again.
		return
	}
	// One that is known to be silent has its seat by right.
	if p.long(r, now) >= silentSeats || !p.silent && p.among.long(r, now) >= p.among.slow {
		delete(p.waiting, r)
		p.silent = true
		if told, ok := r.Context().Value(toldBusy{}).(*atomic.Bool); ok {
			told.Store(true)
		}
		cancel(errBusy)
	}
}

// long is how many requests besides one have waited long.
func (p *pace) long(but *http.Request, now time.Time) int {
	n := 0
	for r, began := range p.waiting {
		if r != but && now.Sub(began) >= slowRequest {
			n++
		}
	}
	return n
}

func (p *pace) begin(r *http.Request, now time.Time) {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	p.waiting[r] = now
}

func (p *pace) end(r *http.Request, answered bool, now time.Time) {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	began, waits := p.waiting[r]
	delete(p.waiting, r)
	if answered {
		p.answeredAt = now
	}
	switch {
	case !waits: // It was relieved.
	case now.Sub(began) < slowRequest:
		p.silent = p.silent && !answered
	case !answered:
		p.silent = true
	default:
		p.silent = false
		if now.Sub(p.slowAt) < slowFor {
			p.slowUntil = now.Add(slowFor)
		}
		p.slowAt = now
	}
}

// cancelled ends a request's context with its body.
type cancelled struct {
	io.ReadCloser

	cancel context.CancelCauseFunc
}

func (c *cancelled) Close() error {
	defer c.cancel(nil)
	return c.ReadCloser.Close() //nolint:wrapcheck // It is the body's own.
}

// tripper is a transport of one function.
type tripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
