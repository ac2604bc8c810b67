package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

const (
	// eventMigrating tells that a queue is migrated, and eventMigrated that it is done.
	eventMigrating = "MigrationStarted"
	eventMigrated  = "MigrationCompleted"
)

// rolloutCheck tells whether all worker pods consume a queue that is migrated as they are to. The pods are asked once, and only
// where a migration waits for them.
type rolloutCheck struct {
	r   *TransportReconciler
	run *transportRun

	asked bool
	// dissent is true where a pod says that it has another configuration than its group's, or cannot be asked yet; silent where
	// one does not answer.
	dissent, silent bool
}

// follows returns what apply asks about the workers.
func (r *TransportReconciler) follows(ctx context.Context, run *transportRun) func(string, compile.Reading) bool {
	f := &rolloutCheck{r: r, run: run}
	return func(queue string, reads compile.Reading) bool { return f.follow(ctx, queue, reads) }
}

func (f *rolloutCheck) follow(ctx context.Context, queue string, reads compile.Reading) bool {
	for _, config := range f.run.live.Configs() {
		if !config.Follows(queue, reads) {
			return false
		}
	}
	if !f.asked {
		f.asked = true
		if err := f.ask(ctx); err != nil {
			f.run.partly(err)
			f.dissent = true
		}
	}
	return !f.dissent && (!f.silent || f.longAgo(queue))
}

// ask asks the pods of the workers for the configuration that is in force there. One that is about to end counts until it is gone.
func (f *rolloutCheck) ask(ctx context.Context) error {
	addresses, wanted, err := f.peers(ctx)
	if err != nil || f.dissent {
		return err
	}
	for i, hash := range f.r.scraper.Hashes(ctx, addresses) {
		switch hash {
		case "":
			f.silent = true
		case wanted[i]:
		default:
			f.dissent = true
		}
	}
	return nil
}

// peers are the addresses of the pods to ask, and the configuration that each is to have in force. A Transport may have thousands of pods: they are read
// page by page, no more is kept of them, and none is read any more where one cannot follow.
func (f *rolloutCheck) peers(ctx context.Context) (addresses, wanted []string, err error) {
	t := f.run.transport
	err = f.r.reads.Pods(ctx, f.r.Live, t.Namespace, workload.TransportLabels(t), func(pod *corev1.Pod) (more bool) {
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if over || pod.Labels[workload.WorkerLabel] == "" {
			return true
		}
		configMap := f.run.live.ConfigMaps[workload.Name(t, pod.Labels[workload.WorkerLabel])]
		switch {
		case configMap == nil, !pod.DeletionTimestamp.IsZero():
			f.dissent = true
		case !workerstatus.CanAnswer(pod):
			f.silent = true
		default:
			addresses = append(addresses, workerstatus.AddressOf(pod))
			wanted = append(wanted, configMap.Annotations[workload.ConfigHashAnnotation])
		}
		return !f.dissent
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods: %w", err)
	}
	return addresses, wanted, nil
}

// longAgo is true where the workers that nobody can ask have had the time in which all take over a configuration, and none is of
// an older build.
func (f *rolloutCheck) longAgo(queue string) bool {
	for _, known := range f.run.transport.Status.Migrations {
		if known.Queue == queue && known.Since != nil {
			return time.Since(known.Since.Time) >= f.r.Options.Waits.Grace && len(f.run.live.Rolling()) == 0
		}
	}
	return false
}

// reportMigrations puts into the status which queues are migrated and how far that is, and tells of those that begin and end.
func reportMigrations(run *transportRun, migrations []v1alpha1.Migration, under []topology.Migration) {
	status := &run.transport.Status
	names := func(all []v1alpha1.Migration) (queues []string) {
		for _, m := range all {
			queues = append(queues, m.Queue)
		}
		return queues
	}
	before, now := names(status.Migrations), names(migrations)
	for _, m := range under {
		if !slices.Contains(before, m.Queue) && slices.Contains(now, m.Queue) {
			run.status.EventOnceWritten(corev1.EventTypeNormal, eventMigrating, beginning(&m))
		}
	}
	for _, queue := range before {
		if !slices.Contains(now, queue) {
			run.status.EventOnceWritten(corev1.EventTypeNormal, eventMigrated, "queue "+queue+" is no longer migrated, and stands alone")
		}
	}
	for i := range migrations {
		m := &migrations[i]
		m.Messages = nil
		// As status.retiring has it, so that it changes no more often.
		for _, state := range status.Retiring {
			if state.Queue == drained(*m) {
				m.Messages = state.Messages
			}
		}
	}
	status.Migrations = migrations
}

func beginning(m *topology.Migration) string {
	if m.Renames {
		return fmt.Sprintf("queue %s takes over from its previous name %s", m.Queue, m.Standin)
	}
	return fmt.Sprintf("queue %s is migrated to other arguments (%s); %s takes its messages meanwhile",
		m.Queue, status.Listed(m.Fields, topology.FieldChange.String), m.Standin)
}

// drained is the queue that workers empty in a step of a migration.
func drained(m v1alpha1.Migration) string {
	switch m.Step {
	case v1alpha1.MigrationDrain:
		return m.Queue
	case v1alpha1.MigrationCleanup:
		return m.Standin
	default:
		return ""
	}
}

// migrating is the error of a Transport some of whose queues are migrated; nil where none is.
func migrating(report apply.Report, its *v1alpha1.TransportStatus) error {
	if len(report.Migrations) == 0 {
		return nil
	}
	return outcome.Waiting(v1alpha1.ReasonMigrating, report.RequeueAfter, errors.New(
		"queues are migrated to other arguments or names: "+status.Listed(its.Migrations, migrationText)))
}

func migrationText(m v1alpha1.Migration) string {
	switch m.Step {
	case v1alpha1.MigrationPrepare:
		return m.Queue + ": workers learn of " + m.Standin
	case v1alpha1.MigrationDivert:
		return m.Queue + ": " + m.Standin + " takes over"
	case v1alpha1.MigrationDrain:
		return m.Queue + ": workers empty it"
	case v1alpha1.MigrationRecreate:
		return m.Queue + ": it is made"
	case v1alpha1.MigrationRestore:
		return m.Queue + ": it takes over from " + m.Standin
	default:
		return m.Queue + ": workers empty " + m.Standin
	}
}

// republish publishes the last good configurations with what is changed in how workers read what is migrated.
func (r *TransportReconciler) republish(ctx context.Context, run *transportRun, change func(compile.Config) (next compile.Config, changed bool)) error {
	for name, configMap := range run.live.ConfigMaps {
		last, ok := run.live.Config(name)
		if !ok {
			continue
		}
		next, changed := change(last)
		if !changed {
			continue
		}
		form, err := workload.ConfigMap(run.transport, next)
		if err != nil {
			return fmt.Errorf("worker %q: %w", next.Worker, err)
		}
		published := &corev1.ConfigMap{}
		if err := r.applyObject(ctx, run, form, asObject(configMap), published); err != nil {
			return err
		}
		if published.Name != "" {
			run.live.ConfigMaps[name] = published
		}
	}
	return nil
}

// keepReading lets workers that run on with the last good configuration follow the migrations all the same: these go on where something
// else is in the way, and where they do not, the queue that is read may be empty while the other one gets what is new.
func (r *TransportReconciler) keepReading(ctx context.Context, run *transportRun) error {
	if run.observed != nil {
		return r.republish(ctx, run, func(last compile.Config) (compile.Config, bool) {
			next, follows := last.Following(run.report.StandIns, run.report.Leaving)
			next, holds := next.Holding(run.report.Holds(next, run.live.Configs()))
			return next, follows || holds
		})
	}
	if len(run.transport.Status.Migrations) == 0 {
		return nil
	}
	observed, err := r.observeForFallback(ctx, run)
	if err != nil || observed == nil {
		return err
	}
	return r.readOn(ctx, run, leftOver(&run.transport.Status, observed))
}

// leftOver tells what is left in queues whose migration takes no further step. Only of the one that workers empty, and that nothing leads to
// any more, the count is the last word.
func leftOver(status *v1alpha1.TransportStatus, observed *topology.Observed) []v1alpha1.Retirement {
	var states []v1alpha1.Retirement
	for _, m := range status.Migrations {
		for _, name := range []string{m.Queue, m.Standin} {
			queue, exists := observed.Queues[name]
			if !exists {
				continue
			}
			state := v1alpha1.Retirement{Queue: name, Messages: queue.Messages}
			at := slices.IndexFunc(status.Retiring, func(s v1alpha1.Retirement) bool { return s.Queue == name })
			if at >= 0 && name == drained(m) && len(observed.BindingsTo(name)) == 0 {
				state.Since = status.Retiring[at].Unbound
			}
			states = append(states, state)
		}
	}
	return states
}

// readOn lets workers that consume a queue and its stand-in one after the other go on to the other one when that which they read
// is empty, where no further step of a migration is taken: nothing must be left that nobody reads.
func (r *TransportReconciler) readOn(ctx context.Context, run *transportRun, states []v1alpha1.Retirement) error {
	return r.republish(ctx, run, func(last compile.Config) (compile.Config, bool) {
		all, changed := map[string]compile.Standin{}, false
		for _, queue := range last.Queues {
			if queue.Standin == "" {
				continue
			}
			next := queue.Reads
			switch {
			case next == compile.ReadsQueue && r.isLeft(queue.Name, states) && !r.isLeft(queue.Standin, states):
				next = compile.ReadsStandin
			case next == compile.ReadsStandin && r.isLeft(queue.Standin, states) && !r.isLeft(queue.Name, states):
				next = compile.ReadsQueue
			case next == compile.ReadsQuarantine && r.isLeft(queue.Name, states):
				next = compile.ReadsStandin // of a queue that was renamed
			}
			all[queue.Name], changed = compile.Standin{Queue: queue.Standin, Reads: next}, changed || next != queue.Reads
		}
		return last.WithStandIns(all), changed
	})
}

// isLeft is true for a queue without messages, as long as the broker's figures may be late after its ways in were cut.
func (r *TransportReconciler) isLeft(queue string, states []v1alpha1.Retirement) bool {
	for _, state := range states {
		if state.Queue == queue {
			old := state.Since != nil && time.Since(state.Since.Time) >= r.Options.Waits.Unbound
			return old && state.Messages != nil && *state.Messages == 0
		}
	}
	return true
}
