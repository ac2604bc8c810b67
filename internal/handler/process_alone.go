package handler

import "slices"

// maxNextAlone is how many messages are remembered that are to be run alone when they come again.
const maxNextAlone = 1000

// nextAlone are messages that were in flight with others when their process ended, and for which no process was free in time to handle them alone.
// That is no attempt: they come again, and begin alone then. Otherwise they could be called beside a message that ends its process as often as there are
// such. They are known by their idempotency keys, the oldest first.
type nextAlone []string

// add remembers one. Of too many the oldest is forgotten.
func (s *nextAlone) add(key string) {
	if key == "" || slices.Contains(*s, key) {
		return
	}
	if *s = append(*s, key); len(*s) > maxNextAlone {
		*s = slices.Delete(*s, 0, 1)
	}
}

// take is true for one that is remembered, and forgets it. It has its whole time then.
func (s *nextAlone) take(key string) bool {
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
	p.pool.nextAlone.add(c.key)
}
