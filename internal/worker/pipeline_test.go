package worker

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

func TestEveryStageOfAPipelineDoesSomething(t *testing.T) {
	config := compile.Config{
		Lanes: retry.Lanes{time.Second}, RateLimits: make([]compile.RateLimit, 1), RetryBudget: &compile.RetryBudget{}, CircuitBreaker: &compile.CircuitBreaker{},
	}
	known, used := allStages(), map[string]bool{}
	for _, name := range slices.Concat(config.Pipeline(true), config.StrictPipeline(), config.BetweenTries()) {
		if used[name] = true; known[name] == nil {
			t.Errorf("nothing does what stage %q is to do", name)
		}
	}
	for name := range known {
		if !used[name] {
			t.Errorf("stage %q is in no pipeline", name)
		}
	}
}
