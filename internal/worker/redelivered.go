package worker

import "sync"

// redelivered counts, by queue on the broker, the messages that came back and are quarantined. RabbitMQ marks messages as redelivered that no worker had:
// the whole of a classic queue after its node was killed, and all that another consumer had taken when it stopped. They would be handled one at a time, for
// hours. So there is room for as many as workers can have had, and each message that is not marked makes room for one more. What a crash leaves is at the
// head of its queue, and finds the room of a new process; those that came back more than once have a room of their own. It is safe for concurrent use.
type redelivered struct {
	mu  sync.Mutex
	all map[redeliveredRoom]int
}

type redeliveredRoom struct {
	queue string
	again bool
}

// take is true where there is room for one more among most. again is true of a message that came back more than once.
func (r *redelivered) take(queue string, again bool, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := redeliveredRoom{queue, again}
	if r.all[room] >= most {
		return false
	}
	if r.all == nil {
		r.all = map[redeliveredRoom]int{}
	}
	r.all[room]++
	return true
}

// refill makes room for one.
func (r *redelivered) refill(queue string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for room := range r.all {
		if room.queue != queue {
			continue
		}
		if r.all[room]--; r.all[room] == 0 {
			delete(r.all, room)
		}
	}
}
