package handler

import "slices"

// maxQuarantine is how many messages are remembered that are to be run alone when they come again.
const maxQuarantine = 1000

// quarantined messages are messages that were in hand with others when their process ended, and for which there was none in time to run them alone. They
// are no attempt, and come again: then they begin alone, for else they could be called beside one that ends its process as often as there
// are such. They are known by their idempotency keys, the oldest first.
type quarantine []string

// add remembers one. Of too many the oldest is forgotten.
func (s *quarantine) add(key string) {
	if key == "" || slices.Contains(*s, key) {
		return
	}
	if *s = append(*s, key); len(*s) > maxQuarantine {
		*s = slices.Delete(*s, 0, 1)
	}
}

// take is true for one that is remembered, and forgets it. It has its whole time then.
func (s *quarantine) take(key string) bool {
	at := slices.Index(*s, key)
	if at < 0 {
		return false
	}
	*s = slices.Delete(*s, at, at+1)
	return true
}

// remember notes a message that was to run alone, and for which there was no process in time.
func (p *Process) remember(c *call) {
	if !c.alone {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.quarantine.add(c.key)
}
