package local

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/worker"
)

// Options of a Runner. All but Program are needed.
type Options struct {
	// Waits between the steps by which a queue that is not wanted any more is deleted.
	Waits topology.Waits
	// Reapply is how often drift is looked for and removed.
	Reapply time.Duration
	// Refresh is how often the broker's counts are read for Snapshots.
	Refresh time.Duration
	// QuarantineStay is how long the process stays that handles quarantined messages, after their queues were last seen with messages in them.
	QuarantineStay time.Duration
	// Program and its arguments are the worker of the groups whose handler is inProcess; empty where there is none.
	Program []string
	Log     *slog.Logger
	// LogTo is where other processes log, from LogLevel on. It is written to by many at a time.
	LogTo    io.Writer
	LogLevel slog.Level

	// memory is what the workers in this process share; nil gives each its own.
	memory *worker.Memory
}

// Runner runs Transports in this process.
type Runner struct {
	options Options

	mu    sync.Mutex
	sites map[types.NamespacedName]*site
	// all are the sites that ever were.
	all     []*site
	order   []types.NamespacedName
	running sync.WaitGroup
	ended   bool
}

// ErrEnded says that a Runner has been told to drain, and takes nothing any more.
var ErrEnded = errors.New("the runner has ended")

// NewRunner returns a Runner that runs nothing yet.
func NewRunner(options Options) *Runner {
	options.memory = worker.NewMemory(0)
	return &Runner{options: options, sites: map[types.NamespacedName]*site{}}
}

// Take makes these units the ones that run, each on its broker. A unit that runs already takes over what has changed
// without a restart of its workers, unless its broker is another one. A unit that is left out is drained in the
// background; its objects stay on the broker.
func (r *Runner) Take(units []Unit, brokers map[types.NamespacedName]Broker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return ErrEnded
	}
	r.order = nil
	wanted := map[types.NamespacedName]bool{}
	for i := range units {
		name := units[i].Name()
		wanted[name] = true
		r.order = append(r.order, name)
		current := r.sites[name]
		if current != nil && !current.on.Load().sameAs(brokers[name]) {
			r.options.Log.Info("Transport moves to another broker; its objects on the old one stay", "transport", name, "broker", brokers[name])
			current.end()
			current = nil
		}
		if current == nil {
			r.start(&units[i], brokers[name])
			continue
		}
		current.take(&units[i], brokers[name])
	}
	for name, site := range r.sites {
		if !wanted[name] {
			r.options.Log.Info("Transport is gone from the files: its workers stop, its objects on the broker stay", "transport", name)
			site.end()
			delete(r.sites, name)
		}
	}
	return nil
}

func (r *Runner) start(unit *Unit, on Broker) {
	s := newSite(&r.options, unit, on)
	r.sites[unit.Name()] = s
	r.all = append(r.all, s)
	r.running.Go(s.run)
}

// Drain lets all workers finish what they have and stop, and returns when they have or ctx ends.
func (r *Runner) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.ended = true
	for _, site := range r.sites {
		site.end()
	}
	r.mu.Unlock()
	drained := make(chan struct{})
	go func() {
		r.running.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, site := range r.all {
			for _, g := range site.allGroups() {
				g.abandon()
			}
		}
		return errors.New("stopped before all messages were settled: the broker delivers the rest again")
	}
}

// Snapshots shows all units in the order in which they were taken.
func (r *Runner) Snapshots() []Snapshot {
	sites := r.current()
	snapshots := make([]Snapshot, 0, len(sites))
	for _, site := range sites {
		snapshots = append(snapshots, site.snapshot())
	}
	return snapshots
}

// current are the sites of all units in the order in which they were taken.
func (r *Runner) current() []*site {
	r.mu.Lock()
	defer r.mu.Unlock()
	sites := make([]*site, 0, len(r.order))
	for _, name := range r.order {
		sites = append(sites, r.sites[name])
	}
	return sites
}

// LetHeapGrow has this process use its memory as a worker's does, until stop is called.
func LetHeapGrow() (stop func()) { return worker.LetHeapGrow() }
