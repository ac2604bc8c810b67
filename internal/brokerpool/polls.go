package brokerpool

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// PollSchedule aligns the polls of all Transports of one vhost, so that one snapshot of the broker serves them all; those of
// different vhosts are spread. It is safe for concurrent use.
type PollSchedule struct {
	mu  sync.Mutex
	due map[topology.Identity]time.Time
}

// NewPollSchedule returns one without polls.
func NewPollSchedule() *PollSchedule { return &PollSchedule{due: map[topology.Identity]time.Time{}} }

// Next returns the time until the next poll of a vhost. It is never longer than the interval and a tenth of it.
func (p *PollSchedule) Next(broker *v1alpha1.BrokerIdentity, now time.Time, interval time.Duration) time.Duration {
	if broker == nil {
		return Spread(interval)
	}
	at := topology.IdentityOf(*broker)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.due[at].After(now) {
		p.forget(now.Add(-10 * interval))
		p.due[at] = now.Add(Spread(interval))
	}
	return p.due[at].Sub(now)
}

// forget drops vhosts that no Transport is on any more.
func (p *PollSchedule) forget(before time.Time) {
	for broker, due := range p.due {
		if due.Before(before) {
			delete(p.due, broker)
		}
	}
}

// Spread is up to a tenth shorter or longer than the interval: what began together does not stay together.
func Spread(interval time.Duration) time.Duration {
	return wait.Jitter(interval-interval/10, 0.2)
}
