package local

import (
	"context"
	"sync"
	"time"

	"redrive.dev/redrive/internal/compile"
)

// keeper runs the quarantine worker of a group, as a process of its own, while its queues hold messages.
type keeper struct {
	// stay is how long the process stays after its queues were last seen with messages in them.
	stay time.Duration
	// run runs the process until ctx ends and it has stopped. It is not called before the call before has returned: they share a
	// journal.
	run func(ctx context.Context)

	mu     sync.Mutex
	queues []string
	last   time.Time // when there last were messages
	// stop ends the process; nil while there is none. ended is closed when the last one is gone.
	stop  context.CancelFunc
	ended chan struct{}
	// over is true when no process is to start any more.
	over bool
}

func newKeeper(stay time.Duration, run func(ctx context.Context)) *keeper {
	ended := make(chan struct{})
	close(ended)
	return &keeper{stay: stay, run: run, ended: ended}
}

// take takes over the queues of a configuration.
func (k *keeper) take(config *compile.Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queues = nil
	for _, queue := range config.Queues {
		if queue.Quarantine != "" {
			k.queues = append(k.queues, queue.Quarantine)
		}
	}
}

// look starts or stops the process by the messages in its queues. A queue that the broker did not count, of those that it was
// asked for, may hold some.
func (k *keeper) look(counted counts, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || counted == nil {
		return
	}
	for _, queue := range k.queues {
		if count, known := counted[queue]; !known || count > 0 {
			k.last = now
			k.start()
			return
		}
	}
	if k.stop != nil && now.Sub(k.last) >= k.stay {
		k.stop()
		k.stop = nil
	}
}

// start runs the process, but not before the one before it is gone. k.mu is held.
func (k *keeper) start() {
	select {
	case <-k.ended:
	default:
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	k.stop, k.ended = stop, ended
	go func() {
		defer close(ended)
		defer stop()
		k.run(ctx)
	}()
}

// drain lets the process finish what it has and stop. None is started any more.
func (k *keeper) drain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	if k.stop != nil {
		k.stop()
	}
}

// wait returns when no process is left after drain.
func (k *keeper) wait() {
	k.mu.Lock()
	ended := k.ended
	k.mu.Unlock()
	<-ended
}
