package compile_test

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

func TestPipelines_HaveTheStagesThatTheConfigurationNeeds(t *testing.T) {
	usualQueue, strictQueue := compile.Queue{Name: "test"}, compile.Queue{Name: "ordered", Strict: v1alpha1.OnFailureBlock}
	bare := compile.Config{Queues: []compile.Queue{usualQueue}}
	limited := bare
	limited.RateLimits = make([]compile.RateLimit, 1)
	guarded := compile.Config{
		Queues: []compile.Queue{usualQueue, strictQueue}, Lanes: retry.Lanes{time.Second},
		RateLimits: make([]compile.RateLimit, 1), RetryBudget: &compile.RetryBudget{}, CircuitBreaker: &compile.CircuitBreaker{},
	}
	cases := []struct {
		name                 string
		config               compile.Config
		hasJournal           bool
		usual, strict, again string
	}{
		{
			name: "nothing is asked for", config: bare,
			usual: "unreadable > quarantined > slot > stale > expired > ready > expired > attempt", again: "stale > ready > expired",
		},
		{
			name: "a rate limit alone", config: limited,
			usual: "unreadable > quarantined > slot > stale > expired > rate limits > ready > expired > attempt", again: "stale > rate limits > ready > expired",
		},
		{
			name: "a process that runs quarantined messages", config: bare, hasJournal: true,
			usual: "unreadable > quarantined > slot > noted > stale > expired > ready > expired > attempt", again: "stale > ready > expired",
		},
		{
			name: "queues in strict order only", config: compile.Config{Queues: []compile.Queue{strictQueue}},
			strict: "unreadable > slot > stale > expired > crashed > ready > expired > attempt", again: "stale > ready > expired",
		},
		{
			name: "all is asked for, and one of two queues is in strict order", config: guarded,
			usual:  "unreadable > quarantined > slot > stale > expired > early > open breaker > budget > rate limits > breaker > ready > expired > attempt",
			strict: "unreadable > slot > stale > expired > crashed > open breaker > budget > rate limits > breaker > ready > expired > attempt",
			again:  "stale > open breaker > budget > rate limits > breaker > ready > expired",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			usual, strict := c.config.Pipelines(c.hasJournal)
			for i, got := range [][]string{usual, strict, c.config.BetweenTries()} {
				if text, want := strings.Join(got, " > "), []string{c.usual, c.strict, c.again}[i]; text != want {
					t.Errorf("got  %s\nwant %s", text, want)
				}
			}
		})
	}
}
