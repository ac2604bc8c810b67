package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
)

// Names in the folder of a group.
const (
	configFolder  = "config"
	configFile    = "config.json"
	brokerFolder  = "broker"
	handlerFolder = "handler"
	journalFolder = "journal"
)

// processQuarantine is what a log line, a status and a metric call the quarantine process.
const processQuarantine = "quarantine"

// stopGrace is how long a program may take to stop, beyond the timeout of its handler: as long as a pod has.
const stopGrace = 15 * time.Second

// NeedProgram says of which worker groups the handler is inProcess, where there is no program for them.
func NeedProgram(set *manifest.Set, units []Unit, program []string) error {
	if len(program) > 0 {
		return nil
	}
	var problems []error
	for i := range units {
		for _, config := range wanted(&units[i]) {
			if config.Handler.InProcess != nil {
				problems = append(problems, fmt.Errorf("%s: the handler of worker %s is inProcess, and so a Go program is the worker: "+
					"add it to the command line, such as redrive run -f DIR -- go run ./cmd/orders",
					Describe(set, "Transport", units[i].Name()), config.Worker))
			}
		}
	}
	return errors.Join(problems...)
}

// outside is a group whose worker is a program of the team's, as a process.
type outside struct {
	log        *slog.Logger
	folder     *folder
	worker     *upkeep
	quarantine *upkeep
	keeper     *keeper
	// hash of the configuration that was written last.
	hash atomic.Pointer[string]
	// timeout is the longest that the handler has had: a call may still be of the time in which that was in force.
	timeout atomic.Int64
	stop    func()
	ended   chan struct{}
}

// startOutside runs a group until drain is called.
func startOutside(config compile.Config, on Broker, files Files, options *Options, log *slog.Logger) (*outside, error) {
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}
	g := &outside{log: log, folder: folder, ended: make(chan struct{})}
	limit := func() time.Duration { return time.Duration(g.timeout.Load()) + stopGrace }
	args := append(slices.Clone(options.Program),
		"--config", folder.at(configFolder+"/"+configFile), "--credentials", folder.at(brokerFolder),
		"--handler-files", folder.at(handlerFolder), "--log-level", options.LogLevel.String(), "--stop-on-stdin-close")
	g.worker = newUpkeep(args, options.LogTo, limit, log)
	g.quarantine = newUpkeep(append(slices.Clone(args), "--quarantine", "--journal", folder.at(journalFolder)), options.LogTo, limit,
		log.With("process", processQuarantine))
	g.keeper = newKeeper(options.QuarantineStay, g.quarantine.run)
	if err := g.take(config, on, files); err != nil {
		folder.remove()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	go func() {
		defer close(g.ended)
		g.worker.run(ctx)
		g.keeper.wait()
		folder.remove()
	}()
	return g, nil
}

// take writes the files that the processes follow. They take over what they can, and say so in their logs.
func (g *outside) take(config compile.Config, on Broker, files Files) error {
	encoded, err := compile.Encode(config)
	if err != nil {
		return err
	}
	if err := g.folder.add(handlerFolder, files); err != nil {
		return err
	}
	if err := g.login(on); err != nil {
		return err
	}
	if err := g.folder.add(configFolder, Files{configFile: encoded}); err != nil {
		return err
	}
	g.hash.Store(new(compile.Hash(encoded)))
	g.timeout.Store(max(g.timeout.Load(), int64(config.Timeout.Duration.Duration)))
	g.keeper.take(&config)
	return g.folder.prune(handlerFolder, files)
}

// login writes the keys of a Secret for the broker.
func (g *outside) login(on Broker) error {
	keys := Files{}
	for key, value := range secretOf(on) {
		if len(value) > 0 {
			keys[key] = value
		}
	}
	if err := g.folder.add(brokerFolder, keys); err != nil {
		return err
	}
	return g.folder.prune(brokerFolder, keys)
}

func (g *outside) takeLogin(on Broker) {
	if err := g.login(on); err != nil {
		g.log.Error("the broker's credentials cannot be given to the worker", "error", err)
	}
}

func (g *outside) look(counted counts, now time.Time) { g.keeper.look(counted, now) }

func (g *outside) addTo(all tallies) error {
	g.worker.addTo(all)
	g.quarantine.addTo(all)
	return nil
}

func (g *outside) ready() bool { return g.worker.ready() }

func (g *outside) follows() bool { return g.worker.follows(*g.hash.Load()) }

// workers leaves out the quarantine process while there is none.
func (g *outside) workers() []member {
	worker, _ := g.worker.member("")
	members := []member{worker}
	if quarantine, runs := g.quarantine.member(processQuarantine); runs {
		members = append(members, quarantine)
	}
	return members
}

func (g *outside) drain() {
	g.keeper.drain() // first: who waits for it may do so from when the worker has stopped
	g.stop()
}

func (g *outside) drained() <-chan struct{} { return g.ended }

func (g *outside) abandon() {
	g.worker.kill()
	g.quarantine.kill()
	g.folder.remove()
}
