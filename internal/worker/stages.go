package worker

import (
	"context"
	"slices"
	"strings"

	"redrive.dev/redrive/internal/compile"
)

// stage is one step of a pipeline: it looks at a job and either decides what becomes of it or passes it on.
type stage func(w *Worker, ctx context.Context, j *job) (o outcome, decided bool)

// allStages are what the stages of pipelines do, by their names.
func allStages() map[string]stage {
	return map[string]stage{
		compile.StageUnreadable:  unreadable,
		compile.StageQuarantined: quarantineRedelivered,
		compile.StageSlot:        waitForPlace,
		compile.StageNoted:       noted,
		compile.StageStale:       staleDelivery,
		compile.StageExpired:     expired,
		compile.StageEarly:       early,
		compile.StageCrashed:     crashed,
		compile.StageOpenBreaker: breakerOpen,
		compile.StageBudget:      overBudget,
		compile.StageRateLimits:  limited,
		compile.StageBreaker:     breakerPermit,
		compile.StageReady:       handlerNotReady,
		compile.StageAttempt:     attempt,
	}
}

// stages are the pipelines of one program.
type stages struct{ usual, strict, again []stage }

func stagesOf(config *compile.Config, hasJournal bool) stages {
	all := allStages()
	named := func(names []string) []stage {
		list := make([]stage, len(names))
		for i, name := range names {
			list[i] = all[name]
		}
		return list
	}
	return stages{named(config.Pipeline(hasJournal)), named(config.StrictPipeline()), named(config.BetweenTries())}
}

// stages are those that a job goes through: the given ones, or where its queue has moved, those that leave it to who consumes that now.
func (j *job) stages(ours []stage) []stage {
	if j.moved {
		return []stage{unreadable, quarantineRedelivered, leftToOthers}
	}
	return ours
}

// leftToOthers gives back a message of a queue that the program has no more: no policy of it is the queue's. It waits until the queue is not
// subscribed to, since before that the message could come back at once, and of a Strict queue each time counts as an attempt.
func leftToOthers(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	for w.consumer.IsSubscribed(j.delivery.Queue) && w.program.Load() == j.program {
		if o, ended := w.await(ctx, j, nextLook, nil); ended {
			return o, true
		}
	}
	return outcome{kind: requeued}, true
}

// shown are the names of the stages that the queues of a program go through: those of queues in strict order apart. A list
// is empty where there is no such queue.
func (p *program) shown() (usual, strict []string) { return p.config.Pipelines(p.hasJournal) }

// tellStages logs the pipelines of a program where they are not those of the program before it.
func (w *Worker) tellStages(p, before *program) {
	usual, strict := p.shown()
	if before != nil {
		if lastUsual, lastStrict := before.shown(); slices.Equal(usual, lastUsual) && slices.Equal(strict, lastStrict) {
			return
		}
	}
	const arrow = " > "
	if len(usual) > 0 {
		w.options.Log.Info("stages that each message goes through", "stages", strings.Join(usual, arrow))
	}
	if len(strict) > 0 {
		w.options.Log.Info("stages that each message of a strictly ordered queue goes through", "stages", strings.Join(strict, arrow))
	}
}
