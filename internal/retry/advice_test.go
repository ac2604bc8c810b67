package retry

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
)

// stern fails, drops and retries by strategies that match everything, so that nothing but advice goes before them.
const stern = `{maxRetries: 0, immediate: 2, strategies: [{name: s, when: "true", action: Fail}]}`

func TestAdvice_GoesBeforeThePolicy(t *testing.T) {
	tests := []struct {
		name, spec  string
		failure     Failure
		history     History
		action      v1alpha1.Action
		delay       time.Duration
		reason      Reason
		strategy    string
		explanation string
	}{
		{
			"fail, before retries that are left", `{}`,
			Failure{Advice: AdviseFail},
			History{},
			v1alpha1.ActionFail, 0, ReasonUnrecoverable, ByHandler, "the handler asked for no retry",
		},
		{
			"a negative delay, before retries that are left", `{}`,
			Failure{Advice: AdviseStop},
			History{},
			v1alpha1.ActionFail, 0, ReasonUnrecoverable, ByHandler, "the handler asked for no retry, by a negative Retry-After",
		},
		{
			"fail, before tries at once", `{immediate: 3}`,
			Failure{Advice: AdviseFail},
			History{},
			v1alpha1.ActionFail, 0, ReasonUnrecoverable, ByHandler, "the handler asked for no retry",
		},
		{
			"fail, before a strategy that would retry", `{strategies: [{name: s, when: "true", unlimited: true}]}`,
			Failure{Advice: AdviseFail},
			History{},
			v1alpha1.ActionFail, 0, ReasonUnrecoverable, ByHandler, "the handler asked for no retry",
		},
		{
			"fail, of a message that is too old as well", `{maxAge: 1s}`,
			Failure{Advice: AdviseFail},
			History{FirstFailure: start().Add(-time.Hour)},
			v1alpha1.ActionFail, 0, ReasonUnrecoverable, ByHandler, "the handler asked for no retry",
		},
		{
			"drop, before a strategy that would fail", stern,
			Failure{Advice: AdviseDrop},
			History{},
			v1alpha1.ActionDrop, 0, ReasonAdvice, ByHandler, "the handler asked for the message to be dropped",
		},
		{
			"retry, though maxRetries is 0 and a strategy would fail", stern,
			Failure{Advice: AdviseRetry, RetryAfter: new(30 * time.Second)},
			History{},
			v1alpha1.ActionRetry, 30 * time.Second, ReasonRetry, ByHandler, "retry in 30s, which the handler asked for and does not count against maxRetries",
		},
		{
			"retry, though the handler cannot read it", `{}`,
			Failure{Source: SourceHandler, Status: 415, Advice: AdviseRetry},
			History{},
			v1alpha1.ActionRetry, time.Second, ReasonRetry, ByHandler, "retry in 1s, which the handler asked for and does not count against maxRetries",
		},
		{
			"a delay of an hour at most", `{}`,
			Failure{Advice: AdviseRetry, RetryAfter: new(25 * time.Hour)},
			History{},
			v1alpha1.ActionRetry, time.Hour, ReasonRetry, ByHandler, "retry in 1h0m0s, which the handler asked for and does not count against maxRetries",
		},
		{
			"a delay in the past is none", `{}`,
			Failure{Advice: AdviseRetry, RetryAfter: new(-time.Hour)},
			History{},
			v1alpha1.ActionRetry, 0, ReasonRetry, ByHandler, "retry in 0s, which the handler asked for and does not count against maxRetries",
		},
		{
			"no delay that maxAge does not allow", `{maxAge: 1m}`,
			Failure{Advice: AdviseRetry, RetryAfter: new(2 * time.Minute)},
			History{},
			v1alpha1.ActionFail, 0, ReasonMaxAge, ByHandler, "the next retry, in 2m0s, would be later than maxAge 1m0s after the first failure",
		},
		{
			"no retry of what is too old", `{maxAge: 1m}`,
			Failure{Advice: AdviseRetry, RetryAfter: new(time.Duration)},
			History{FirstFailure: start().Add(-2 * time.Minute)},
			v1alpha1.ActionFail, 0, ReasonMaxAge, ByHandler, "2m0s since the first failure, maxAge is 1m0s",
		},
		{
			"without a delay the policy's backoff, counted by retries in a row that the handler asked for", `{}`,
			Failure{Advice: AdviseRetry},
			History{Attempts: 9, Retries: 2, Strategy: ByHandler, Streak: 4, FirstFailure: start().Add(-time.Minute)},
			v1alpha1.ActionRetry, 16 * time.Second, ReasonRetry, ByHandler, "retry in 16s, which the handler asked for and does not count against maxRetries",
		},
		{
			"which begins anew after another decision", `{}`,
			Failure{Advice: AdviseRetry},
			History{Attempts: 9, Retries: 2, Strategy: "s", Streak: 4, FirstFailure: start().Add(-time.Minute)},
			v1alpha1.ActionRetry, time.Second, ReasonRetry, ByHandler, "retry in 1s, which the handler asked for and does not count against maxRetries",
		},
		{
			"no advice leaves it to the policy", `{}`,
			Failure{RetryAfter: new(time.Hour)},
			History{},
			v1alpha1.ActionRetry, time.Second, ReasonRetry, "", "retry 1 of 3 in 1s",
		},
		{
			"so does advice that nobody knows", `{}`,
			Failure{Advice: "fail"},
			History{},
			v1alpha1.ActionRetry, time.Second, ReasonRetry, "", "retry 1 of 3 in 1s",
		},
		{
			"and a policy that ignores it", `{handlerAdvice: Ignore}`,
			Failure{Advice: AdviseDrop},
			History{},
			v1alpha1.ActionRetry, time.Second, ReasonRetry, "", "retry 1 of 3 in 1s",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := compile(t, tt.spec).Decide(tt.failure, Message{}, tt.history, start(), edge(true))
			if v.Action != tt.action || v.Delay != tt.delay || v.Reason != tt.reason || v.Strategy != tt.strategy || v.Explanation != tt.explanation {
				t.Errorf("%s in %s, %s, by %q: %q", v.Action, v.Delay, v.Reason, v.Strategy, v.Explanation)
			}
			if v.History.Strategy != tt.strategy || v.History.Attempts != tt.history.Attempts+1 {
				t.Errorf("history %+v", v.History)
			}
		})
	}
}

func TestAdvice_RetryDoesNotCountAgainstMaxRetries(t *testing.T) {
	p := compile(t, `{maxRetries: 2, maxAge: 10m}`)
	var h History
	now, retries := start(), 0
	for range 1000 {
		v := p.Decide(Failure{Advice: AdviseRetry, RetryAfter: new(time.Minute)}, Message{}, h, now, edge(true))
		if v.Action != v1alpha1.ActionRetry {
			if v.Reason != ReasonMaxAge || retries != 10 {
				t.Errorf("%s after %d retries, want MaxAge after 10", v.Reason, retries)
			}
			return
		}
		retries++
		h, now = v.History, now.Add(v.Delay)
		if h.Retries != 0 || h.Streak != int64(retries) {
			t.Fatalf("history %+v after %d retries", h, retries)
		}
	}
	t.Fatal("it never ends")
}

func TestAdvice_RetryEndsTheStreakOfAStrategy(t *testing.T) {
	p := compile(t, `{strategies: [{name: s, when: "true", maxRetries: 5}]}`)
	h := History{Attempts: 4, Retries: 4, Strategy: "s", Streak: 4, FirstFailure: start()}
	h = p.Decide(Failure{Advice: AdviseRetry}, Message{}, h, start(), edge(true)).History
	if v := p.Decide(Failure{}, Message{}, h, start(), edge(true)); v.History.Streak != 1 || v.Action != v1alpha1.ActionRetry {
		t.Errorf("%s, history %+v", v.Action, v.History)
	}
}

func TestAdvice_ChangesNothingWhereNoneIsGivenOrItIsIgnored(t *testing.T) {
	specs := []string{`{}`, stern, `{immediate: 1, backoff: {type: Exponential, jitter: {type: Equal}}}`, `{maxRetries: 1, strategies: [{name: s, when: error.status > 4, unlimited: true, delayFrom: error.retryAfter}]}`}
	var follow, ignore []*Policy
	for _, spec := range specs {
		follow = append(follow, compile(t, spec))
		ignore = append(ignore, compile(t, strings.Replace(spec, "{", "{handlerAdvice: Ignore, ", 1)))
	}
	rapid.Check(t, func(t *rapid.T) {
		h := History{
			Attempts: rapid.Int64Range(0, 9).Draw(t, "attempts"), Retries: rapid.Int64Range(0, 9).Draw(t, "retries"),
			Strategy: rapid.SampledFrom([]string{"", "s", ByHandler}).Draw(t, "strategy"), Streak: rapid.Int64Range(0, 9).Draw(t, "streak"),
			FirstFailure: start().Add(-time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "age"))),
		}
		f := Failure{Source: SourceHandler, Status: rapid.IntRange(0, 9).Draw(t, "status")}
		if rapid.Bool().Draw(t, "asked") {
			f.RetryAfter = new(time.Duration(rapid.Int64().Draw(t, "retry after")))
		}
		rnd := edge(rapid.Bool().Draw(t, "edge"))
		i := rapid.IntRange(0, len(specs)-1).Draw(t, "policy")
		plain := ignore[i].Decide(f, Message{}, h, start(), rnd)
		if v := follow[i].Decide(f, Message{}, h, start(), rnd); !same(v, plain) {
			t.Fatalf("without advice %+v, and %+v where it is ignored", v, plain)
		}
		f.Advice = rapid.SampledFrom([]Advice{AdviseFail, AdviseDrop, AdviseRetry}).Draw(t, "advice")
		if v := ignore[i].Decide(f, Message{}, h, start(), rnd); !same(v, plain) {
			t.Fatalf("ignored, %s makes %+v of %+v", f.Advice, v, plain)
		}
		v := follow[i].Decide(f, Message{}, h, start(), rnd)
		age := start().Sub(h.FirstFailure)
		switch {
		case v.Strategy != ByHandler || v.History.Retries != h.Retries || v.History.Attempts != h.Attempts+1:
			t.Fatalf("%s: %+v", f.Advice, v)
		case f.Advice != AdviseRetry && (string(v.Action) != string(f.Advice) || v.Delay != 0):
			t.Fatalf("%s: %s in %s", f.Advice, v.Action, v.Delay)
		case v.Action == v1alpha1.ActionRetry && (v.Delay < 0 || v.Delay > maxAdvisedDelay || age+v.Delay > follow[i].MaxAge()):
			t.Fatalf("a retry in %s, %s after the first failure", v.Delay, age)
		case f.Advice == AdviseRetry && v.Action != v1alpha1.ActionRetry && v.Reason != ReasonMaxAge:
			t.Fatalf("a retry ends with %s", v.Reason)
		}
	})
}

// same compares what is drawn without chance; problems are compared by their number.
func same(a, b Verdict) bool {
	problems := len(a.Problems) == len(b.Problems)
	a.Problems, b.Problems = nil, nil
	return problems && a.Action == b.Action && a.Delay == b.Delay && a.Range == b.Range && a.Strategy == b.Strategy &&
		a.Reason == b.Reason && a.Explanation == b.Explanation && a.History == b.History
}

func TestInOrder_TakesNoAdviceToRetry(t *testing.T) {
	for advice, want := range map[Advice]Advice{"": "", AdviseFail: AdviseFail, AdviseDrop: AdviseDrop, AdviseRetry: ""} {
		if got := (Failure{Status: 503, Advice: advice}).InOrder(); got.Advice != want || got.Status != 503 {
			t.Errorf("%q becomes %+v, want %q", advice, got, want)
		}
	}
}

func TestCompile_RefusesAnUnknownHandlerAdvice(t *testing.T) {
	_, err := Compile("p", v1alpha1.RetryPolicySpec{HandlerAdvice: "follow"})
	if err == nil || !strings.Contains(err.Error(), `policy "p": handlerAdvice is unknown: "follow"`) {
		t.Errorf("error %v", err)
	}
	for advice, want := range map[v1alpha1.HandlerAdvice]v1alpha1.HandlerAdvice{
		"": v1alpha1.HandlerAdviceFollow, v1alpha1.HandlerAdviceFollow: v1alpha1.HandlerAdviceFollow, v1alpha1.HandlerAdviceIgnore: v1alpha1.HandlerAdviceIgnore,
	} {
		if p, err := Compile("p", v1alpha1.RetryPolicySpec{HandlerAdvice: advice}); err != nil || p.HandlerAdvice() != want {
			t.Errorf("%q is %q, error %v", advice, p.HandlerAdvice(), err)
		}
	}
}
