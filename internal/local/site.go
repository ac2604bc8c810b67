package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
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

	// state is what one run of apply leaves to the next, and hindrance what only the user can put right.
	state     apply.State
	hindrance string
	retry     time.Duration
	groups    map[string]*group

	mu sync.Mutex
	// staffed are all groups that ever ran.
	staffed []*group
	// queues to count, and what was counted last; nil where the broker could not be asked.
	queues  []string
	counts  counts
	problem string
}

func newSite(options *Options, unit *Unit, on Broker) *site {
	s := &site{
		options: options,
		log:     options.Log.With("transport", unit.Name().String()),
		changed: make(chan struct{}, 1),
		groups:  map[string]*group{},
		problem: "is being made ready",
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
	select {
	case s.changed <- struct{}{}:
	default: // it is about to look anyway
	}
}

// run returns when all workers are drained after end.
func (s *site) run() {
	var watching sync.WaitGroup
	watching.Go(s.watch)
	for s.ending.Err() == nil {
		wait := s.converge()
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
		<-g.drained
	}
	watching.Wait()
}

// converge makes the broker's objects and the workers what the unit asks for, and gives the time until the next look. The
// objects come first: a worker that knows a lane needs it.
func (s *site) converge() time.Duration {
	unit := s.unit.Load()
	next, err := s.apply(unit)
	if err != nil {
		if s.ending.Err() != nil {
			return 0
		}
		s.report("waits for the broker: " + err.Error())
		s.retry = min(max(2*s.retry, firstRetry), longestRetry)
		return jittered(s.retry)
	}
	s.retry = 0
	s.made(unit)
	problem := s.hindrance
	if err := s.staff(unit); err != nil {
		problem = join(problem, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	s.report(problem)
	return min(next, jittered(s.options.Reapply))
}

// staff starts, reloads and stops workers. A group with no replicas is stopped.
func (s *site) staff(unit *Unit) error {
	var problems []error
	wanted := map[string]bool{}
	for i, config := range unit.Compiled.Workers {
		if replicas := unit.Transport.Spec.Workers[i].Replicas; replicas != nil && *replicas == 0 {
			continue
		}
		wanted[config.Worker] = true
		problems = append(problems, s.staffGroup(config))
	}
	for name, g := range s.groups {
		if !wanted[name] {
			s.log.Info("worker group stops", "worker", name)
			g.drain()
			delete(s.groups, name)
		}
	}
	return errors.Join(problems...)
}

func (s *site) staffGroup(config compile.Config) error {
	if g := s.groups[config.Worker]; g != nil {
		if err := g.worker.Reload(config); err != nil {
			return fmt.Errorf("worker %s keeps its configuration: %w", config.Worker, err)
		}
		return nil
	}
	g, err := startGroup(config, &s.on, s.log)
	if err != nil {
		return err
	}
	s.groups[config.Worker] = g
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staffed = append(s.staffed, g)
	return nil
}

func (s *site) allGroups() []*group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.staffed)
}

// watch counts the messages in the queues, as often as the table asks for.
func (s *site) watch() {
	tick := time.NewTicker(s.options.Refresh)
	defer tick.Stop()
	var broker counter
	defer broker.close()
	for {
		select {
		case <-s.ending.Done():
			return
		case <-tick.C:
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
		s.mu.Lock()
		s.counts = counted
		s.mu.Unlock()
	}
}

// made remembers which queues there are to count.
func (s *site) made(unit *Unit) {
	queues := make([]string, 0, len(unit.Objects.Queues)+len(s.state.Retiring))
	for _, queue := range unit.Objects.Queues {
		queues = append(queues, queue.Name)
	}
	for _, retiring := range s.state.Retiring {
		queues = append(queues, retiring.Queue)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = queues
}

// report shows what the Transport waits for, and logs it when it changes.
func (s *site) report(problem string) {
	s.mu.Lock()
	before := s.problem
	s.problem = problem
	s.mu.Unlock()
	switch problem {
	case before:
	case "":
		s.log.Info("everything on the broker is as it should be")
	default:
		s.log.Warn(problem)
	}
}

func (s *site) snapshot() Snapshot {
	done := tallies{}
	for _, g := range s.allGroups() {
		if err := done.add(g.metrics); err != nil {
			s.log.Error("the table is incomplete", "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := snapshotOf(s.unit.Load(), s.counts, done)
	snapshot.Broker, snapshot.Problem = s.on.Load().String(), s.problem
	return snapshot
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
