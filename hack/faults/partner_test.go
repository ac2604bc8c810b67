package faults

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// call of the handler with a numbered message.
type call struct {
	id, attempt int
	// times that the partner was called with this message before, whatever the worker counts.
	before int
}

// partner is the code that the worker calls. It remembers what it answered.
type partner struct {
	*httptest.Server

	mu sync.Mutex
	// calls and successes by message.
	calls, handled map[int]int
	total          int
}

// takes is how long the partner takes for an answer, so that there is always something in flight.
const takes = 5 * time.Millisecond

// newPartner answers with the status that answer gives, which may block.
func newPartner(t testing.TB, answer func(call) int) *partner {
	t.Helper()
	p := &partner{calls: map[int]int{}, handled: map[int]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		id, err := strconv.Atoi(r.Header.Get("Redrive-Message-Id"))
		if err != nil {
			t.Errorf("message with the id %q", r.Header.Get("Redrive-Message-Id"))
		}
		attempt, _ := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
		p.mu.Lock()
		before := p.calls[id]
		p.calls[id]++
		p.total++
		p.mu.Unlock()
		time.Sleep(takes)
		status := answer(call{id: id, attempt: attempt, before: before})
		if status == http.StatusOK {
			p.mu.Lock()
			p.handled[id]++
			p.mu.Unlock()
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(p.CloseClientConnections)
	t.Cleanup(p.Close)
	return p
}

// requests is the number of calls so far.
func (p *partner) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// successes by message.
func (p *partner) successes() map[int]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.handled)
}

// called is how often the partner was called with a message.
func (p *partner) called(id int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[id]
}

// Answers that cases share.

func success(call) int { return http.StatusOK }

func failure(call) int { return http.StatusBadGateway }

// failsFirst fails the first attempt at each message.
func failsFirst(c call) int {
	if c.attempt == 1 {
		return http.StatusBadGateway
	}
	return http.StatusOK
}
