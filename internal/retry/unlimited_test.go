package retry

import (
	"testing"
	"time"
)

func TestUnlimited_RetriesUntilMaxAge(t *testing.T) {
	p := compile(t, `{unlimited: true, maxRetries: 3, maxAge: 1h, backoff: {type: Constant, delay: 1m},
		strategies: [{name: few, when: error.status == 503, maxRetries: 1}, {name: waits, when: error.status == 429, backoff: {type: Constant, delay: 2m}}]}`)
	h, now := History{}, start()
	for i := range int64(60) {
		v := p.Decide(Failure{Source: SourceHandler, Status: 500}, Message{}, h, now, edge(false))
		if v.Reason != ReasonRetry || v.History.Retries != i+1 || v.MaxRetries != NoLimit || v.Retries != i+1 {
			t.Fatalf("failure %d: %+v", i+1, v)
		}
		h, now = v.History, now.Add(v.Delay)
	}
	if v := p.Decide(Failure{Source: SourceHandler, Status: 500}, Message{}, h, now, edge(false)); v.Reason != ReasonMaxAge {
		t.Errorf("after maxAge: %s: %s", v.Reason, v.Explanation)
	}
	// A strategy's own limit holds; one without a limit of its own has the policy's, which is none.
	busy := History{Strategy: "few", Streak: 1, Attempts: 50, Retries: 50, FirstFailure: start()}
	if v := p.Decide(Failure{Status: 503}, Message{}, busy, start(), edge(false)); v.Reason != ReasonMaxRetries || v.MaxRetries != 1 {
		t.Errorf("a strategy with maxRetries: %+v", v)
	}
	if v := p.Decide(Failure{Status: 429}, Message{}, busy, start(), edge(false)); v.Reason != ReasonRetry || v.Explanation != "retry 51, without a limit, in 2m0s" {
		t.Errorf("a strategy without maxRetries: %s: %s", v.Reason, v.Explanation)
	}
	if p.MaxRetries() != NoLimit || p.LongestDelay() != 2*time.Minute || len(p.Warnings()) > 0 {
		t.Errorf("maxRetries %d, longest delay %s, warnings %q", p.MaxRetries(), p.LongestDelay(), p.Warnings())
	}
	views, err := p.Strategies()
	if err != nil || views[1].Limit != "unlimited (the policy's)" || len(views[1].Warnings) > 0 {
		t.Errorf("%+v, %v", views, err)
	}
	if !compile(t, `{maxRetries: 3, unlimited: false}`).exhausted(3) {
		t.Error("unlimited: false has no limit")
	}
}

// exhausted is true where a policy gives up after so many retries.
func (p *Policy) exhausted(retries int64) bool {
	v := p.Decide(Failure{Status: 500}, Message{}, History{Attempts: retries, Retries: retries}, start(), edge(false))
	return v.Reason == ReasonMaxRetries
}
