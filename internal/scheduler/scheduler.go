// Package scheduler shares out what a worker has to give among its queues, by their weights: the places at its handler (Scheduler),
// and the messages that it may hold at a time (Prefetch). Both are told the time and start nothing by themselves.
package scheduler

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Scheduler gives a number of places to turns of several queues. It is start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM
// 1996) for many servers and for work whose length is not known before it is done:
//
//   - Each queue has a virtual time: the time that its turns have held places, those that go on included, over its weight. What
//     its running turns are still expected to take, the mean of those before, is added to it. A free place goes to the queue
//     that is behind the others. So places are shared by weight, measured in time: a queue with slow messages gets fewer
//     turns, and not more time.
//   - A place is not free while somebody waits: what one queue does not use others do. There are two exceptions. A queue that is
//     known to have more messages than it was allowed to prefetch, whose next one always comes within milliseconds, and that is
//     behind, is waited for that long before the place goes to another whose messages take longer. Its time runs meanwhile. Else
//     slow messages would get each place that a quick one leaves. (Disk schedulers call that anticipation: Iyer and Druschel,
//     SOSP 2001.) The other: a queue whose turns take more than a second leaves a place to each queue that was wanted lately (mayTake).
//   - A queue saves nothing while nobody waits in it, but for a claim to its share of a second: that long its next messages may take
//     to come. It goes on as far behind the others as that, or as it was.
//
// Within a queue turns come in order. While two queues both wait all the time, their virtual times differ by no more than a few
// times what all places do in the longest turn. All its methods are safe for concurrent use; a turn is used by one at a time.
type Scheduler[T any] struct {
	mu     sync.Mutex
	places int
	held   int
	queues []*queue[T]
	named  map[string]*queue[T]
	// virtual is how far the queue was that was last given a place.
	virtual float64
	epoch   time.Time
	now     float64
	waiting int
	// weights is the sum of the weights, and reserved that of the places that are kept free for queues.
	weights  float64
	reserved int
}

// queue is the line of one queue. Times are in nanoseconds since the scheduler's epoch.
type queue[T any] struct {
	name   string
	weight float64
	// configured is false of a queue that is only kept for those that still wait or run.
	configured  bool
	first, last *Turn[T]
	running     int
	// began is the sum of the times at which those that run began, and asked when somebody last asked for a place.
	began, asked float64
	// virtual is the virtual time at the time `at`, without what running turns are expected to take.
	virtual, at float64
	// mean of a turn, moving; 0 until one is done.
	mean float64
	// lag is how far it was behind the others when nobody waited in it any more.
	lag float64
	// gap is how long it usually takes from a turn's end until there is another one, where none waited; since is that end.
	gap, since float64
	// backlogged is true where it has more messages than those that wait here.
	backlogged bool
	// reserved are the times until which places are kept for it, the earliest first.
	reserved []float64
}

// Turn is somebody's claim on a place. Its zero value, with a Value, can be used for one turn after the other.
type Turn[T any] struct {
	Value T

	queue          *queue[T]
	holds          bool
	began          float64
	before, behind *Turn[T]
}

// Holds is true while the turn has a place.
func (t *Turn[T]) Holds() bool { return t.holds }

const (
	// meanOf is how many of the last turns make up the mean.
	meanOf = 8
	// kept is for how long a queue keeps its claim while nobody waits in it.
	kept = time.Second
	// longestGap is the longest usual gap of a queue for which places are kept. They are for two gaps and a little more.
	longestGap = 100 * time.Millisecond
	moment     = 2 * time.Millisecond
)

// NewScheduler returns a scheduler with a number of places, at least 1, and no queues yet.
func NewScheduler[T any](places int, now time.Time) *Scheduler[T] {
	return &Scheduler[T]{places: max(1, places), named: map[string]*queue[T]{}, epoch: now}
}

// Configure changes the number of places and the queues' weights, at least 1 each. Turns that hold a place keep it. Those that
// get one now are returned.
func (s *Scheduler[T]) Configure(places int, weights map[string]int, now time.Time) []*Turn[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	s.places = max(1, places)
	for _, q := range s.queues {
		q.advance(s.now)
		_, q.configured = weights[q.name]
		s.unreserve(q, len(q.reserved))
	}
	for name, weight := range weights {
		q := s.of(name)
		q.configured = true
		s.weights -= q.weight
		q.weigh(float64(max(1, weight)), s.virtual)
		s.weights += q.weight
	}
	for _, q := range slices.Backward(s.queues) { // forget takes it out
		s.forget(q)
	}
	return s.begin()
}

// Take asks for a place. It is true where there is one at once. Else the turn waits in its queue: what Done or Configure
// returns then is it, or Cancel takes it out. A queue that is not configured has the weight 1. Where again is not 0, Poll is to be called after that time,
// as Done says.
func (s *Scheduler[T]) Take(t *Turn[T], name string, now time.Time) (holds bool, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	q := s.of(name)
	if q.first == nil {
		s.lift(q)
		q.measureGap(s.now)
	}
	q.append(t)
	q.asked = s.now
	s.waiting++
	if len(q.reserved) > 0 {
		s.unreserve(q, 1)
	}
	if s.held+s.reserved < s.places && q.first == t && s.mayTake(q) {
		s.grant(q) // nobody else waits who may have it, or the place was kept for it
	}
	return t.holds, s.lookAgain()
}

// Done gives a place back. Where somebody has it now, that is returned, and runs from now. Where again is not 0, Poll is to be called after that time; one
// call serves all who asked for one that is not sooner.
func (s *Scheduler[T]) Done(t *Turn[T], now time.Time) (next *Turn[T], again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	q := t.queue
	q.advance(s.now)
	q.running--
	q.began -= t.began
	s.held--
	if took := s.now - t.began; q.mean == 0 {
		q.mean = took
	} else {
		q.mean += (took - q.mean) / meanOf
	}
	t.holds, t.queue = false, nil
	q.since = s.now
	if wait := s.reserve(q); wait > 0 {
		return nil, wait
	}
	s.forget(q)
	return s.next(), s.lookAgain()
}

// Poll gives away the places that were kept free for too long. Those that have one now are returned. It is to be called again after
// a time, where that is not 0.
func (s *Scheduler[T]) Poll(now time.Time) (begun []*Turn[T], again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(now)
	for _, q := range slices.Backward(s.queues) { // forget takes it out
		if len(q.reserved) > 0 && q.reserved[0] <= s.now { // it was in vain
			q.gap = min(2*q.gap+float64(moment), 2*float64(longestGap))
		}
		for len(q.reserved) > 0 && q.reserved[0] <= s.now {
			s.unreserve(q, 1)
		}
		if len(q.reserved) > 0 {
			again = max(again, time.Duration(q.reserved[0]-s.now)+1)
		}
		s.forget(q)
	}
	begun = s.begin()
	if again == 0 {
		again = s.lookAgain()
	}
	return begun, again
}

// Backlog says whether a queue has more messages than those that wait here.
func (s *Scheduler[T]) Backlog(name string, backlogged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.named[name]; q != nil {
		q.backlogged = backlogged
	}
}

// Cancel takes a turn out of its queue. It is false where the turn does not wait there: it may have a place by now.
func (s *Scheduler[T]) Cancel(t *Turn[T]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancel(t)
}

// Withdraw takes all waiting turns out of their queues for which gone is true, and returns them. gone must not call the
// scheduler.
func (s *Scheduler[T]) Withdraw(gone func(T) bool) []*Turn[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var withdrawn []*Turn[T]
	for _, q := range s.queues {
		for t := q.first; t != nil; {
			behind := t.behind
			if gone(t.Value) {
				withdrawn = append(withdrawn, t)
			}
			t = behind
		}
	}
	for _, t := range withdrawn {
		s.cancel(t)
	}
	return withdrawn
}

// Waiting is the number of turns that wait.
func (s *Scheduler[T]) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// OthersWait is true where turns of other queues wait.
func (s *Scheduler[T]) OthersWait(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if q.name != name && q.first != nil {
			return true
		}
	}
	return false
}

// Mean is how long the last turns of a queue took, 0 where none has ended yet.
func (s *Scheduler[T]) Mean(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.named[name]; q != nil {
		return time.Duration(q.mean)
	}
	return 0
}

func (s *Scheduler[T]) tick(now time.Time) { s.now = max(s.now, float64(now.Sub(s.epoch))) }

func (s *Scheduler[T]) of(name string) *queue[T] {
	q := s.named[name]
	if q == nil {
		q = &queue[T]{name: name, weight: 1, at: s.now}
		s.weights += q.weight
		s.named[name] = q
		s.queues = append(s.queues, q)
	}
	return q
}

// forget drops a queue that is not configured and that nobody is in.
func (s *Scheduler[T]) forget(q *queue[T]) {
	if q.configured || q.taken() > 0 || q.first != nil {
		return
	}
	delete(s.named, q.name)
	s.weights -= q.weight
	i := slices.Index(s.queues, q)
	s.queues = slices.Delete(s.queues, i, i+1)
}

// lift brings a queue in which nobody waited to where the others are.
func (s *Scheduler[T]) lift(q *queue[T]) {
	q.advance(s.now)
	credit := max(q.lag, float64(kept)*float64(s.places)/s.weights)
	q.virtual += max(0, s.level(q)-credit-q.key(s.now))
}

// level is where the others are: the one of those that wait or run that is furthest behind.
func (s *Scheduler[T]) level(q *queue[T]) float64 {
	level, found := 0.0, false
	for _, other := range s.queues {
		if other == q || other.first == nil && other.taken() == 0 {
			continue
		}
		if key := other.key(s.now); !found || key < level {
			level, found = key, true
		}
	}
	return max(level, s.virtual)
}

// next gives a free place to the turn whose queue is furthest behind; nil where no place is free or nobody waits.
func (s *Scheduler[T]) next() *Turn[T] {
	if s.held+s.reserved >= s.places || s.waiting == 0 {
		return nil
	}
	if q := s.behind(); q != nil {
		return s.grant(q)
	}
	return nil
}

func (s *Scheduler[T]) begin() (begun []*Turn[T]) {
	for t := s.next(); t != nil; t = s.next() {
		begun = append(begun, t)
	}
	return begun
}

// behind is the queue that is furthest behind of those in which somebody waits who may have the next place; nil where nobody does.
func (s *Scheduler[T]) behind() *queue[T] {
	var behind *queue[T]
	var least float64
	for _, q := range s.queues {
		if q.first == nil || !s.mayTake(q) {
			continue
		}
		key := q.key(s.now)
		if behind == nil || key < least || key == least && float64(q.running)/q.weight < float64(behind.running)/behind.weight {
			behind, least = q, key
		}
	}
	return behind
}

// grant gives a place to the first turn of a queue.
func (s *Scheduler[T]) grant(q *queue[T]) *Turn[T] {
	t := q.first
	q.remove(t)
	s.waiting--
	s.held++
	key := q.key(s.now)
	s.virtual = max(s.virtual, key)
	if q.first == nil {
		q.lag = s.level(q) - key
	}
	q.advance(s.now)
	q.running++
	q.began += s.now
	t.holds, t.began = true, s.now
	return t
}

// reserve keeps a place that has become free for the queue that had it, and says for how long; 0 where it does not.
func (s *Scheduler[T]) reserve(q *queue[T]) time.Duration {
	if !q.backlogged || q.first != nil || s.waiting == 0 || s.held+s.reserved >= s.places || q.gap == 0 || q.gap > float64(longestGap) {
		return 0
	}
	wait := math.Ceil(2*q.gap + float64(moment))
	if other := s.behind(); other == nil || other.mean < wait || other.key(s.now) <= q.key(s.now) {
		return 0
	}
	q.advance(s.now)
	q.reserved = append(q.reserved, s.now+wait)
	s.reserved++
	return time.Duration(wait)
}

func (s *Scheduler[T]) unreserve(q *queue[T], places int) {
	q.advance(s.now)
	q.reserved = q.reserved[places:]
	s.reserved -= places
}

func (s *Scheduler[T]) cancel(t *Turn[T]) bool {
	q := t.queue
	if q == nil || t.holds {
		return false
	}
	q.remove(t)
	t.queue = nil
	s.waiting--
	s.forget(q)
	return true
}

// key is the virtual time with what the running turns are expected to take yet.
func (q *queue[T]) key(now float64) float64 {
	return q.virtual + (float64(q.taken())*(now-q.at)+float64(q.running)*q.mean)/q.weight
}

func (q *queue[T]) advance(now float64) {
	q.virtual += float64(q.taken()) * (now - q.at) / q.weight
	q.at = now
}

// taken is the number of places that others cannot have.
func (q *queue[T]) taken() int { return q.running + len(q.reserved) }

// weigh changes the weight. The time by which the queue is ahead of the others, or behind them, stays the same.
func (q *queue[T]) weigh(weight, level float64) {
	q.virtual = level + (q.virtual-level)*q.weight/weight
	q.lag *= q.weight / weight
	q.weight = weight
}

// measureGap takes down how long it took from the end of the last turn until there is another one.
func (q *queue[T]) measureGap(now float64) {
	if q.since == 0 {
		return
	}
	gap := min(now-q.since, float64(2*longestGap))
	q.since = 0
	if q.gap == 0 {
		q.gap = max(gap, 1)
		return
	}
	q.gap += (gap - q.gap) / meanOf
}

func (q *queue[T]) append(t *Turn[T]) {
	t.queue, t.before, t.behind = q, q.last, nil
	if q.last == nil {
		q.first = t
	} else {
		q.last.behind = t
	}
	q.last = t
}

// remove takes a turn out of the line.
func (q *queue[T]) remove(t *Turn[T]) {
	if t.before == nil {
		q.first = t.behind
	} else {
		t.before.behind = t.behind
	}
	if t.behind == nil {
		q.last = t.before
	} else {
		t.behind.before = t.before
	}
	t.before, t.behind = nil, nil
}
