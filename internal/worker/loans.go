package worker

import (
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/scheduler"
)

const (
	// meanOf is how many of the last messages make up the means of their sizes and durations.
	meanOf = 32
	// largestFor is for how long the largest message is remembered, at least.
	largestFor = 5 * time.Minute
	// largeMessage is the size from which on a message may be a reason to look at the prefetches at once.
	largeMessage = 1 << 20
	// mostSpare bounds what is added to a prefetch in place of messages that are held.
	mostSpare = 1024
	// heldMemory is what a message that is held takes at least, in bytes, however small it is: its goroutines, its timers, and what it is published as.
	heldMemory = 24 << 10
)

// inflight are the messages that a worker has on loan, by the queues as they are consumed.
type inflight struct {
	// limit is how many bytes of memory all of them may take, with their headers.
	limit int64
	// due is true where the prefetches are to be looked at now.
	due    atomic.Bool
	queues sync.Map
	// prefetch decides, and decided is what it said last. Both are used by the flow control only.
	prefetch *scheduler.Prefetch
	decided  map[string]int
	// granted is that, and what is added in place of messages that are held.
	granted map[string]int
}

// queueInflight is what is on loan of one queue.
type queueInflight struct {
	// enough is a number of bytes that is a reason to look at the prefetches.
	enough int64

	mu    sync.Mutex
	count int
	bytes int64
	// held are those of them that have waited for long for the broker to take what they were published as, and spare is what is
	// added to the prefetch for them.
	held, spare int
	// aside are those of them that wait for their turn without a place at the handler.
	aside int
	// prefetch in force. The consumer is full, from fullSince on, while as many are on loan.
	prefetch  int
	fullSince time.Time
	// full, peak and arrived are since the last look.
	full          time.Duration
	peak, arrived int
	// seen counts all messages so far. size and took are moving means, in bytes and nanoseconds.
	seen       int
	size, took float64
	// largest message, in bytes, of the present period, which began at since, and of the one before.
	largest [2]int64
	since   time.Time
}

func newLoans(limit int64) *inflight {
	return &inflight{limit: limit, prefetch: scheduler.NewPrefetch()}
}

// of is the loan of a queue.
func (s *inflight) of(queue string) *queueInflight {
	l, ok := s.queues.Load(queue)
	if !ok {
		l, _ = s.queues.LoadOrStore(queue, &queueInflight{enough: s.limit / 2})
	}
	return l.(*queueInflight) //nolint:forcetypeassert // nothing else is stored
}

// sum adds up the messages that are not settled, and their bytes.
func (s *inflight) sum() (count int, bytes int64) {
	s.queues.Range(func(_, value any) bool {
		l := value.(*queueInflight) //nolint:forcetypeassert // nothing else is stored
		l.mu.Lock()
		defer l.mu.Unlock()
		count, bytes = count+l.count, bytes+l.bytes
		return true
	})
	return count, bytes
}

// decide decides on the prefetches of a program's queues. Where it may not, what it saw is forgotten. It is true where it did.
func (s *inflight) decide(p *program, decide bool, now time.Time) bool {
	found := map[string]scheduler.Load{}
	for _, subscription := range p.consumed {
		queue := p.queues[subscription.Queue]
		if subscription.Strict || subscription.Queue != queue.Name {
			continue // it takes one message at a time, in quarantine do
		}
		load := s.of(queue.Name).sample(now)
		load.Weight, load.Fixed, load.Prefetch = queue.Weight, queue.SingleActiveConsumer, s.decided[queue.Name]
		found[queue.Name] = load
	}
	if decide {
		limits := scheduler.Limits{Concurrency: p.config.Concurrency, Loans: p.config.Loans(), Bytes: s.limit}
		s.decided = s.prefetch.Next(found, limits, now)
		s.grant(found)
	}
	return decide
}

// grant adds to the prefetches what is held for long, so that a lane or queue that takes nothing does not hold up the messages that
// have another way to go; within the memory, which all queues share, and up to mostSpare for a queue.
func (s *inflight) grant(found map[string]scheduler.Load) {
	_, bytes := s.sum()
	room := s.limit/2 - bytes
	for name := range s.decided {
		room -= s.of(name).spareMemory()
	}
	s.granted = maps.Clone(s.decided)
	for _, name := range slices.Sorted(maps.Keys(s.decided)) {
		if found[name].Fixed {
			continue
		}
		queue := s.of(name)
		room += queue.spareMemory()
		s.granted[name] += queue.replace(s.decided[name], room)
		room -= queue.spareMemory()
	}
}

// spareMemory is what the messages take at least that are added to the prefetch.
func (l *queueInflight) spareMemory() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.spare) * heldMemory
}

// replace returns how much is added to a prefetch. It changes seldom, for each change takes another consumer.
func (l *queueInflight) replace(prefetch int, room int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch enough := min(mostSpare, 1<<bits.Len(uint(max(0, l.held)))); {
	case l.held == 0:
		l.spare = 0
	case l.held > l.spare+prefetch/2 && float64(enough)*max(l.size, heldMemory) < float64(room), l.held < l.spare/4:
		l.spare = enough
	}
	return l.spare
}

// hold counts messages that are held for long.
func (l *queueInflight) hold(more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held += more
}

// allow puts the prefetches of subscriptions in force.
func (s *inflight) allow(subscriptions []amqp.Subscription, metrics *Metrics, now time.Time) {
	s.queues.Range(func(name, value any) bool {
		i := slices.IndexFunc(subscriptions, func(s amqp.Subscription) bool { return s.Queue == name })
		if i < 0 {
			value.(*queueInflight).allow(0, now)              //nolint:forcetypeassert // nothing else is stored
			metrics.prefetch.DeleteLabelValues(name.(string)) //nolint:forcetypeassert // as above
		}
		return true
	})
	for _, subscription := range subscriptions {
		s.of(subscription.Queue).allow(subscription.Prefetch, now)
		metrics.prefetch.WithLabelValues(subscription.Queue).Set(float64(subscription.Prefetch))
	}
}

// begin counts a message. It is true where the prefetches should be looked at: for the first time the size of some messages is known,
// or many large ones have come.
func (l *queueInflight) begin(size int64, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.bytes += size
	l.arrived++
	l.seen++
	l.peak = max(l.peak, l.count)
	l.largest[0] = max(l.largest[0], size)
	l.size += (float64(size) - l.size) / float64(min(l.seen, meanOf))
	if l.count == l.prefetch {
		l.fullSince = now
	}
	return l.seen == scheduler.Sampled || size >= largeMessage && l.bytes > l.enough
}

// grow counts bytes more of a message that has begun.
func (l *queueInflight) grow(more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += more
}

// end counts a message that is settled. took is how long the handler had it; 0 where it did not.
func (l *queueInflight) end(size int64, took time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == l.prefetch {
		l.settleFull(now)
	}
	l.count--
	l.bytes -= size
	if took > 0 {
		l.took += (float64(took) - l.took) / float64(min(l.seen, meanOf))
	}
}

// allow puts a prefetch in force.
func (l *queueInflight) allow(prefetch int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleFull(now)
	if l.prefetch = prefetch; l.count >= prefetch {
		l.fullSince = now
	}
}

// settleFull counts the time up to now for which the consumer is full. Without a prefetch there is none.
func (l *queueInflight) settleFull(now time.Time) {
	if l.prefetch > 0 && l.count >= l.prefetch {
		l.full += max(0, now.Sub(l.fullSince))
		l.fullSince = now
	}
}

// sample tells what happened since the last one.
func (l *queueInflight) sample(now time.Time) scheduler.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleFull(now)
	if now.Sub(l.since) > largestFor {
		l.largest[1], l.largest[0], l.since = l.largest[0], 0, now
	}
	found := scheduler.Load{
		OnLoan: l.count, Bytes: l.bytes, Peak: l.peak, Full: l.full, Arrived: l.arrived, Mean: time.Duration(l.took),
		Seen: l.seen, Size: int64(l.size), Largest: max(l.largest[0], l.largest[1]),
	}
	l.full, l.peak, l.arrived = 0, l.count, 0
	return found
}

// tryYieldSlot is true where one more may wait without a place: at most half of the prefetch, so that others are received.
func (l *queueInflight) tryYieldSlot() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aside >= l.prefetch/2 {
		return false
	}
	l.aside++
	return true
}

func (l *queueInflight) stepBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.aside--
}
