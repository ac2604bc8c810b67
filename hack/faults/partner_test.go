package faults

import (
	"crypto/tls"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
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
	// delay is how long a message waits after an answer, if it does; due is when each that waits is to come again, and late the greatest
	// delay past that.
	delay func(attempt, status int) (time.Duration, bool)
	due   map[int]time.Time
	late  time.Duration
}

// takes is how long the partner takes for an answer, so that there is always something in flight.
const takes = 5 * time.Millisecond

// newPartner answers with the status that answer gives, which may block; over TLS where that is set.
func newPartner(t testing.TB, answer func(call) int, delay func(attempt, status int) (time.Duration, bool), secure *tls.Config) *partner {
	t.Helper()
	p := &partner{calls: map[int]int{}, handled: map[int]int{}, delay: delay, due: map[int]time.Time{}}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		if due, waited := p.due[id]; waited {
			p.late = max(p.late, time.Since(due))
			delete(p.due, id) // what comes twice is late once
		}
		p.mu.Unlock()
		time.Sleep(takes)
		status := answer(call{id: id, attempt: attempt, before: before})
		p.mu.Lock()
		if status == http.StatusOK {
			p.handled[id]++
		} else if delay, waits := p.delay(attempt, status); waits {
			p.due[id] = time.Now().Add(delay)
		}
		p.mu.Unlock()
		w.WriteHeader(status)
	}))
	if secure != nil {
		p.TLS = secure
		p.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail
		p.StartTLS()
	} else {
		p.Start()
	}
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

// latest is the greatest delay of a message past its due time.
func (p *partner) latest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late.Round(10 * time.Millisecond)
}

// delays are those that a policy has for an attempt that was answered with a status: of the strategy for it, else of the policy.
func delays(policy v1alpha1.RetryPolicySpec) func(attempt, status int) (time.Duration, bool) {
	return func(attempt, status int) (time.Duration, bool) {
		for i := range policy.Strategies {
			if strategy := &policy.Strategies[i]; strategy.When == "error.status == "+strconv.Itoa(status) {
				if strategy.Backoff == nil {
					return 0, false
				}
				return strategy.Backoff.Delay.Duration.Duration, true
			}
		}
		if policy.Backoff == nil || attempt < 1 || attempt > len(policy.Backoff.Delays) {
			return 0, false
		}
		return policy.Backoff.Delays[attempt-1].Duration.Duration, true
	}
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
