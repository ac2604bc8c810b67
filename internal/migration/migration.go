// Package migration tells in the status of a Transport how far the migrations of its queues are, and which queue workers read where no further step of one
// is taken.
package migration

import (
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
)

const (
	// eventMigrating tells that a queue is migrated, and eventMigrated that it is done.
	eventMigrating = "MigrationStarted"
	eventMigrated  = "MigrationCompleted"
)

// Report puts into the status which queues are migrated and how far that is, and tells of those that begin and end.
func Report(patcher *outcome.Patcher, its *v1alpha1.TransportStatus, migrations []v1alpha1.Migration, under []topology.Migration) {
	names := func(all []v1alpha1.Migration) (queues []string) {
		for _, m := range all {
			queues = append(queues, m.Queue)
		}
		return queues
	}
	before, now := names(its.Migrations), names(migrations)
	for _, m := range under {
		if !slices.Contains(before, m.Queue) && slices.Contains(now, m.Queue) {
			patcher.EventOnceWritten(corev1.EventTypeNormal, eventMigrating, beginning(&m))
		}
	}
	for _, queue := range before {
		if !slices.Contains(now, queue) {
			patcher.EventOnceWritten(corev1.EventTypeNormal, eventMigrated, "queue "+queue+" is no longer migrated, and stands alone")
		}
	}
	for i := range migrations {
		m := &migrations[i]
		m.Messages = nil
		// As status.retiring has it, so that it changes no more often.
		for _, state := range its.Retiring {
			if state.Queue == drained(*m) {
				m.Messages = state.Messages
			}
		}
	}
	its.Migrations = migrations
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

// Waiting is the error of a Transport some of whose queues are migrated; nil where none is.
func Waiting(report apply.Report, its *v1alpha1.TransportStatus) error {
	if len(report.Migrations) == 0 {
		return nil
	}
	return outcome.Waiting(v1alpha1.ReasonMigrating, report.RequeueAfter, errors.New(
		"queues are migrated to other arguments or names: "+status.Listed(its.Migrations, text)))
}

func text(m v1alpha1.Migration) string {
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

// LeftOver tells what is left in queues whose migration takes no further step. Only of the one that workers empty, and that nothing leads to
// any more, the count is the last word.
func LeftOver(its *v1alpha1.TransportStatus, observed *topology.Observed) []v1alpha1.Retirement {
	var states []v1alpha1.Retirement
	for _, m := range its.Migrations {
		for _, name := range []string{m.Queue, m.Standin} {
			queue, exists := observed.Queues[name]
			if !exists {
				continue
			}
			state := v1alpha1.Retirement{Queue: name, Messages: queue.Messages}
			at := slices.IndexFunc(its.Retiring, func(s v1alpha1.Retirement) bool { return s.Queue == name })
			if at >= 0 && name == drained(m) && len(observed.BindingsTo(name)) == 0 {
				state.Since = its.Retiring[at].Unbound
			}
			states = append(states, state)
		}
	}
	return states
}

// ReadOn lets workers that consume a queue and its stand-in one after the other go on to the other one when that which they read
// is empty, where no further step of a migration is taken: nothing must be left that nobody reads. late is how long the broker's figures may be late
// after its ways in were cut, which the states have as Stamps count it.
func ReadOn(last compile.Config, states []v1alpha1.Retirement, late time.Duration, now time.Time) (next compile.Config, changed bool) {
	all := map[string]compile.Standin{}
	isLeft := func(queue string) bool { return isLeft(queue, states, late, now) }
	for _, queue := range last.Queues {
		if queue.Standin == "" {
			continue
		}
		next := queue.Reads
		switch {
		case next == compile.ReadsQueue && isLeft(queue.Name) && !isLeft(queue.Standin):
			next = compile.ReadsStandin
		case next == compile.ReadsStandin && isLeft(queue.Standin) && !isLeft(queue.Name):
			next = compile.ReadsQueue
		case next == compile.ReadsQuarantine && isLeft(queue.Name):
			next = compile.ReadsStandin // of a queue that was renamed
		}
		all[queue.Name], changed = compile.Standin{Queue: queue.Standin, Reads: next}, changed || next != queue.Reads
	}
	return last.WithStandIns(all), changed
}

// isLeft is true for a queue without messages, as long as the broker's figures may be late after its ways in were cut.
func isLeft(queue string, states []v1alpha1.Retirement, late time.Duration, now time.Time) bool {
	for _, state := range states {
		if state.Queue == queue {
			old := state.Since != nil && now.Sub(state.Since.Time) >= late
			return old && state.Messages != nil && *state.Messages == 0
		}
	}
	return true
}
