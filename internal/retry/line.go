package retry

import (
	"slices"
	"sync"
)

// line gives out parts of something that there is only so much of, at once where enough is left. Else whoever asks waits: queues have
// their turns, one after the other, and within a queue who came first goes first. So nobody waits for all that another queue has in line.
// It is safe for concurrent use.
type line struct {
	lock sync.Mutex
	free int64
	// queues are those that somebody waits of, the next one first, and waiting is who does.
	queues  []string
	waiting map[string][]waiter
}

// waiter waits for a part. Its channel is closed when it has it.
type waiter struct {
	size int64
	has  chan struct{}
}

func newLine(size int64) *line { return &line{free: size, waiting: map[string][]waiter{}} }

// tryTake takes a part if it need not wait for it.
func (l *line) tryTake(size int64) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	if len(l.queues) > 0 || size > l.free {
		return false
	}
	l.free -= size
	return true
}

// take waits for a part, which must not be larger than all that there is.
func (l *line) take(queue string, size int64) {
	l.lock.Lock()
	if len(l.queues) == 0 && size <= l.free {
		l.free -= size
		l.lock.Unlock()
		return
	}
	w := waiter{size: size, has: make(chan struct{})}
	if len(l.waiting[queue]) == 0 {
		l.queues = append(l.queues, queue)
	}
	l.waiting[queue] = append(l.waiting[queue], w)
	l.lock.Unlock()
	<-w.has
}

// give takes back a part, and hands on what is free. Nobody is passed over who needs much, for else many small parts would keep it from its turn.
func (l *line) give(size int64) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.free += size
	for len(l.queues) > 0 {
		queue := l.queues[0]
		first := l.waiting[queue][0]
		if first.size > l.free {
			return
		}
		l.free -= first.size
		l.queues = slices.Delete(l.queues, 0, 1)
		if rest := l.waiting[queue][1:]; len(rest) > 0 {
			l.queues, l.waiting[queue] = append(l.queues, queue), rest
		} else {
			delete(l.waiting, queue)
		}
		close(first.has)
	}
}
