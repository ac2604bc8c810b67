package local

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/suspects"
)

// SuspectsArgument is the one argument of the process that a Runner starts for the suspects of a worker group: the Runner's own
// program, which then has to call SuspectsWorker.
const SuspectsArgument = "suspects-worker"

// Suspects says how the processes are run that handle messages which may have brought down a worker.
type Suspects struct {
	// Stay is how long a process stays after its queues were last seen with messages in them.
	Stay time.Duration
	// LogTo is where the processes log, as text, from LogLevel on.
	LogTo    io.Writer
	LogLevel slog.Level
}

// command of the process. It learns what it must know from its standard input, so the variables that hold logins are kept
// from it.
func (s *Suspects) command(ctx context.Context) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	command := exec.CommandContext(ctx, program, SuspectsArgument) //nolint:gosec // it is this program
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == EnvAMQP || name == EnvManagement
	})
	command.Stderr = s.LogTo
	return command
}

// keeper runs the suspects' worker of a group, as a process of its own, while its queues hold messages.
type keeper struct {
	options *Suspects
	log     *slog.Logger

	mu      sync.Mutex
	queues  []string
	orders  orders
	changed chan struct{} // closed when orders changes
	last    time.Time     // when there last were messages
	// stop ends the process; nil while there is none. ended is closed when the last one is gone.
	stop  context.CancelFunc
	ended chan struct{}
	// over is true when no process is to start any more.
	over bool
	done tallies
}

func newKeeper(options *Suspects, log *slog.Logger) *keeper {
	ended := make(chan struct{})
	close(ended)
	return &keeper{
		options: options, log: log, orders: orders{LogLevel: options.LogLevel}, changed: make(chan struct{}), ended: ended, done: tallies{},
	}
}

// take puts a configuration and credentials in force, for the process that runs and for those to come.
func (k *keeper) take(config compile.Config, on Broker) error {
	encoded, err := compile.Encode(config)
	if err != nil {
		return err //nolint:wrapcheck // it names the worker
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queues = nil
	for _, queue := range config.Queues {
		if queue.Suspects != "" {
			k.queues = append(k.queues, queue.Suspects)
		}
	}
	k.order(encoded, on)
	return nil
}

// takeLogin is take for credentials alone.
func (k *keeper) takeLogin(on Broker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.order(k.orders.Config, on)
}

// order changes the orders. k.mu is held.
func (k *keeper) order(config json.RawMessage, on Broker) {
	next := k.orders
	next.Config, next.Broker = config, secretOf(on)
	if reflect.DeepEqual(next, k.orders) {
		return
	}
	k.orders = next
	close(k.changed)
	k.changed = make(chan struct{})
}

// look starts or stops the process by the messages in its queues. A queue that the broker did not count, of those that it was
// asked for, may hold some.
func (k *keeper) look(counted counts, now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || counted == nil {
		return nil
	}
	for _, queue := range k.queues {
		if count, known := counted[queue]; !known || count > 0 {
			k.last = now
			return k.start()
		}
	}
	if k.stop != nil && now.Sub(k.last) >= k.options.Stay {
		k.stop()
		k.stop = nil
	}
	return nil
}

// start runs the process, but not before the one before it is gone: they share a journal.
func (k *keeper) start() error {
	select {
	case <-k.ended:
	default:
		return nil
	}
	if k.orders.Journal == "" {
		folder, err := os.MkdirTemp("", "redrive-journal-")
		if err != nil {
			return err //nolint:wrapcheck // it names the folder
		}
		k.orders.Journal = folder
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	k.stop, k.ended = stop, ended
	supervisor := suspects.Supervisor{
		Command: func(ctx context.Context) *exec.Cmd {
			command := k.options.command(ctx)
			command.Stdout = &tallyReader{add: k.add}
			return command
		},
		Journal: k.orders.Journal, Input: k.feed, Log: k.log,
	}
	go func() {
		defer close(ended)
		defer stop()
		supervisor.Run(ctx)
	}()
	return nil
}

// feed writes the orders, and again when they change.
func (k *keeper) feed(ctx context.Context, to io.Writer) {
	encoder := json.NewEncoder(to)
	for {
		k.mu.Lock()
		current, changed := k.orders, k.changed
		k.mu.Unlock()
		if err := encoder.Encode(current); err != nil {
			return // it has ended
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
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
	k.forget()
}

// forget removes the journal, when this process and with it its own is about to end.
func (k *keeper) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.orders.Journal != "" {
		_ = os.RemoveAll(k.orders.Journal) // else it is left to the system
	}
}

// add counts what a process has done since it last told.
func (k *keeper) add(more tallies) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done.plus(more, 1)
}

// addTo counts what all processes have done.
func (k *keeper) addTo(all tallies) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all.plus(k.done, 1)
}
