package compile

import (
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
)

// Stages of a worker's pipeline, by the names that its log, /status, the Transport's status and the documentation have for them.
const (
	StageUnreadable  = "unreadable"
	StageQuarantined = "quarantined"
	StageSlot        = "slot"
	StageNoted       = "noted"
	StageStale       = "stale"
	StageExpired     = "expired"
	StageEarly       = "early"
	StageCrashed     = "crashed"
	StageOpenBreaker = "open breaker"
	StageBudget      = "budget"
	StageRateLimits  = "rate limits"
	StageBreaker     = "breaker"
	StageReady       = "ready"
	StageAttempt     = "attempt"
)

// Pipeline is the way of a delivery to its outcome; StrictPipeline and BetweenTries are shorter ones. All leave out the stages that
// the configuration has no use for. Whatever sends a message away without an attempt stands before attempt, so that it costs none:
// first what the session and the message itself say, then what protects the handler. A journal, which the process that runs quarantined messages
// has, takes down which message is in work.
func (c *Config) Pipeline(hasJournal bool) []string {
	stages := []string{StageUnreadable, StageQuarantined, StageSlot}
	if hasJournal {
		stages = append(stages, StageNoted)
	}
	stages = append(stages, StageStale, StageExpired)
	if len(c.Lanes) > 0 {
		stages = append(stages, StageEarly)
	}
	return append(append(stages, c.protecting()...), StageAttempt)
}

// StrictPipeline is that of a message that must keep its place: nothing that would send it away stands in it.
func (c *Config) StrictPipeline() []string {
	first := []string{StageUnreadable, StageSlot, StageStale, StageExpired, StageCrashed}
	return slices.Concat(first, c.protecting(), []string{StageAttempt})
}

// BetweenTries looks again at what may have changed while the handler had the message, before it is tried at once.
func (c *Config) BetweenTries() []string {
	return append([]string{StageStale}, c.protecting()...)
}

// protecting are the stages that protect the handler. A message may wait in them, and be past its deadline when it has.
func (c *Config) protecting() []string {
	var stages []string
	if c.CircuitBreaker != nil {
		stages = append(stages, StageOpenBreaker)
	}
	if c.RetryBudget != nil {
		stages = append(stages, StageBudget)
	}
	if len(c.RateLimits) > 0 {
		stages = append(stages, StageRateLimits)
	}
	if c.CircuitBreaker != nil {
		stages = append(stages, StageBreaker)
	}
	return append(stages, StageReady, StageExpired)
}

// Pipelines are those that the configuration's queues go through: usual is empty where all are in strict order, and strict where none
// is.
func (c *Config) Pipelines(hasJournal bool) (usual, strict []string) {
	isStrict := func(q Queue) bool { return q.Strict != "" }
	if slices.ContainsFunc(c.Queues, isStrict) {
		strict = c.StrictPipeline()
	}
	if strict == nil || slices.ContainsFunc(c.Queues, func(q Queue) bool { return !isStrict(q) }) {
		usual = c.Pipeline(hasJournal)
	}
	return usual, strict
}

// Pipelines are those of the worker groups, as the status of the Transport shows them.
func (r *Result) Pipelines() []v1alpha1.WorkerPipeline {
	pipelines := make([]v1alpha1.WorkerPipeline, len(r.Workers))
	for i := range r.Workers {
		usual, strict := r.Workers[i].Pipelines(false)
		pipelines[i] = v1alpha1.WorkerPipeline{Worker: r.Workers[i].Worker, Stages: usual, StrictStages: strict}
	}
	return pipelines
}
