package local

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/worker"
)

// member is a worker of a group. What it measures has no label yet that says whose it is.
type member struct {
	status  WorkerSnapshot
	metrics prometheus.Gatherer
}

// group is a worker group: one worker with the concurrency of one pod, however many replicas the spec asks for, and a process
// for its quarantine while there are some. All but drained are called by one goroutine, or with nothing else that changes them.
type group interface {
	// take puts a changed configuration, changed credentials and changed files of the handler in force.
	take(config compile.Config, on Broker, files Files) error
	// takeLogin is take for credentials alone.
	takeLogin(on Broker)
	// look lets the quarantine process run by the messages that were counted.
	look(counted counts, now time.Time)
	// addTo counts what the group has done.
	addTo(all tallies) error
	// ready is true while the worker of the group can receive and settle messages, as a pod of it would be.
	ready() bool
	// follows is true where no worker of the group has another configuration in force than the one that was taken last.
	follows() bool
	// workers are the worker of the group and, where it is known, its quarantine queue.
	workers() []member
	// drain lets the group finish what it has and stop. drained is closed when it has.
	drain()
	drained() <-chan struct{}
	// abandon ends at once what is left of the group outside of this process, which is about to end.
	abandon()
}

// inside is a group whose worker is in this process.
type inside struct {
	worker     *worker.Worker
	metrics    *prometheus.Registry
	given      *given
	quarantine *quarantineChild
	keeper     *keeper
	// folder of the handler's files; nil until there are some.
	folder *folder
	stop   func()
	ended  chan struct{}
}

// startInside runs a group until drain is called.
func startInside(config compile.Config, on Broker, files Files, options *Options, log *slog.Logger) (_ *inside, err error) {
	g := &inside{metrics: prometheus.NewRegistry(), given: &given{}, quarantine: newQuarantineChild(options, log), ended: make(chan struct{})}
	g.keeper = newKeeper(options.QuarantineStay, g.quarantine.run)
	defer func() {
		if err != nil {
			g.abandon()
		}
	}()
	g.given.broker.Store(&on)
	if err := g.place(files); err != nil {
		return nil, err
	}
	if err := g.entrust(config, on); err != nil {
		return nil, err
	}
	w, flush, err := newWorker(config, g.given, g.metrics, log, nil, options.memory)
	if err != nil {
		return nil, err
	}
	g.worker = w
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	go func() {
		defer close(g.ended)
		w.Run(ctx)
		flush()
		g.keeper.wait()
		g.abandon()
	}()
	return g, nil
}

// place puts the files where the handler finds them.
func (g *inside) place(files Files) error {
	path := ""
	if g.folder == nil && len(files) > 0 {
		made, err := newFolder()
		if err != nil {
			return err
		}
		g.folder = made
	}
	if g.folder != nil {
		path = g.folder.at(handlerFolder)
		if err := g.folder.add(handlerFolder, files); err != nil {
			return err
		}
	}
	g.given.files.Store(&path)
	return nil
}

// entrust gives a configuration that the worker takes to the process for its quarantine.
func (g *inside) entrust(config compile.Config, on Broker) error {
	g.keeper.take(&config)
	return g.quarantine.take(config, on, *g.given.files.Load())
}

// take hands nothing that the worker refuses to the process for its quarantine: that would not start with it, while the worker goes
// on with the configuration before.
func (g *inside) take(config compile.Config, on Broker, files Files) error {
	g.given.broker.Store(&on)
	if err := g.place(files); err != nil {
		return err
	}
	if err := g.worker.Reload(config); err != nil {
		g.quarantine.takeLogin(on)
		return err
	}
	if g.folder != nil {
		if err := g.folder.prune(handlerFolder, files); err != nil {
			return err
		}
	}
	return g.entrust(config, on)
}

func (g *inside) takeLogin(on Broker) {
	g.given.broker.Store(&on)
	g.quarantine.takeLogin(on)
}

func (g *inside) look(counted counts, now time.Time) { g.keeper.look(counted, now) }

func (g *inside) addTo(all tallies) error {
	g.quarantine.addTo(all)
	return all.add(g.metrics)
}

func (g *inside) ready() bool { return g.worker.Ready() == nil }

// follows is true at once: what the worker refuses is not taken.
func (g *inside) follows() bool { return true }

func (g *inside) workers() []member {
	members := []member{{status: WorkerSnapshot{WorkerStatus: g.worker.Status()}, metrics: g.metrics}}
	if quarantine, known := g.quarantine.member(); known {
		members = append(members, quarantine)
	}
	return members
}

func (g *inside) drain() {
	g.keeper.drain() // first: who waits for it may do so from when the worker has stopped
	g.stop()
}

func (g *inside) drained() <-chan struct{} { return g.ended }

func (g *inside) abandon() {
	g.quarantine.forget()
	if g.folder != nil {
		g.folder.remove()
	}
}
