package apply_test

import (
	"context"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// fault of a node, and what ends it.
type fault struct {
	strike, mend func(on *threeNodes)
	// cuts is true where the node that the operator and the producer ask is struck, too.
	cuts bool
}

func nodeFaults() map[string]fault {
	return map[string]fault{
		"the leader is killed": {
			strike: func(on *threeNodes) { on.kill(on.lead) }, mend: func(on *threeNodes) { on.resume(on.lead) },
		},
		"a node that follows is killed": {
			strike: func(on *threeNodes) { on.kill(on.idle) }, mend: func(on *threeNodes) { on.resume(on.idle) },
		},
		"the leader stands still a time": {
			strike: func(on *threeNodes) { on.freeze(true) }, mend: func(on *threeNodes) { on.freeze(false) },
		},
		"all are killed": {
			strike: func(on *threeNodes) { on.kill(on.cluster.Nodes...); on.resume() }, mend: func(*threeNodes) {}, cuts: true,
		},
	}
}

func (on *threeNodes) freeze(frozen bool) {
	on.t.Helper()
	do := on.lead.Thaw
	if frozen {
		do = on.lead.Freeze
	}
	if err := do(); err != nil {
		on.t.Fatal(err)
	}
}

const faultLasts = 20 * time.Second

func TestThreeNodes_MigrateAQueueWhileTheyFail(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	for name, fault := range nodeFaults() {
		t.Run(name, func(t *testing.T) {
			on := inCluster(t, c)
			on.waits = realWaits()
			on.waits.Young = ripe                 // all nodes may be killed
			f := newFlow(on.stage, false, "test") // a lane may stand for three minutes after a kill
			f.begin()
			on.queue("test").SingleActiveConsumer = new(true)
			on.exchange(f, fault)
			f.end()
			testtransport.EventuallyWithin(t, endsWithin, "the queue to run empty", func() bool { // a consumer may have ended with a node
				f.follow(apply.Report{}, "test")
				state, err := on.channel().QueueDeclarePassive("test", true, false, false, false, nil)
				return err == nil && state.Messages == 0
			})
			if doubled := f.check("test"); doubled > 2*2*loans {
				t.Errorf("%d messages were handled twice", doubled)
			}
			if on.exists("test.migrating") {
				t.Error("the stand-in is left")
			}
		})
	}
}

// loans are the messages that a consumer of a flow has at most; there are two while a queue is migrated.
const loans = 10

// migration sees a migration through, with a fault in its middle.
func (on *threeNodes) exchange(f *flow, fault fault) {
	on.t.Helper()
	var struck time.Time
	mended, idle := false, 0
	for deadline := time.Now().Add(8 * time.Minute); idle < 2 || !mended; time.Sleep(300 * time.Millisecond) {
		if time.Now().After(deadline) {
			on.t.Fatalf("the exchange does not end: %+v, %+v", on.state.Migrations, on.state.Retiring)
		}
		if !struck.IsZero() && !mended && time.Since(struck) > faultLasts {
			fault.mend(on)
			mended = true
		}
		report, err := on.look()
		if err != nil {
			on.t.Log(err)
			continue
		}
		f.follow(report, "test")
		if idle++; len(report.Migrations)+len(report.Retiring)+len(report.Steps)+len(report.Failures) > 0 {
			idle = 0
		}
		if struck.IsZero() && len(report.Migrations) > 0 && report.Migrations[0].Step == v1alpha1.MigrationDrain {
			fault.strike(on)
			struck = time.Now()
			if fault.cuts {
				on.amqp = on.channel()
				f.publish()
			}
		}
	}
}

func TestThreeNodes_DeleteATransportWhileTheyFail(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	for name, fault := range nodeFaults() {
		t.Run(name, func(t *testing.T) {
			on := inCluster(t, c)
			on.fill(twenty)
			on.eventually("the deletion to wait for the queue", func() bool {
				report, err := on.goAway(false)
				return err == nil && len(report.Blocked) > 0
			})
			fault.strike(on)
			on.goesOnAway()
			fault.mend(on)
			on.goesOnAway()
			on.amqp = on.channel()
			for range twenty {
				on.take("test")
			}
			workersGone := false
			testtransport.EventuallyWithin(t, endsWithin, "the deletion to end", func() bool {
				report, err := on.goAway(workersGone)
				workersGone = workersGone || err == nil && report.Drained
				return err == nil && report.Done
			})
		})
	}
}

// goAway takes the deletion one run further.
func (on *threeNodes) goAway(workersGone bool) (apply.DeleteReport, error) {
	on.t.Helper()
	ctx, cancel := context.WithTimeout(on.t.Context(), patience)
	defer cancel()
	report, err := apply.Delete(ctx, on.client, apply.DeleteInput{
		Owner: on.owner, Prefix: "async", State: on.state, WorkersGone: workersGone, Waits: on.waits, Now: time.Now(),
	})
	if err == nil {
		on.state.Created, on.state.Retiring = report.Created, report.Retiring
	}
	return report, err
}

// goesOnAway goes on with the deletion of a Transport that has a full queue, which must hold it up.
func (on *threeNodes) goesOnAway() {
	on.t.Helper()
	for until := time.Now().Add(faultLasts); time.Now().Before(until); time.Sleep(time.Second) {
		report, err := on.goAway(false)
		if err == nil && (report.Drained || report.Done) {
			on.t.Fatalf("it takes the workers away from a full queue: %+v", report)
		}
		if err != nil {
			on.t.Log(err)
		}
	}
}
