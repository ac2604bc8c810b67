package retry

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestRelease_CountsNothingAndEndsWithMaxAge(t *testing.T) {
	p := compile(t, `{maxRetries: 0, maxAge: 1h, immediate: 2, backoff: {type: Constant, delay: 10m}, strategies: [{name: all, when: "true", action: Fail}]}`)
	released := Failure{Source: SourceHandler, Status: 409, Advice: AdviseRelease}
	h, now := History{Attempts: 2, Retries: 1, Strategy: "all", Streak: 1, LastDelay: time.Second, FirstFailure: start()}, start()
	for range 6 {
		v := p.Decide(released, Message{}, h, now, edge(false))
		if v.Action != v1alpha1.ActionRetry || v.Reason != ReasonRelease || v.Delay != 10*time.Minute || v.Strategy != ByHandler || v.History != h {
			t.Fatalf("%+v", v)
		}
		now = now.Add(v.Delay)
	}
	if v := p.Decide(released, Message{}, h, now, edge(false)); v.Action != v1alpha1.ActionFail || v.Reason != ReasonMaxAge {
		t.Errorf("after maxAge: %+v", v)
	}
	never := p.Decide(released, Message{}, History{}, now, edge(false))
	if never.History != (History{FirstFailure: now.Round(0)}) {
		t.Errorf("the first time is not known: %+v", never.History)
	}
	for asked, want := range map[time.Duration]time.Duration{0: 0, -time.Second: 0, 30 * time.Second: 30 * time.Second, 59 * time.Minute: 59 * time.Minute} {
		released.RetryAfter = &asked
		if v := p.Decide(released, Message{}, History{}, now, edge(false)); v.Delay != want || v.Reason != ReasonRelease {
			t.Errorf("asked for %s: %+v", asked, v)
		}
	}
}

func TestRelease_IsAFailureWhereIgnoredOrInOrder(t *testing.T) {
	released := Failure{Source: SourceHandler, Status: 409, Advice: AdviseRelease}
	if v := compile(t, `handlerAdvice: Ignore`).Decide(released, Message{}, History{}, start(), edge(false)); v.Reason != ReasonRetry || v.History.Attempts != 1 {
		t.Errorf("ignored: %+v", v)
	}
	if v := compile(t, `{}`).Decide(released.InOrder(), Message{}, History{}, start(), edge(false)); v.Reason != ReasonRetry || v.History.Attempts != 1 {
		t.Errorf("in order: %+v", v)
	}
}
