package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	fastest = 2 * time.Millisecond
	slowest = 20 * time.Millisecond
)

// attempt is one request as the partner saw it.
type attempt struct {
	began, ended time.Time
	// status that was answered; hang where the caller went away first.
	status int
	queue  string
}

// partner is the unreliable other side: it answers each message by its scenario, and remembers every request.
type partner struct {
	scenarios []scenario
	byID      map[string]int
	server    *http.Server

	mu       sync.Mutex
	attempts map[string][]attempt
	strays   int
	handled  int
	requests int
}

func newPartner(all []scenario, messages []message) *partner {
	p := &partner{scenarios: all, byID: map[string]int{}, attempts: map[string][]attempt{}}
	for _, m := range messages {
		p.byID[m.id] = m.scenario
	}
	return p
}

// serve listens on a free port of an address until stop, and gives the URL.
func (p *partner) serve(ctx context.Context, address string) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return "", fmt.Errorf("listen for the partner: %w", err)
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = p.server.Serve(listener) }() // ends with stop
	return "http://" + listener.Addr().String() + "/messages", nil
}

// stop returns when every answer that was begun is given and noted.
func (p *partner) stop(ctx context.Context) {
	_ = p.server.Shutdown(ctx) // what still hangs then was never answered
}

// ServeHTTP answers one attempt.
func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	// Also so that the server notices when the caller goes away.
	_, _ = io.Copy(io.Discard, r.Body)
	id := r.Header.Get("Redrive-Message-Id")
	number, status, known := p.open(id, attempt{began: began, queue: r.Header.Get("Redrive-Queue")})
	if !known {
		w.WriteHeader(http.StatusOK)
		return
	}
	if status == hang {
		<-r.Context().Done()
	} else {
		sleep(r.Context(), fastest+rand.N(slowest-fastest)) //nolint:gosec // as real partners do
	}
	answered := status != hang && r.Context().Err() == nil && reply(w, status) == nil
	p.close(id, number, answered, status)
}

// open notes the beginning of an attempt and says how to answer it.
func (p *partner) open(id string, a attempt) (number, status int, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	index, known := p.byID[id]
	if !known {
		p.strays++
		return 0, 0, false
	}
	number = len(p.attempts[id])
	p.attempts[id] = append(p.attempts[id], a)
	return number, p.scenarios[index].answer(number), true
}

func (p *partner) close(id string, number int, answered bool, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.attempts[id][number]
	a.ended = time.Now()
	if !answered {
		a.status = hang
		return
	}
	a.status = status
	if status == http.StatusOK {
		p.handled++
	}
}

// reply answers; failures carry problem details, as RFC 9457 has them.
func reply(w http.ResponseWriter, status int) error {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	if status == http.StatusOK {
		w.WriteHeader(status)
		return http.NewResponseController(w).Flush() //nolint:wrapcheck // only whether there is one counts
	}
	details := map[int]string{
		http.StatusBadGateway:          "the partner's own backend is away",
		http.StatusTooManyRequests:     "slow down",
		http.StatusUnprocessableEntity: "the order has no address",
	}
	body, err := json.Marshal(map[string]any{"title": http.StatusText(status), "status": status, "detail": details[status]})
	if err != nil {
		return fmt.Errorf("problem details: %w", err)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, err = w.Write(body)
	return errors.Join(err, http.NewResponseController(w).Flush())
}

// progress is the number of requests so far, and of those that were answered with 200.
func (p *partner) progress() (requests, handled int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.handled
}

// seen are all attempts by message, and the number of requests about unknown ones. The partner must have stopped.
func (p *partner) seen() (attempts map[string][]attempt, strays int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts, p.strays
}
