package worker

import (
	"testing"

	"redrive.dev/redrive/internal/resilience"
	"redrive.dev/redrive/internal/retry"
)

func TestHealth_CountsFailuresOfTheHandlerAndNotOfTheMessage(t *testing.T) {
	const byHandler = retry.SourceHandler
	for name, c := range map[string]struct {
		failure *retry.Failure
		want    resilience.Outcome
	}{
		"success":                     {nil, resilience.Success},
		"HTTP 503":                    {&retry.Failure{Source: byHandler, Status: 503}, resilience.Failure},
		"HTTP 429":                    {&retry.Failure{Source: byHandler, Status: 429}, resilience.Failure},
		"HTTP 408":                    {&retry.Failure{Source: byHandler, Status: 408}, resilience.Failure},
		"HTTP 409":                    {&retry.Failure{Source: byHandler, Status: 409}, resilience.Success},
		"HTTP 302":                    {&retry.Failure{Source: byHandler, Status: 302}, resilience.Success},
		"HTTP 503, but do not retry":  {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseFail}, resilience.Success},
		"exit code 1":                 {&retry.Failure{Source: byHandler, Status: 1, Class: "ExitStatus"}, resilience.Failure},
		"exit code 255":               {&retry.Failure{Source: byHandler, Status: 255, Class: "ExitStatus"}, resilience.Failure},
		"exit code 65, EX_DATAERR":    {&retry.Failure{Source: byHandler, Status: 65, Advice: retry.AdviseFail}, resilience.Success},
		"503 with a negative delay":   {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseStop}, resilience.Failure},
		"a release":                   {&retry.Failure{Source: byHandler, Status: 503, Advice: retry.AdviseRelease}, resilience.Neither},
		"exit code 75, EX_TEMPFAIL":   {&retry.Failure{Source: byHandler, Status: 75, Advice: retry.AdviseRetry}, resilience.Failure},
		"an exception":                {&retry.Failure{Source: byHandler, Class: "App\\PartnerIsDown"}, resilience.Failure},
		"an exception for good":       {&retry.Failure{Source: byHandler, Class: "App\\Invalid", Advice: retry.AdviseFail}, resilience.Success},
		"what the handler let go":     {&retry.Failure{Source: byHandler, Advice: retry.AdviseDrop}, resilience.Success},
		"a timeout":                   {&retry.Failure{Source: retry.SourceTimeout}, resilience.Failure},
		"a crash":                     {&retry.Failure{Source: retry.SourceCrash, Status: 137}, resilience.Failure},
		"a connection that is broken": {&retry.Failure{Source: retry.SourceConnection}, resilience.Failure},
	} {
		if got := health(c.failure); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
