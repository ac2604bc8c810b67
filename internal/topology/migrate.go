package topology

import (
	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// QueueMatch is how a work queue on the broker compares with the one that is wanted.
type QueueMatch string

const (
	// MatchNone is a queue that does not exist.
	MatchNone QueueMatch = ""
	// MatchEqual is a queue that is as it is wanted.
	MatchEqual QueueMatch = "Equal"
	// MatchOther is one that differs in what cannot be changed.
	MatchOther QueueMatch = "Other"
)

// MigrationObservation is what is seen of a work queue that may be migrated, and of its stand-in.
type MigrationObservation struct {
	Queue QueueMatch
	// Standin is true where the stand-in exists, and Bridged where it gets what is unroutable while neither of the two is bound.
	Standin, Bridged bool
	// Away is true where all ways lead into the stand-in and none into the queue, and Home where it is the other way round.
	Away, Home bool
	// Ordered is true where messages of one queue must be done before those of the other are begun.
	Ordered bool
	// Alien is true for a queue that is as it is wanted, and that the Transport does not know to have made: nobody would take it away.
	Alien bool
	// Untold is true where workers consume the queue by its former name only.
	Untold bool
	// Follows tells whether all workers are known to consume the two like that.
	Follows func(compile.Reading) bool
}

// Migrate takes one step of the migration of a work queue to other arguments. last is the step that was written
// down before; empty where none was. An empty step says that there is nothing to exchange, or not any more. The steps follow
// from what is seen, so that whoever goes on after a crash does the same, and a step whose work somebody undoes comes again.
// Only in which of two queues the older messages are does not show: that takes the last step.
//
// Which queues are to be consumed follows from the step. remake is true where the queue is to be made now.
func Migrate(last v1alpha1.MigrationStep, seen MigrationObservation) (step v1alpha1.MigrationStep, reads compile.Reading, remake bool) {
	step = nextStep(last, seen)
	reads = readingIn(step, seen.Ordered)
	if step == v1alpha1.MigrationRecreate {
		// A worker that still consumes by the queue's name would have what is new before what is in the stand-in. And nobody would
		// consume a queue of another name that workers are not told of, as long as something else is in the way of that.
		begins := !seen.Untold && (!seen.Ordered || last == v1alpha1.MigrationRecreate && seen.Follows(reads))
		remake = begins || seen.Queue != MatchNone
	}
	return step, reads, remake
}

func nextStep(last v1alpha1.MigrationStep, seen MigrationObservation) v1alpha1.MigrationStep {
	switch begun := last != "" && last != v1alpha1.MigrationPrepare; {
	case !seen.Standin && seen.Queue != MatchOther:
		return ""
	case !seen.Standin:
		return v1alpha1.MigrationPrepare
	case seen.Queue == MatchNone:
		return v1alpha1.MigrationRecreate
	case seen.remade(last) && seen.Home:
		return v1alpha1.MigrationCleanup
	case seen.remade(last) && seen.Untold:
		return v1alpha1.MigrationRecreate
	case seen.remade(last):
		return v1alpha1.MigrationRestore
	case seen.Away:
		return v1alpha1.MigrationDrain
	case begun && seen.Ordered:
		return v1alpha1.MigrationDivert // In Prepare the ways would lead into the queue again, behind what is in the stand-in.
	case !seen.Bridged || !begun && !seen.Follows(readingIn(v1alpha1.MigrationPrepare, seen.Ordered)):
		return v1alpha1.MigrationPrepare
	default:
		return v1alpha1.MigrationDivert
	}
}

// remade is true where the queue is the one that follows the stand-in, and not the one before it. Without an order one that is
// as it is wanted may stay, whichever it is; and so does one that is not emptied to be deleted, as a classic queue that the status of a backup does not have.
func (p MigrationObservation) remade(last v1alpha1.MigrationStep) bool {
	if !p.Ordered || p.Alien {
		return p.Queue == MatchEqual
	}
	switch last {
	case v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup:
		return true
	case v1alpha1.MigrationDivert, v1alpha1.MigrationDrain:
		return false
	default:
		return p.Queue == MatchEqual
	}
}

func readingIn(step v1alpha1.MigrationStep, ordered bool) compile.Reading {
	switch step {
	case v1alpha1.MigrationPrepare, v1alpha1.MigrationDivert, v1alpha1.MigrationDrain:
		if ordered {
			return compile.ReadsQueue
		}
	case v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup:
		if ordered {
			return compile.ReadsStandin
		}
	}
	return compile.ReadsBoth
}
