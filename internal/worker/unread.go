package worker

import (
	"sync"
	"time"
)

// unreadTime is how soon a message that was given back unread comes again.
const unreadTime = 10 * time.Second

// unread counts, by queue, the messages that were given back unread and have not come again: nobody has had them in hand, so they are not quarantined of having
// brought a worker down. Which they are is not known. One that did, and comes at that time, is taken for one of them once. It is safe for
// concurrent use.
type unread struct {
	mu  sync.Mutex
	all map[string]returns
}

type returns struct {
	number int
	until  time.Time
}

func (u *unread) add(queue string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	its := u.now(queue)
	u.all[queue] = returns{its.number + 1, time.Now().Add(unreadTime)}
}

// take is true where a message of a queue may be one of them.
func (u *unread) take(queue string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	its := u.now(queue)
	if its.number > 0 {
		u.all[queue] = returns{its.number - 1, its.until}
	}
	return its.number > 0
}

func (u *unread) now(queue string) returns {
	if its := u.all[queue]; time.Now().Before(its.until) {
		return its
	}
	return returns{}
}
