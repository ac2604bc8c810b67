package worker

import (
	"testing"

	"redrive.dev/redrive/internal/guard"
	"redrive.dev/redrive/internal/retry"
)

func TestTheBreakerCountsWhatSpeaksAgainstTheHandlerAndNotAgainstTheMessage(t *testing.T) {
	const byHandler = retry.SourceHandler
	for name, c := range map[string]struct {
		failure *retry.Failure
		want    guard.Outcome
	}{
		"success":                     {nil, guard.Success},
		"HTTP 503":                    {&retry.Failure{Source: byHandler, Status: 503}, guard.Failure},
		"HTTP 429":                    {&retry.Failure{Source: byHandler, Status: 429}, guard.Failure},
		"HTTP 408":                    {&retry.Failure{Source: byHandler, Status: 408}, guard.Failure},
		"HTTP 409":                    {&retry.Failure{Source: byHandler, Status: 409}, guard.Success},
		"HTTP 302":                    {&retry.Failure{Source: byHandler, Status: 302}, guard.Success},
		"HTTP 503, but do not retry":  {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseFail}, guard.Success},
		"exit code 1":                 {&retry.Failure{Source: byHandler, Status: 1, Class: "ExitStatus"}, guard.Failure},
		"exit code 255":               {&retry.Failure{Source: byHandler, Status: 255, Class: "ExitStatus"}, guard.Failure},
		"exit code 65, EX_DATAERR":    {&retry.Failure{Source: byHandler, Status: 65, Advice: retry.AdviseFail}, guard.Success},
		"503 with a negative delay":   {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseStop}, guard.Failure},
		"a release":                   {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseRelease}, guard.Neither},
		"exit code 75, EX_TEMPFAIL":   {&retry.Failure{Source: byHandler, Status: 75, Advice: retry.AdviseRetry}, guard.Failure},
		"an exception":                {&retry.Failure{Source: byHandler, Class: "App\\PartnerIsDown"}, guard.Failure},
		"an exception for good":       {&retry.Failure{Source: byHandler, Class: "App\\Invalid", Advice: retry.AdviseFail}, guard.Success},
		"what the handler let go":     {&retry.Failure{Source: byHandler, Advice: retry.AdviseDrop}, guard.Success},
		"a timeout":                   {&retry.Failure{Source: retry.SourceTimeout}, guard.Failure},
		"a crash":                     {&retry.Failure{Source: retry.SourceCrash, Status: 137}, guard.Failure},
		"a connection that is broken": {&retry.Failure{Source: retry.SourceConnection}, guard.Failure},
	} {
		if got := health(c.failure); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
