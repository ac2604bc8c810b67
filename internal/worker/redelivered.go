package worker

import "sync"

// redelivered counts, by queue, the redelivered messages that are quarantined. RabbitMQ marks messages as redelivered that no worker had: the whole of a
// classic queue after its node was killed, and all that another consumer had taken when it stopped. They would be handled one at a time, for hours. So
// there is room for as many as workers can have had, and each message that is not marked makes room for one more. What a crash leaves is at the head of its
// queue, and finds the room of a new process: a message that brings down workers is quarantined when it comes back from the next one at the latest.
// It is safe for concurrent use.
type redelivered struct {
	mu  sync.Mutex
	all map[string]int
}

// take is true where there is room for one more among most.
func (r *redelivered) take(queue string, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[queue] >= most {
		return false
	}
	if r.all == nil {
		r.all = map[string]int{}
	}
	r.all[queue]++
	return true
}

// refill makes room for one.
func (r *redelivered) refill(queue string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.all[queue] {
	case 0:
	case 1:
		delete(r.all, queue)
	default:
		r.all[queue]--
	}
}
