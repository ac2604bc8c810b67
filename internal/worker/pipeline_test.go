package worker

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

func TestAllStages_AreThoseOfThePipelines(t *testing.T) {
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

func TestLoaned_EndsBeforeTheBrokersConsumerTimeoutHoweverLongAMessageHasWaited(t *testing.T) {
	for _, c := range []struct{ timeout, ago, want time.Duration }{
		{30 * time.Minute, 0, 29*time.Minute + 50*time.Second},
		{30 * time.Minute, 10 * time.Minute, 19*time.Minute + 50*time.Second},
		{30 * time.Minute, 24 * time.Minute, 5*time.Minute + 50*time.Second},
		{time.Minute, 40 * time.Second, 14 * time.Second},
	} {
		p := &program{config: compile.Config{ConsumerTimeout: *v1alpha1.NewDuration(c.timeout)}}
		j := &job{program: p, received: time.Now().Add(-c.ago)}
		if got := j.loaned(); got > c.want || got < c.want-time.Second {
			t.Errorf("%s after it came it may be held for another %s of %s, want %s", c.ago, got, c.timeout, c.want)
		}
	}
}
