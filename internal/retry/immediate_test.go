package retry

import (
	"math/rand/v2"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestTriesAtOnce_ComeBeforeTheFirstRetry(t *testing.T) {
	p := compile(t, `{immediate: 2, maxRetries: 1}`)
	var h History
	want := []struct {
		reason      Reason
		delay       time.Duration
		history     History
		explanation string
	}{
		{ReasonImmediate, 0, History{Attempts: 1, Immediate: 1}, "try 1 of 2 at once"},
		{ReasonImmediate, 0, History{Attempts: 2, Immediate: 2}, "try 2 of 2 at once"},
		{ReasonRetry, time.Second, History{Attempts: 3, Immediate: 2, Retries: 1, LastDelay: time.Second}, "retry 1 of 1 in 1s"},
		{ReasonMaxRetries, 0, History{Attempts: 4, Immediate: 2, Retries: 1, LastDelay: time.Second}, "1 of 1 retries used"},
	}
	for i, w := range want {
		v := p.Decide(Failure{Source: SourceHandler, Status: 502}, Message{}, h, start(), edge(false))
		w.history.FirstFailure = start()
		if v.Reason != w.reason || v.Delay != w.delay || v.History != w.history || v.Explanation != w.explanation {
			t.Errorf("failure %d: %s in %s, %q, %+v; want %+v", i+1, v.Reason, v.Delay, v.Explanation, v.History, w)
		}
		h = v.History
	}
}

func TestTriesAtOnce_LeaveOutWhatHasWaitedOrIsDecided(t *testing.T) {
	p := compile(t, `{immediate: 2, strategies: [{name: throttled, when: error.status == 429}]}`)
	tests := []struct {
		name    string
		failure Failure
		history History
		want    Reason
	}{
		{"a first failure is", Failure{Status: 502}, History{}, ReasonImmediate},
		{"what a strategy decides", Failure{Status: 429}, History{}, ReasonRetry},
		{"a message that had its first retry", Failure{Status: 502}, History{Attempts: 1, Retries: 1}, ReasonRetry},
		{"one that waited without a retry being counted", Failure{Status: 502}, History{Attempts: 1, LastDelay: time.Second}, ReasonRetry},
		{"one that has been tried once is again", Failure{Status: 502}, History{Attempts: 1, Immediate: 1}, ReasonImmediate},
		{"one that has been tried so often", Failure{Status: 502}, History{Attempts: 2, Immediate: 2}, ReasonRetry},
		{"one that was given back in between", Failure{Status: 502}, History{Attempts: 2, Immediate: 1}, ReasonRetry},
		{"one that failed in another process", Failure{Status: 502}, History{Attempts: 1}, ReasonRetry},
		{"one that the handler cannot read", Failure{Source: SourceHandler, Status: 415}, History{}, ReasonUndecodable},
		{"a count that makes no sense is none", Failure{Status: 502}, History{Immediate: -5}, ReasonImmediate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if v := p.Decide(tt.failure, Message{}, tt.history, start(), edge(false)); v.Reason != tt.want || len(v.Problems) > 0 {
				t.Errorf("%s: %s, problems %v; want %s", v.Reason, v.Explanation, v.Problems, tt.want)
			}
		})
	}
}

func TestTriesAtOnce_ComeWithoutRetriesToo(t *testing.T) {
	p := compile(t, `{immediate: 1, maxRetries: 0}`)
	v := p.Decide(Failure{}, Message{}, History{}, start(), edge(false))
	if v.Reason != ReasonImmediate {
		t.Errorf("first failure: %s", v.Reason)
	}
	if v = p.Decide(Failure{}, Message{}, v.History, start(), edge(false)); v.Reason != ReasonMaxRetries {
		t.Errorf("second failure: %s", v.Reason)
	}
	if p.Immediate() != 1 {
		t.Errorf("Immediate() = %d", p.Immediate())
	}
}

func TestDecide_FailsWhatTheHandlerCannotRead(t *testing.T) {
	p := compile(t, `strategies: [{name: later, when: error.status == 415 && message.type == 'upgrade'}]`)
	tests := []struct {
		name    string
		failure Failure
		kind    string
		action  v1alpha1.Action
		reason  Reason
	}{
		{"415 of the handler", Failure{Source: SourceHandler, Status: 415}, "", v1alpha1.ActionFail, ReasonUndecodable},
		{"unless a strategy decides", Failure{Source: SourceHandler, Status: 415}, "upgrade", v1alpha1.ActionRetry, ReasonRetry},
		{"415 of something else", Failure{Source: SourceCrash, Status: 415}, "", v1alpha1.ActionRetry, ReasonRetry},
		{"another status", Failure{Source: SourceHandler, Status: 416}, "", v1alpha1.ActionRetry, ReasonRetry},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := p.Decide(tt.failure, Message{Type: tt.kind}, History{}, start(), edge(false))
			if v.Action != tt.action || v.Reason != tt.reason || v.History.Attempts != 1 {
				t.Errorf("%s, %s, %+v; want %s, %s", v.Action, v.Reason, v.History, tt.action, tt.reason)
			}
			if tt.reason == ReasonUndecodable && v.Explanation != "the handler cannot read messages of this kind: it answered 415" {
				t.Errorf("explanation = %q", v.Explanation)
			}
		})
	}
}

func TestMostRetries_AddsUpTheLimitsOfStrategies(t *testing.T) {
	tests := []struct {
		name, spec string
		want       int64
	}{
		{"the policy's own", `maxRetries: 5`, 5},
		{"strategies without a limit of their own share it", `{maxRetries: 5, strategies: [{name: a, when: "true"}]}`, 5},
		{"limits add up", `{maxRetries: 5, strategies: [{name: a, when: "true", maxRetries: 10}, {name: b, when: "true", maxRetries: 20}]}`, 35},
		{"a limit of none adds nothing", `{maxRetries: 5, strategies: [{name: a, when: "true", maxRetries: 0}]}`, 5},
		{"nor does what does not retry", `{maxRetries: 5, strategies: [{name: a, when: "true", action: Fail}]}`, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compile(t, tt.spec).MostRetries(); got != tt.want {
				t.Errorf("MostRetries() = %d, want %d", got, tt.want)
			}
		})
	}
}

// Failures come in phases: each kind lasts until its limit is reached, which is when the message fails, or a while less.
func TestMostRetries_IsWhatAMessageGetsAtMostInPhases(t *testing.T) {
	p := compile(t, `{maxRetries: 4, maxAge: 8760h, strategies: [{name: a, when: error.status == 1, maxRetries: 6}, {name: b, when: error.status == 2, maxRetries: 3}]}`)
	rnd := rand.New(rand.NewPCG(1, 2))
	most := int64(0)
	for range 2000 {
		var h History
		for _, phase := range rnd.Perm(3) {
			for range rnd.IntN(8) {
				v := p.Decide(Failure{Status: phase}, Message{}, h, start(), edge(false))
				if v.Action != v1alpha1.ActionRetry {
					break
				}
				h = v.History
			}
		}
		most = max(most, h.Retries)
	}
	if most != p.MostRetries() {
		t.Errorf("a message got %d retries, MostRetries() = %d", most, p.MostRetries())
	}
}

func TestLongestDelay_IsTheLongestThatIsReached(t *testing.T) {
	const minutes = `{maxRetries: 10, backoff: {type: Linear, delay: 1m, maxDelay: 1h}, `
	tests := []struct {
		name, spec string
		want       time.Duration
	}{
		{"the last of the schedule", `{}`, 4 * time.Second},
		{"no retries, no delay", `maxRetries: 0`, 0},
		{"the bound", `{maxRetries: 100, backoff: {type: Exponential, maxDelay: 10m}}`, 10 * time.Minute},
		{"jitter included", `{maxRetries: 1, backoff: {type: Constant, delay: 10s, jitter: {type: Proportional, percent: 50}}}`, 15 * time.Second},
		{"the longest of a list", `{maxRetries: 3, backoff: {type: Explicit, delays: [1m, 1s]}}`, time.Minute},
		{"what is not reached does not count", `{maxRetries: 1, backoff: {type: Explicit, delays: [1s, 1h]}}`, time.Second},
		{"delays grow beyond what a schedule is followed", `{maxRetries: 1000, maxAge: 8760h, backoff: {type: Linear, delay: 1s, maxDelay: 720h}}`, 1000 * time.Second},
		{"maxAge bounds it", `{maxAge: 5s, backoff: {type: Constant, delay: 4s, jitter: {type: Proportional, percent: 100}}}`, 5 * time.Second},
		{"a strategy's backoff", `strategies: [{name: a, when: "true", backoff: {type: Constant, delay: 1h}}]`, time.Hour},
		{"a strategy without retries has none", `strategies: [{name: a, when: "true", maxRetries: 0, backoff: {type: Constant, delay: 1h}}]`, 4 * time.Second},
		{"an expression's bound", `strategies: [{name: a, when: "true", delayFrom: error.retryAfter, maxDelay: 2h}]`, 2 * time.Hour},
		{"an expression's bound over maxAge", `{maxAge: 1h, strategies: [{name: a, when: "true", delayFrom: error.retryAfter, maxDelay: 2h}]}`, time.Hour},
		{"an unlimited strategy", `strategies: [{name: a, when: "true", unlimited: true}]`, time.Minute},
		{"retries of the policy before those of a strategy", minutes + `strategies: [{name: a, when: "true", maxRetries: 10}]}`, 20 * time.Minute},
		{"retries before a strategy's backoff", minutes + `strategies: [{name: a, when: "true", maxRetries: 9, backoff: {type: Constant, delay: 1s}}]}`, 10 * time.Minute},
		{"retries before a strategy without any", minutes + `strategies: [{name: a, when: "true", maxRetries: 0}]}`, 10 * time.Minute},
		{"what fails waits for nothing", `strategies: [{name: a, when: "true", action: Fail}]`, 4 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compile(t, tt.spec).LongestDelay(); got != tt.want {
				t.Errorf("LongestDelay() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPolicy_TellsOfItsUnlimitedStrategyAndPriority(t *testing.T) {
	p := compile(t, `{retryPriority: Higher, strategies: [{name: a, when: "true"}, {name: b, when: "true", unlimited: true}]}`)
	if p.UnlimitedStrategy() != "b" || p.RetryPriority() != v1alpha1.RetryPriorityHigher {
		t.Errorf("unlimited %q, priority %q", p.UnlimitedStrategy(), p.RetryPriority())
	}
	p = compile(t, `{}`)
	if p.UnlimitedStrategy() != "" || p.RetryPriority() != v1alpha1.RetryPrioritySame || p.Immediate() != 0 {
		t.Errorf("by default: unlimited %q, priority %q, immediate %d", p.UnlimitedStrategy(), p.RetryPriority(), p.Immediate())
	}
}

func TestLongestWait_IncludesWhatAHandlerMayAskFor(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want time.Duration
	}{
		"what a handler may ask for":         {`{}`, time.Hour},
		"none but the policy's":              {`handlerAdvice: Ignore`, 4 * time.Second},
		"no longer than maxAge":              {`maxAge: 1m`, time.Minute},
		"a policy's that is longer than its": {`backoff: {type: Constant, delay: 3h}`, 3 * time.Hour},
	} {
		if got := compile(t, c.spec).LongestWait(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
