package local

import (
	"context"
	"fmt"
	"time"

	"redrive.dev/redrive/internal/apply"
)

// apply makes the broker's objects what the unit asks for, and takes queues that are not wanted any more a step further.
// It gives the time until the next step is due.
func (s *site) apply(unit *Unit) (next time.Duration, err error) {
	on := *s.on.Load()
	client, err := on.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	// What is made is remembered in memory: after a restart, objects without an owner mark count as adopted.
	record := func(_ context.Context, created []string) error {
		s.state.Created = created
		return nil
	}
	report, err := apply.Once(s.ending, client, apply.Input{
		Desired: unit.Objects, State: s.state, Waits: s.options.Waits, Now: time.Now(),
	}, record)
	s.state.Created, s.state.Adopted, s.state.Retiring = report.Created, report.Adopted, report.Retiring
	s.tell(report)
	if err != nil {
		return 0, explain(err, on)
	}
	s.hindrance = hindrance(report)
	if report.RequeueAfter > 0 {
		return report.RequeueAfter, nil
	}
	return s.options.Reapply, nil
}

// tell logs what was done.
func (s *site) tell(report apply.Report) {
	if len(report.Steps) == 0 {
		return
	}
	s.log.Info("topology changed on the broker", "steps", len(report.Steps))
	for _, step := range report.Steps {
		s.log.Debug(step.String())
	}
}

// hindrance says what only the user can put right, in one line; empty where there is nothing.
func hindrance(report apply.Report) string {
	texts := make([]string, 0, len(report.Conflicts)+len(report.Problems)+len(report.Failures))
	for _, conflict := range report.Conflicts {
		texts = append(texts, "conflict: "+conflict.String())
	}
	for _, problem := range report.Problems {
		texts = append(texts, problem.String())
	}
	for _, failure := range report.Failures {
		texts = append(texts, fmt.Sprintf("%s: %v", failure.Step.Ref(), failure.Err))
	}
	return join(texts...)
}
