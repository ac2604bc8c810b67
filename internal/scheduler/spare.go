package scheduler

import (
	"math"
	"time"
)

const (
	// long is from when on the turns of a queue are long: a place that one of them has is not free again soon.
	long = time.Second
	// lately is for how long a queue counts as one that comes back, after somebody asked for a place in it.
	lately = 10 * time.Second
	// maxSpare is the part of the places that is kept at most.
	maxSpare = 4
)

// mayTake is false where the next free place is kept for other queues. A queue whose turns are long, and that has its share, leaves one place to each other
// queue that was wanted lately and has less than its share; at most a fourth of all places, or one. A queue with a steady flow of quick turns has none
// waiting now and then, and without that lost a place for a whole long turn each time, until it had none.
func (s *Scheduler[T]) mayTake(q *queue[T]) bool {
	if !q.isLong(s.now) {
		return true
	}
	weights := q.weight
	for _, other := range s.queues {
		if other != q && other.isActive(s.now) {
			weights += other.weight
		}
	}
	hasShare := func(q *queue[T]) bool { return float64(q.running) >= max(1, float64(s.places)*q.weight/weights) }
	if !hasShare(q) {
		return true
	}
	spare := 0
	for _, other := range s.queues {
		if other != q && other.isWanted(s.now) && !hasShare(other) {
			spare++
		}
	}
	return s.places-s.held-s.reserved > min(spare, max(1, s.places/maxSpare))
}

// lookAgain is after what time Poll is to see whether somebody who waits may have a place that is free: when the first of the other queues is not wanted any
// more. It is 0 where there is none.
func (s *Scheduler[T]) lookAgain() time.Duration {
	if s.waiting == 0 || s.held+s.reserved >= s.places {
		return 0
	}
	if s.behind() != nil {
		return 1
	}
	first := float64(lately)
	for _, q := range s.queues {
		if left := q.asked + float64(lately) - s.now; left > 0 && q.first == nil {
			first = min(first, left)
		}
	}
	return time.Duration(math.Ceil(first)) + 1
}

// isLong is true where the last turns were long, or those that run are so far.
func (q *queue[T]) isLong(now float64) bool {
	return q.mean > float64(long) || q.running > 0 && now-q.began/float64(q.running) > float64(long)
}

func (q *queue[T]) isActive(now float64) bool { return q.running > 0 || q.isWanted(now) }

// isWanted is true where somebody waits in the queue, or asked for a place in it lately. One whose long turn runs alone needs no other place.
func (q *queue[T]) isWanted(now float64) bool {
	return q.first != nil || q.asked > 0 && now-q.asked < float64(lately)
}
