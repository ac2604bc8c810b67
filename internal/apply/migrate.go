package apply

import (
	"context"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// betweenSteps is when to go on with a migration that waits for nothing but a look at what was done.
const betweenSteps = time.Second

// longestPause is the longest time between two looks at a step that waits for workers.
const longestPause = 30 * time.Second

// drainedIn is the migration in which a queue is drained, nil for other queues.
func (r *run) drainedIn(queue string) *topology.Migration {
	for i := range r.Difference.Migrations {
		if r.Difference.Migrations[i].Drains == queue {
			return &r.Difference.Migrations[i]
		}
	}
	return nil
}

// retire takes a queue one step further on its way out. Into one that is migrated nothing comes back: another queue has taken
// over its whole name. Nobody needs to be told to take its messages out, since workers do.
func (r *run) retire(
	ctx context.Context, shared *retirer, state v1alpha1.Retirement,
) (kept v1alpha1.Retirement, gone bool, err error) {
	if r.drainedIn(state.Queue) == nil {
		shared.bequeaths = slices.Contains(r.Difference.Inherited, state.Queue)
		return shared.step(ctx, state, r.waits(state.Queue))
	}
	known := r.observed.Queues[state.Queue].Queue
	own := &retirer{
		port: r.port, owner: shared.owner, prefix: shared.prefix, clock: r.clock, stamps: shared.stamps, known: &known, bequeaths: true,
	}
	waits := r.input.Waits
	waits.Grace = 0
	kept, gone, err = own.step(ctx, state, waits)
	own.blocked = nil
	r.take(own)
	return kept, gone, err
}

// noteMigrations notes how far the migrations are, and how the workers are to follow.
func (r *run) noteMigrations() {
	r.report.Migrations, r.report.StandIns = nil, map[string]compile.Standin{}
	for _, m := range r.Difference.Migrations {
		next := v1alpha1.Migration{Queue: m.Queue, Standin: m.Standin, Step: m.Step, Since: topology.Stamp(r.clock())}
		for _, last := range r.input.State.Migrations {
			if last.Queue == m.Queue && last.Step == m.Step && last.Since != nil {
				next.Since = last.Since
			}
		}
		if m.Drains == "" {
			r.report.RequeueAfter = soonest(r.report.RequeueAfter, r.untilNext(next))
		} else if at := slices.IndexFunc(r.report.Retiring, func(s v1alpha1.Retirement) bool { return s.Queue == m.Drains }); at >= 0 {
			next.Messages = r.report.Retiring[at].Messages
		} else {
			r.report.RequeueAfter = soonest(r.report.RequeueAfter, r.untilNext(next))
		}
		r.report.Migrations = append(r.report.Migrations, next)
		r.report.StandIns[m.Queue] = compile.Standin{Queue: m.Standin, Reads: m.Reads}
	}
	r.report.Leaving = r.leaving()
}

// untilNext is when to look again at a step that waits for workers: the longer it has, the later, for some never come up.
func (r *run) untilNext(m v1alpha1.Migration) time.Duration {
	return min(max(betweenSteps, r.input.State.Stamps.SinceStep(m, r.clock())/4), longestPause)
}

// leaving are the queues of ours that are not wanted any more and hold messages for workers, as far as they are still there. One that a list lacks, and
// that is known to be on its way out, counts: workers that once let go of it would never read it again.
func (r *run) leaving() []string {
	var names []string
	for _, state := range r.report.Retiring {
		if r.leaves(state.Queue) {
			names = append(names, state.Queue)
		}
	}
	return names
}

func (r *run) leaves(queue string) bool {
	released := slices.ContainsFunc(r.Difference.Released, func(q topology.ReleasedQueue) bool { return q.Queue == queue })
	state, listed := r.observed.Queues[queue]
	switch role := topology.RoleOf(state.Queue); {
	case released, r.drainedIn(queue) != nil:
		return false
	case !listed:
		return true
	default:
		extra := slices.ContainsFunc(r.Difference.ExtraQueues, func(q topology.QueueState) bool { return q.Name == queue })
		return extra && (role == topology.RoleWork || role == topology.RoleQuarantine)
	}
}
