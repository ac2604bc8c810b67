package retry

import (
	"cmp"
	"slices"
	"sync"
)

// line gives out parts of something that there is only so much of, at once where enough is left. Else whoever asks waits: the queue goes first
// that has had the least, and within a queue who came first. So nobody waits for all that other queues have in line, not even where
// somebody has many of them: a queue that takes less than its share has the next turn. It is safe for concurrent use.
type line struct {
	lock      sync.Mutex
	all, free int64
	// kept is the part of it that only queues get which have saved up: they do not even wait for who is at it.
	kept int64
	// queues are those that somebody waits of, the one that has waited longest first, and waiting is who does.
	queues  []string
	waiting map[string][]waiter
	// had is what it was worth that the queues had since last nobody had anything. level is that of the queue that went last, and a queue counts
	// as at most saved below it: so much it may have before it has its turns with the others.
	had          map[string]int64
	level, saved int64
}

// waiter waits for a part. Its channel is closed when it has it.
type waiter struct {
	size int64
	has  chan struct{}
}

func newLine(size, kept, saved int64) *line {
	return &line{all: size, free: size, kept: kept, saved: saved, waiting: map[string][]waiter{}, had: map[string]int64{}}
}

// tryTake takes a part if it need not wait for it.
func (l *line) tryTake(size int64) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	if len(l.queues) > 0 || size > l.free-l.kept {
		return false
	}
	l.free -= size
	return true
}

// take waits for a part, which must not be larger than all that there is.
func (l *line) take(queue string, size int64) {
	l.lock.Lock()
	if len(l.queues) == 0 && size <= l.freeFor(queue) {
		l.free -= size
		l.lock.Unlock()
		return
	}
	w := waiter{size: size, has: make(chan struct{})}
	if len(l.waiting[queue]) == 0 {
		l.queues = append(l.queues, queue)
	}
	l.waiting[queue] = append(l.waiting[queue], w)
	l.handOn()
	l.lock.Unlock()
	<-w.has
}

// give takes back a part, notes what it was worth to the queue, and hands on what is free. Nobody is passed over who needs much, for else
// many small parts would keep it from its turn.
func (l *line) give(queue string, size, worth int64) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.had[queue] = l.of(queue) + worth
	if l.free += size; l.free == l.all && len(l.queues) == 0 {
		clear(l.had)
		l.level = 0
	}
	l.handOn()
}

// handOn gives what is free to those who wait.
func (l *line) handOn() {
	for len(l.queues) > 0 {
		next := slices.MinFunc(l.queues, func(a, b string) int { return cmp.Compare(l.of(a), l.of(b)) })
		first := l.waiting[next][0]
		if first.size > l.freeFor(next) {
			return
		}
		l.free -= first.size
		l.level = max(l.level, l.of(next))
		l.queues = slices.DeleteFunc(l.queues, func(queue string) bool { return queue == next })
		if rest := l.waiting[next][1:]; len(rest) > 0 {
			l.queues, l.waiting[next] = append(l.queues, next), rest
		} else {
			delete(l.waiting, next)
		}
		close(first.has)
	}
}

// freeFor is what of the free parts a queue may take.
func (l *line) freeFor(queue string) int64 {
	if l.of(queue) <= l.level-l.saved/2 {
		return l.free
	}
	return l.free - l.kept
}

// of is what a queue counts as having had.
func (l *line) of(queue string) int64 { return max(l.had[queue], l.level-l.saved) }
