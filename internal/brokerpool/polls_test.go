package brokerpool

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestPollSchedule_LooksAtTransportsOfAVHostTogether(t *testing.T) {
	const interval = time.Minute
	one, other := &v1alpha1.BrokerIdentity{Cluster: "rabbit", VHost: "one"}, &v1alpha1.BrokerIdentity{Cluster: "rabbit", VHost: "other"}
	p, now := NewPollSchedule(), time.Now()
	// They come at any time, since they were made or changed at any time.
	due := now.Add(p.Next(one, now, interval))
	for _, later := range []time.Duration{time.Second, 20 * time.Second, 50 * time.Second} {
		if got := now.Add(later).Add(p.Next(one, now.Add(later), interval)); !got.Equal(due) {
			t.Errorf("after %s the next look is at %s, not at %s", later, got, due)
		}
	}
	if wait := due.Sub(now); wait < interval*9/10 || wait > interval*11/10 {
		t.Errorf("the next look is in %s", wait)
	}
	// The first one of the next round decides for all.
	next := due.Add(p.Next(one, due, interval))
	if got := due.Add(time.Second).Add(p.Next(one, due.Add(time.Second), interval)); !got.Equal(next) || !next.After(due) {
		t.Errorf("the round after is at %s and %s", next, got)
	}
	apart := 0
	for range 20 {
		if p.Next(other, now, interval) != p.Next(one, now, interval) {
			apart++
		}
		now = now.Add(2 * interval)
	}
	if apart < 15 {
		t.Errorf("vhosts keep apart in %d of 20 rounds", apart)
	}
	if p.Next(nil, now, interval) == 0 {
		t.Error("a Transport that reached no broker yet is not looked at again")
	}
	p.Next(one, now.Add(time.Hour), interval)
	if len(p.due) != 1 {
		t.Errorf("%d vhosts are remembered, of which one is used", len(p.due))
	}
}
