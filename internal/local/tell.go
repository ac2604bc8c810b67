package local

import (
	"maps"
	"slices"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

// warned is what a warning was of that was told.
type warned struct {
	object topology.Ref
	reason string
}

// tell logs what was done, what is kept without being asked for, and each warning once.
func (s *site) tell(report apply.Report, complete bool) {
	for _, finding := range report.Spared {
		s.log.Warn(finding.String())
	}
	if len(report.Touched) > 0 {
		s.log.Info("expired messages do not leave queues: changed the priority of their RabbitMQ policy, so that RabbitMQ sends them",
			"queues", report.Touched)
	}
	s.tellSteps(report, complete)
	if complete {
		s.warn(report)
	}
}

// tellSteps logs what was done on the broker, and first of all what others had taken away: while nothing else is wanted than what was made
// before, all that is made again is that.
func (s *site) tellSteps(report apply.Report, complete bool) {
	name, wanted := s.unit.Load().Name(), topology.Fingerprint(report.Wanted, report.Withheld)
	var repairs []topology.Step
	others := report.Steps
	if s.fingerprint == wanted {
		repairs, others = topology.Repairs(others)
	}
	switch {
	case complete && len(report.Conflicts)+len(report.Failures)+len(report.Skipped) == 0:
		s.fingerprint = wanted
	case s.fingerprint != wanted && len(report.Steps) > 0:
		s.fingerprint = "" // until all is made nobody can tell what was never there from what somebody took away
	}
	if len(repairs) > 0 {
		s.log.Warn("restored objects on the broker that others had changed", "note", s.drift.Count(name, repairs))
	}
	if len(others) > 0 {
		s.log.Info("topology changed on the broker", "steps", len(others))
	}
	for _, step := range report.Steps {
		s.log.Debug(step.String())
	}
	counts := map[string]int64{}
	for _, queue := range report.Queues {
		if queue.Messages != nil {
			counts[queue.Name] = *queue.Messages
		}
	}
	s.drift.See(name, counts, report.Wanted.Queues)
}

// warn logs each warning when it comes, and what may pass once it stays. What hinders workers is in the table as well, and told there.
func (s *site) warn(report apply.Report) {
	now := map[warned]bool{}
	for _, warning := range s.drift.Staying(s.unit.Load().Name(), report.Warnings, time.Now()) {
		if hinders(report, warning) {
			continue
		}
		key := warned{warning.Object, warning.Reason}
		if now[key] = true; !s.warned[key] {
			s.log.Warn(warning.String())
		}
	}
	s.warned = now
}

// migrating says which queues are migrated and how far that is, and which programs keep it waiting; empty where none is.
func (s *site) migrating(report apply.Report) string {
	texts := make([]string, 0, len(report.Migrations)+1)
	for _, m := range report.Migrations {
		if left := (topology.Migration{Queue: m.Queue, Standin: m.Standin, Step: m.Step}).StepsLeft(); len(left) > 0 {
			texts = append(texts, "queue "+m.Queue+" is migrated, "+left[0])
		}
	}
	var behind []string
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		if !s.groups[name].follows() {
			behind = append(behind, name)
		}
	}
	if len(texts) > 0 && len(behind) > 0 {
		texts = append(texts, "the program has not taken over the configuration of worker "+status.JoinedBy(", ", behind))
	}
	return join(texts...)
}
