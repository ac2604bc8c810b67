package worker

import (
	"sync"
	"time"
)

// unreadTime is how soon a message that was given back unread comes again to a worker that has a place for it.
const unreadTime = 10 * time.Second

// unread counts, by queue, the messages that were given back unread and have not come again: no handler has had them, so they are not quarantined of having
// brought a worker down. Which they are is not known. One that did, and comes at that time, is taken for one of them once. A queue's count ends where none
// of them comes for as long as a call may take, and unreadTime: RabbitMQ has others first where the consumer is full. It is safe for concurrent use.
type unread struct {
	mu  sync.Mutex
	all map[string]returns
}

type returns struct {
	number int
	until  time.Time
}

func (u *unread) add(queue string, call time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	its := u.now(queue)
	u.all[queue] = returns{its.number + 1, time.Now().Add(call + unreadTime)}
}

// take is true where a message of a queue may be one of them.
func (u *unread) take(queue string, call time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	its := u.now(queue)
	if its.number > 0 {
		u.all[queue] = returns{its.number - 1, time.Now().Add(call + unreadTime)}
	}
	return its.number > 0
}

func (u *unread) now(queue string) returns {
	if its := u.all[queue]; time.Now().Before(its.until) {
		return its
	}
	return returns{}
}
