package topology_test

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// redrive run that is restarted in the middle of a migration does not remember that it made the classic queue: it was in conflict for good, no worker was
// started, and what came meanwhile stood in the stand-in.
func TestDiff_GoesOnWithTheMigrationOfAClassicQueueThatNobodyRemembers(t *testing.T) {
	broker := emptyBroker()
	classic := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }))
	broker.converge(classic)
	quorum, name := desired(t, async()), classic.QueuesOf(topology.RoleWork)[1]
	if diff := topology.DiffSince(quorum, broker.Observed, topology.Past{}); len(diff.Conflicts) != 1 || len(diff.Migrations) != 0 {
		t.Errorf("without a stand-in it may be anybody's: conflicts %v, migrations %v", diff.Conflicts, diff.Migrations)
	}
	past := topology.Past{Created: []string{"queue/" + name}}
	for range 10 {
		diff := topology.DiffSince(quorum, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		if past.Migrations = written(diff); past.Migrations[0].Step == v1alpha1.MigrationDrain {
			break
		}
	}
	diff := topology.DiffSince(quorum, broker.Observed, topology.Past{})
	if len(diff.Conflicts) > 0 || len(diff.Migrations) != 1 || diff.Migrations[0].Step != v1alpha1.MigrationDrain || diff.Migrations[0].Drains != name {
		t.Errorf("conflicts %v, migrations %+v", diff.Conflicts, diff.Migrations)
	}
}
