package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/drift"
	"redrive.dev/redrive/internal/topology"
)

const (
	firstRetry   = 500 * time.Millisecond
	longestRetry = 15 * time.Second
)

// site is one Transport on its broker: its objects, which are kept as they should be, and its workers. Only run's goroutine
// writes to the broker and starts and stops workers.
type site struct {
	options *Options
	log     *slog.Logger
	unit    atomic.Pointer[Unit]
	on      atomic.Pointer[Broker]
	changed chan struct{}
	ending  context.Context //nolint:containedctx // the site is a process of its own; end ends it
	end     context.CancelFunc

	// state is what one run of apply leaves to the next, and hindrance what only the user can resolve. keepsWorkers is true where an object is not, or may
	// not be, as the workers would need it: they keep their configuration.
	state        apply.State
	hindrance    string
	keepsWorkers bool
	// found is the report of the last run of apply that came to its end.
	found apply.Report
	retry time.Duration
	// restarted is when the broker was found to answer again after it had not; nil where it always has.
	restarted atomic.Pointer[time.Time]
	// warned are the warnings that were told and hold, fingerprint is what was wanted when all was made, and drift what was seen before.
	warned      map[warned]bool
	fingerprint string
	drift       *drift.Tracker
	// rests is true where it was told last that nothing is wrong.
	rests bool
	// groups that run, and the configuration that each has in force.
	groups  map[string]group
	inForce map[string]compile.Config
	// files are what the handler of each group that runs was given.
	files map[string]Files

	mu sync.Mutex
	// staffed are all groups that ever ran.
	staffed []staffed
	// queues to count, and what was counted last; nil where the broker could not be asked.
	queues  []string
	counts  counts
	problem string
}

// staffed is a group with the name of its workers.
type staffed struct {
	group

	worker string
}

func newSite(options *Options, unit *Unit, on Broker) *site {
	s := &site{
		options: options,
		log:     options.Log.With("transport", unit.Name().String()),
		changed: make(chan struct{}, 1),
		groups:  map[string]group{},
		inForce: map[string]compile.Config{},
		files:   map[string]Files{},
		problem: "is being made ready",
		drift:   drift.NewTracker(),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.unit.Store(unit)
	s.on.Store(&on)
	return s
}

// take puts a changed unit or changed credentials in force.
func (s *site) take(unit *Unit, on Broker) {
	s.unit.Store(unit)
	s.on.Store(&on)
	s.lookAgain()
}

func (s *site) lookAgain() {
	select {
	case s.changed <- struct{}{}:
	default: // it is about to look anyway
	}
}

// restartedAt is when the broker was found to answer again; zero where it always has.
func (s *site) restartedAt() time.Time {
	if at := s.restarted.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// run returns when all workers are drained after end.
func (s *site) run() {
	var watching sync.WaitGroup
	watching.Go(s.watch)
	// The loop may wait for the next handler of a group to start, which a group that is to stop no longer does.
	defer context.AfterFunc(s.ending, func() {
		for _, g := range s.allGroups() {
			g.drain()
		}
	})()
	for s.ending.Err() == nil {
		wait := s.converge()
		if look, due := apply.LookAfterRestart(s.restartedAt(), time.Now()); due {
			wait = min(wait, look)
		}
		select {
		case <-s.ending.Done():
		case <-s.changed:
		case <-time.After(wait):
		}
	}
	s.mu.Lock()
	s.problem = "draining"
	s.mu.Unlock()
	for _, g := range s.groups {
		g.drain()
	}
	for _, g := range s.allGroups() {
		<-g.drained()
	}
	watching.Wait()
}

// converge makes the broker's objects and the workers what the unit asks for, and gives the time until the next look. The
// objects come first: a worker that knows a lane needs it.
func (s *site) converge() time.Duration {
	unit, named := s.unit.Load(), s.named()
	for _, g := range s.groups {
		g.takeLogin(*s.on.Load()) // whatever becomes of the rest
	}
	desired := s.desired(unit)
	next, err := s.apply(desired)
	if _, young := errors.AsType[*apply.TooYoungError](err); young {
		return next // the workers stay as they are
	}
	if err != nil {
		if s.ending.Err() != nil {
			return 0
		}
		s.report("waits for the broker: " + err.Error())
		s.retry = min(max(2*s.retry, firstRetry), longestRetry)
		return jittered(s.retry)
	}
	s.retry = 0
	s.made(desired)
	if s.keepsWorkers {
		s.report(join(s.hindrance, s.hold(unit), s.follow(unit)))
		return min(next, jittered(s.options.Reapply))
	}
	problem := s.hindrance
	if err := s.staff(unit); err != nil {
		problem = join(problem, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	s.report(problem)
	if now := s.named(); slices.ContainsFunc(named, func(name string) bool { return !slices.Contains(now, name) }) {
		return 0 // what no worker names any more can go
	}
	return min(next, jittered(s.options.Reapply))
}

// hold leaves the workers as they are while there is a conflict or a refused step, and says so: whoever owns the object in question must not get
// their messages, and they would not find it as they believe.
func (s *site) hold(unit *Unit) string {
	text := "until that is fixed the workers keep their present configuration"
	var waiting []string
	for _, config := range wanted(unit) {
		if s.groups[config.Worker] == nil {
			waiting = append(waiting, config.Worker)
		}
	}
	if len(waiting) > 0 {
		text += ", not started: " + strings.Join(waiting, ", ")
	}
	return text
}

// follow lets workers that stay as they are read on where the migration of a queue goes on; it says what keeps them from it.
func (s *site) follow(unit *Unit) string {
	var problems []string
	for _, worker := range slices.Sorted(maps.Keys(s.inForce)) {
		config := s.inForce[worker]
		next, follows := config.Following(s.found.StandIns, s.found.Leaving, s.found.There())
		if next, holds := next.Holding(s.found.Holds(next, s.published())); follows || holds {
			if err := s.staffGroup(next, s.filesOf(unit, worker)); err != nil {
				problems = append(problems, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		}
	}
	return join(problems...)
}

// wanted are the worker groups that are to run: not those with no replicas.
func wanted(unit *Unit) []compile.Config {
	var configs []compile.Config
	for i, config := range unit.Compiled.Workers {
		if replicas := unit.Transport.Spec.Workers[i].Replicas; replicas == nil || *replicas > 0 {
			configs = append(configs, config)
		}
	}
	return configs
}

// staff starts, reloads and stops workers.
func (s *site) staff(unit *Unit) error {
	configs := s.next(unit)
	problems, stays := make([]error, 0, len(configs)), map[string]bool{}
	for _, config := range configs {
		stays[config.Worker] = true
		problems = append(problems, s.staffGroup(config, s.filesOf(unit, config.Worker)))
	}
	for name := range s.groups {
		if !stays[name] {
			s.log.Info("worker group stops", "worker", name)
			s.dismiss(name)
		}
	}
	return errors.Join(problems...)
}

// next are the configurations of the worker groups that are to run, with those that have left the spec and go on.
func (s *site) next(unit *Unit) []compile.Config {
	configs := wanted(unit)
	for i := range configs {
		configs[i] = configs[i].WithStandIns(s.found.StandIns)
	}
	unserved := s.unserved(configs)
	all := make([]compile.Config, 0, len(configs))
	for _, next := range configs {
		if last, runs := s.inForce[next.Worker]; runs {
			next = next.WithHandedOver(&last, configs, unserved)
			next = next.WithLeaving(last, s.found.Leaving)
		}
		next, _ = next.Holding(s.found.Holds(next, s.published()))
		all = append(all, next)
	}
	return append(all, s.former(unit, configs, unserved)...)
}

// unserved are the queues of some configurations that no group is ready to consume: its program may not start, or its handler not get ready.
func (s *site) unserved(configs []compile.Config) map[string]bool {
	return compile.Unserved(configs, func(worker, queue string) bool {
		config, runs := s.inForce[worker]
		return runs && config.Has(queue) && s.groups[worker].ready() && s.groups[worker].follows()
	})
}

// former are the configurations of the worker groups that run and have left the spec, and go on: with what no group of the spec is ready to consume, and
// with what is left in queues that none is to consume.
func (s *site) former(unit *Unit, configs []compile.Config, unserved map[string]bool) []compile.Config {
	var groups []compile.Config
	for _, name := range slices.Sorted(maps.Keys(s.inForce)) {
		if slices.ContainsFunc(unit.Compiled.Workers, func(config compile.Config) bool { return config.Worker == name }) {
			continue // one that is to have no replicas stops
		}
		last := s.inForce[name]
		if next, goesOn := last.Former(configs, unserved, s.found.Leaving); goesOn {
			next, _ = next.Holding(s.found.Holds(next, s.published()))
			groups = append(groups, next)
		}
	}
	return groups
}

// published are the configurations in force.
func (s *site) published() []compile.Config { return slices.Collect(maps.Values(s.inForce)) }

// filesOf are what the handler of a group is given, which may have left the spec.
func (s *site) filesOf(unit *Unit, worker string) Files {
	if files, known := unit.Files[worker]; known {
		return files
	}
	return s.files[worker]
}

// dismiss lets a group drain in the background.
func (s *site) dismiss(name string) {
	s.groups[name].drain()
	delete(s.groups, name)
	delete(s.inForce, name)
	delete(s.files, name)
}

func (s *site) staffGroup(config compile.Config, files Files) error {
	name, isOutside := config.Worker, config.Handler.InProcess != nil
	if before, ok := s.inForce[name]; ok && (before.Handler.InProcess != nil) != isOutside {
		s.log.Info("worker group stops, for another kind of handler", "worker", name)
		s.dismiss(name)
	}
	if g := s.groups[name]; g != nil {
		if err := g.take(config, *s.on.Load(), files); err != nil {
			return fmt.Errorf("worker %s keeps its configuration: %w", name, err)
		}
		s.inForce[name], s.files[name] = config, files
		return nil
	}
	start := s.startInside
	if isOutside && len(s.options.Program) > 0 {
		start = s.startOutside
	}
	g, err := start(config, files, s.log.With("worker", name))
	if err != nil {
		return err
	}
	s.groups[name], s.inForce[name], s.files[name] = g, config, files
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staffed = append(s.staffed, staffed{group: g, worker: name})
	return nil
}

func (s *site) startInside(config compile.Config, files Files, log *slog.Logger) (group, error) {
	return startInside(config, *s.on.Load(), files, s.options, log)
}

func (s *site) startOutside(config compile.Config, files Files, log *slog.Logger) (group, error) {
	return startOutside(config, *s.on.Load(), files, s.options, log)
}

func (s *site) allGroups() []staffed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.staffed)
}

// watch counts the messages in the queues, as often as the table asks for, and lets the quarantine workers run by that.
func (s *site) watch() {
	tick := time.NewTicker(s.options.Refresh)
	defer tick.Stop()
	var broker counter
	defer broker.close()
	silent := false
	var ready []string
	for {
		select {
		case <-s.ending.Done():
			return
		case <-tick.C:
		}
		if now := s.ready(); !slices.Equal(now, ready) {
			ready = now
			s.lookAgain() // whoever consumes a queue until another group does may let go of it
		}
		s.mu.Lock()
		queues := s.queues
		s.mu.Unlock()
		if len(queues) == 0 {
			continue
		}
		// Without an answer the table shows the counts as unknown; what is wrong, the others say.
		counted, err := broker.count(s.ending, *s.on.Load(), queues)
		if err != nil {
			counted = nil
		}
		if silent && err == nil {
			s.restarted.Store(new(time.Now())) // after a crash lanes may stand still
			s.lookAgain()
		}
		silent = err != nil
		s.mu.Lock()
		s.counts = counted
		s.mu.Unlock()
		for _, g := range s.allGroups() {
			g.look(counted, time.Now())
		}
	}
}

// ready are the worker groups that are, and that have their configuration in force, sorted.
func (s *site) ready() (workers []string) {
	for _, g := range s.allGroups() {
		if g.ready() && g.follows() {
			workers = append(workers, g.worker)
		}
	}
	slices.Sort(workers)
	return workers
}

// made remembers which queues there are to count: quarantine queues, too, that a worker has while the spec has none any more.
func (s *site) made(desired topology.Objects) {
	queues := s.consumed()
	for _, queue := range desired.Queues {
		queues = append(queues, queue.Name)
	}
	for _, retiring := range s.state.Retiring {
		queues = append(queues, retiring.Queue)
	}
	slices.Sort(queues)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = slices.Compact(queues)
}

// report shows what the Transport waits for, and logs it when it changes.
func (s *site) report(problem string) {
	s.mu.Lock()
	before := s.problem
	s.problem = problem
	s.mu.Unlock()
	rests := problem == "" && len(s.warned) == 0
	switch {
	case rests && !s.rests:
		s.log.Info("everything on the broker is as it should be")
	case problem == before:
	case problem == "":
		s.log.Info("all is made on the broker; what was warned of is still so", "warnings", len(s.warned))
	default:
		s.log.Warn(problem)
	}
	s.rests = rests
}

func (s *site) snapshot() Snapshot {
	done := tallies{}
	for _, g := range s.allGroups() {
		if err := g.addTo(done); err != nil {
			s.log.Error("the table is incomplete", "error", err)
		}
	}
	members := s.members()
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := snapshotOf(s.unit.Load(), s.counts, done)
	snapshot.Broker, snapshot.Problem, snapshot.Workers = s.on.Load().String(), s.problem, make([]WorkerSnapshot, 0, len(members))
	for _, m := range members {
		snapshot.Workers = append(snapshot.Workers, m.status)
		snapshot.Troubles = append(snapshot.Troubles, m.status.troubles()...)
	}
	return snapshot
}

// members are the workers of all groups that run, in the order in which they were started. Those that still drain are among them.
func (s *site) members() []member {
	var all []member
	for _, g := range s.allGroups() {
		select {
		case <-g.drained():
			continue
		default:
		}
		for _, m := range g.workers() {
			m.status.Worker = g.worker
			all = append(all, m)
		}
	}
	return all
}

// jittered keeps many sites from asking one broker all at once.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1)) //nolint:gosec // jitter needs no secrecy
}

func join(texts ...string) string {
	all := ""
	for _, text := range texts {
		if text != "" && all != "" {
			all += "; "
		}
		all += text
	}
	return all
}
