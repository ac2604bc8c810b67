package subprocess

import "time"

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// healthyAfter is how long a process must have lived for its end to be a new problem.
	healthyAfter = time.Minute
)

// Backoff is the pause before a process that ended by itself is started again. The zero value is ready to use.
type Backoff struct{ last time.Duration }

// After gives the pause after a process that lived for some time. progress is true where its end is no reason to wait, nor to wait longer the next
// time. random gives a number from 0 up to, not including, its argument.
func (b *Backoff) After(lived time.Duration, progress bool, random func(int64) int64) time.Duration {
	if lived >= healthyAfter || progress {
		b.last = 0
	}
	if progress {
		return 0
	}
	b.last = min(max(2*b.last, firstPause), longestPause)
	return b.last*3/4 + time.Duration(random(int64(b.last/2)))
}
