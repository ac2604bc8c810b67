package controllers

import (
	"sync"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// polls lets all Transports of a vhost be looked at together, so that one snapshot serves them all; those of different
// vhosts keep apart. It is safe for concurrent use.
type polls struct {
	mu  sync.Mutex
	due map[topology.Identity]time.Time
}

func newPolls() *polls { return &polls{due: map[topology.Identity]time.Time{}} }

// next is how long it is until the next look at a vhost. It is never longer than the jittered interval.
func (p *polls) next(broker *v1alpha1.BrokerIdentity, now time.Time, interval time.Duration) time.Duration {
	if broker == nil {
		return jitter(interval)
	}
	at := topology.IdentityOf(*broker)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.due[at].After(now) {
		p.forget(now.Add(-10 * interval))
		p.due[at] = now.Add(jitter(interval))
	}
	return p.due[at].Sub(now)
}

// forget drops vhosts that no Transport is on any more.
func (p *polls) forget(before time.Time) {
	for broker, due := range p.due {
		if due.Before(before) {
			delete(p.due, broker)
		}
	}
}
