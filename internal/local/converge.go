package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// desired are the objects that the broker needs for the unit and for the workers in force: a lane's way out begins when no
// worker knows it any more.
func (s *site) desired(unit *Unit) topology.Objects {
	needs := unit.Compiled.Needs
	for _, config := range s.inForce {
		needs.Lanes = needs.Lanes.With(config.Lanes)
		if config.HighLanes {
			needs.HighLanes = needs.HighLanes.With(config.Lanes)
		}
	}
	desired, err := topology.Desired(unit.Transport, needs, unit.Objects.Owner)
	if err != nil {
		return unit.Objects // which are valid; only with an old lane among them they are not
	}
	return desired
}

// consumed are the queues that the workers in force consume, and quarantine queues into which they publish.
func (s *site) consumed() []string {
	return compile.NamedBy(slices.Collect(maps.Values(s.inForce)))
}

// named is all on the broker that the workers in force name and others may not need.
func (s *site) named() []string {
	names := s.consumed()
	for _, config := range s.inForce {
		for _, lane := range config.Lanes {
			names = append(names, fmt.Sprintf("%s %t", lane, config.HighLanes))
		}
	}
	return names
}

// apply makes the broker's objects what is desired, and takes queues that are not wanted any more a step further.
// It gives the time until the next step is due. A *apply.TooYoungError says that everything else waits for that.
func (s *site) apply(desired topology.Objects) (next time.Duration, err error) {
	on := *s.on.Load()
	client, err := on.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	// What is made is remembered in memory: after a restart, objects without an owner mark count as adopted, and so do queues that are not
	// in the spec and that others have bound.
	record := func(_ context.Context, created []string) error {
		s.state.Created = created
		return nil
	}
	s.state.Restarted = s.restartedAt()
	report, err := apply.Once(s.ending, client, apply.Input{
		Desired: desired, State: s.state, Published: slices.Collect(maps.Values(s.inForce)), Follows: s.follows, Waits: s.options.Waits, Now: time.Now(),
	}, record)
	s.state.Keep(&report)
	s.state.Stamps = s.state.Stamps.See(report.Retiring, report.Migrations, time.Now())
	s.tell(report, err == nil)
	if young, ok := errors.AsType[*apply.TooYoungError](err); ok {
		return young.After, young
	}
	if err != nil {
		return 0, explain(err, on)
	}
	s.found = report
	s.hindrance = join(hindrance(report), s.unread(report.Blocked), s.migrating(report))
	s.keepsWorkers = len(report.Conflicts) > 0 || report.KeepsWorkers() || s.tellsTooEarly(report)
	if report.RequeueAfter > 0 {
		return report.RequeueAfter, nil
	}
	return s.options.Reapply, nil
}

// follows is true where all workers consume a queue that is migrated, and its stand-in, as they are to. A program takes over what is written for it within
// half a minute, or never, where it refuses that.
func (s *site) follows(queue string, reads compile.Reading) bool {
	for name, config := range s.inForce {
		if !config.Follows(queue, reads) || !s.groups[name].follows() {
			return false
		}
	}
	return true
}

// tellsTooEarly is true where workers would be told of a quarantine queue that cannot be reached yet. The problem in the report says why it cannot.
func (s *site) tellsTooEarly(report apply.Report) bool {
	return slices.ContainsFunc(s.next(s.unit.Load()), func(next compile.Config) bool {
		last, runs := s.inForce[next.Worker]
		return runs && report.Unreachable(last, next) != ""
	})
}

// unread names the queues that are no longer in the spec and hold messages which no worker in force reads: it had them no more when this process began,
// or their worker group went with them. Lanes empty by themselves.
func (s *site) unread(blocked []apply.Blocked) string {
	lanes := compile.NamesOf(s.unit.Load().Transport).LanePrefix()
	var names []string
	for _, queue := range blocked {
		if !strings.HasPrefix(queue.Queue, lanes) {
			names = append(names, queue.Queue)
		}
	}
	names = compile.Unread(names, s.published())
	if len(names) == 0 {
		return ""
	}
	return "no longer in the spec, and kept for the messages in them, which nobody reads: " + strings.Join(names, ", ") +
		": put them back into spec.queues until they are empty, or take the messages out"
}

// hindrance says what only the user can put right, in one line, also why workers do not consume a queue; empty where there is nothing.
func hindrance(report apply.Report) string {
	texts := make([]string, 0, len(report.Conflicts)+len(report.Problems)+len(report.Failures))
	for _, conflict := range report.Conflicts {
		texts = append(texts, "conflict: "+conflict.String())
	}
	for _, problem := range report.Problems {
		texts = append(texts, problem.String())
	}
	for _, warning := range report.Warnings {
		if hinders(report, warning) {
			texts = append(texts, warning.String())
		}
	}
	for _, failure := range report.Failures {
		texts = append(texts, fmt.Sprintf("%s: %v", failure.Step.Ref(), failure.Err))
	}
	return join(texts...)
}

// hinders is true for a warning of messages that no worker consumes.
func hinders(report apply.Report, warning topology.Finding) bool {
	disordered := slices.Contains(report.Disordered, warning.Object.Name) && warning.Reason == v1alpha1.ReasonConflictingBrokerPolicy
	return warning.Unread || disordered
}
