package controllers

import (
	"sync"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// polls lets all Transports of a vhost be looked at together, so that one snapshot serves them all; those of different
// vhosts keep apart. It is safe for concurrent use.
type polls struct {
	mu  sync.Mutex
	due map[v1alpha1.BrokerIdentity]time.Time
}

func newPolls() *polls { return &polls{due: map[v1alpha1.BrokerIdentity]time.Time{}} }

// next is how long it is until the next look at a vhost. It is never longer than the jittered interval.
func (p *polls) next(broker *v1alpha1.BrokerIdentity, now time.Time, interval time.Duration) time.Duration {
	if broker == nil {
		return jitter(interval)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.due[*broker].After(now) {
		p.forget(now.Add(-10 * interval))
		p.due[*broker] = now.Add(jitter(interval))
	}
	return p.due[*broker].Sub(now)
}

// forget drops vhosts that no Transport is on any more.
func (p *polls) forget(before time.Time) {
	for broker, due := range p.due {
		if due.Before(before) {
			delete(p.due, broker)
		}
	}
}
