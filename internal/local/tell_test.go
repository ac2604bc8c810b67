package local

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/topology"
)

// aSite is one that logs into a text and has never looked at its broker.
func aSite(t *testing.T) (s *site, out *printed) {
	t.Helper()
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	out = &printed{}
	s = newSite(&Options{Log: slog.New(slog.NewTextHandler(out, nil))}, &units[0], Broker{})
	s.report("is being made ready")
	return s, out
}

// said is what was logged since the last look at the broker, which has found this.
func (p *printed) said(s *site, report apply.Report, problem string) string {
	before := len(p.String())
	s.tell(report, true)
	s.report(join(problem, s.migrating(report)))
	return p.String()[before:]
}

func TestSite_WarnsOnceOfWhatTheOperatorCallsDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := aSite(t)
		queue := topology.Ref{Kind: topology.KindQueue, Name: "test"}
		full := topology.Finding{Object: queue, Reason: v1alpha1.ReasonDestinationFull, Message: "it is full"}
		leaderless := topology.Finding{Object: queue, Reason: v1alpha1.ReasonQueueUnavailable, Message: "it has no leader", Passing: true}
		const fine = "everything on the broker is as it should be"
		for i, look := range []struct {
			found   []topology.Finding
			problem string
			want    []string
			silent  []string
		}{
			{found: []topology.Finding{full, leaderless}, want: []string{"it is full"}, silent: []string{"leader", fine}},
			{found: []topology.Finding{full, leaderless}, silent: []string{"it is full", "leader", fine}},
			{found: []topology.Finding{full, leaderless}, want: []string{"it has no leader"}, silent: []string{"it is full", fine}},
			{found: []topology.Finding{full}, problem: "a conflict", want: []string{"a conflict"}, silent: []string{"it is full", fine}},
			{found: []topology.Finding{full}, want: []string{"all is made"}, silent: []string{"it is full", fine}},
			{want: []string{fine}, silent: []string{"all is made"}},
			{silent: []string{fine}},
			{found: []topology.Finding{full}, want: []string{"it is full"}, silent: []string{fine}},
		} {
			said := out.said(s, apply.Report{Warnings: look.found}, look.problem)
			for _, text := range look.want {
				if !strings.Contains(said, text) {
					t.Errorf("look %d: %q is not told: %s", i, text, said)
				}
			}
			for _, text := range look.silent {
				if strings.Contains(said, text) {
					t.Errorf("look %d: %q is told: %s", i, text, said)
				}
			}
			time.Sleep(20 * time.Second)
		}
	})
}

func TestSite_TellsWhatOthersHaveTakenAway(t *testing.T) {
	s, out := aSite(t)
	queue := topology.Queue{Name: "test"}
	wanted := topology.Objects{Queues: []topology.Queue{queue}}
	steps := []topology.Step{{Action: topology.ActionCreate, Queue: &queue}}
	if said := out.said(s, apply.Report{Wanted: wanted, Steps: steps}, ""); strings.Contains(said, "others") {
		t.Errorf("what is made first was never there: %s", said)
	}
	out.said(s, apply.Report{Wanted: wanted, Queues: []apply.QueueCount{{Name: "test", Messages: new(int64(7))}}}, "")
	said := out.said(s, apply.Report{Wanted: wanted, Steps: steps}, "")
	if !strings.Contains(said, "restored objects on the broker that others had changed") || !strings.Contains(said, "test (7 when last seen)") {
		t.Errorf("the messages that are gone are not told of: %s", said)
	}
	other := topology.Objects{Queues: []topology.Queue{queue, {Name: "mail"}}}
	if said := out.said(s, apply.Report{Wanted: other, Steps: steps}, ""); strings.Contains(said, "others") {
		t.Errorf("a change of the files counts as one by others: %s", said)
	}
}

func TestSite_TellsHowFarMigrationsAreAndWhichProgramsKeepThem(t *testing.T) {
	s, out := aSite(t)
	program := &fakeGroup{}
	s.groups["default"], s.inForce["default"] = program, compile.Config{}
	report := apply.Report{Migrations: []v1alpha1.Migration{{Queue: "orders", Standin: "orders.migrating", Step: v1alpha1.MigrationDrain}}}
	if said := out.said(s, report, ""); !strings.Contains(said, "queue orders is migrated, Drain: workers empty orders") || strings.Contains(said, "program") {
		t.Errorf("it says %s", said)
	}
	program.isBehind = true
	if said := out.said(s, report, ""); !strings.Contains(said, "the program has not taken over the configuration of worker default") {
		t.Errorf("it says %s", said)
	}
	if said := out.said(s, apply.Report{}, ""); !strings.Contains(said, "as it should be") {
		t.Errorf("it says %s", said)
	}
}
