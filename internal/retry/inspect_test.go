package retry

import (
	"fmt"
	"strings"
	"testing"
)

func strategies(t *testing.T, text string) []StrategyView {
	t.Helper()
	views, err := compile(t, text).Strategies()
	if err != nil {
		t.Fatal(err)
	}
	return views
}

func TestStrategies_AreShownInTheOrderTheyAreAskedIn(t *testing.T) {
	views := strategies(t, `
maxAge: 1h
strategies:
- {name: plain, when: error.status == 1}
- {name: own, when: error.status == 2, maxRetries: 5, backoff: {type: Constant, delay: 10s}}
- {name: throttled, priority: 10, when: error.status == 429, unlimited: true, delayFrom: error.retryAfter, maxDelay: 30m}
- {name: drop, when: error.status == 3, action: Drop}
- {name: spread, when: error.status == 4, unlimited: true, backoff: {type: Exponential, delay: 10s, jitter: {type: Full}}}
`)
	lines := make([]string, len(views))
	for i, v := range views {
		lines[i] = fmt.Sprint(v.Name, "|", v.Priority, "|", v.Action, "|", v.When, "|", v.Limit, "|", v.Schedule, "|", v.DelayFrom, "|", v.MaxDelay, "|", strings.Join(v.Warnings, ";"))
	}
	want := `throttled|10|Retry|error.status == 429|unlimited|1s, 2s, 4s, … 1m (×58), then failed (maxAge 1h)|error.retryAfter|30m0s|
plain|0|Retry|error.status == 1|3 (the policy's)|1s, 2s, 4s, then failed||0s|
own|0|Retry|error.status == 2|5 in a row|10s (×5), then failed||0s|
drop|0|Drop|error.status == 3||||0s|
spread|0|Retry|error.status == 4|unlimited|0s to 10s, 0s to 20s, 0s to 40s, 0s to 1m (×999997), then failed (maxAge 1h)||0s|`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStrategies_WarnOfThoseThatNoMessageReaches(t *testing.T) {
	tests := []struct {
		name, first, second string
		want                string
	}{
		{"another failure", `error.status == 1`, `error.status == 2`, ""},
		{"all is decided before", `true`, `error.status == 2`, `it is never asked: strategy "first" before it always decides`},
		{"what is always true need not be written so", `1 < 2 || error.status == 1`, `error.status == 2`, `strategy "first" before it always decides`},
		{"the same expression", `error.status == 1`, `error.status == 1`, `strategy "first" before it has the same expression`},
		{"the same in another form", `error.status in [1,2]`, `error.status in [  1, 1 + 1 ]`, `strategy "first" before it has the same expression`},
		{"a part of it", `error.status == 1`, `message.queue == 'q' && error.status == 1`, `strategy "first" before it decides whenever it would`},
		{"one of several", `error.status == 1 || error.status == 2`, `error.status == 2`, `strategy "first" before it decides whenever it would`},
		{"more than before", `error.status == 1 && retries > 0`, `error.status == 1`, ""},
		{"never true", `error.status == 2`, `false && error.status == 1`, "it never decides: its expression is always false"},
		{"narrower, which cannot be seen", `error.status >= 400`, `error.status == 404`, ""},
		{"what fails always", `1 / 0 == 1`, `error.status == 404`, ""},
		{"macros", `message.headers.exists(n, n == 'a')`, `message.headers.exists(n, n == 'a') && has(error.retryAfter)`, `whenever it would`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			views := strategies(t, fmt.Sprintf("strategies: [{name: first, when: %q}, {name: second, when: %q}]", tt.first, tt.second))
			if len(views[0].Warnings) > 0 {
				t.Errorf("the first one: %v", views[0].Warnings)
			}
			if got := strings.Join(views[1].Warnings, "; "); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("warnings = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWarnings_TellWhatMaxAgeCutsOff(t *testing.T) {
	strategy := func(fields string) string {
		return `{maxAge: 1m, maxRetries: 2, strategies: [{name: s, when: error.status == 1, ` + fields + `}]}`
	}
	tests := []struct {
		name, spec string
		policy     string
		strategy   string
	}{
		{"nothing", `{}`, "", ""},
		{"retries of the policy", `{maxAge: 5s}`, "at most 2 of 3 retries happen before maxAge 5s", ""},
		{"all retries of the policy", `{maxAge: 5s, backoff: {type: Constant, delay: 6s}}`, "there is no retry: the first delay is longer than maxAge 5s", ""},
		{"retries of a strategy", strategy(`maxRetries: 10, backoff: {type: Constant, delay: 20s}`), "", "at most 3 of 10 retries happen before maxAge 1m"},
		{"a strategy's backoff", strategy(`backoff: {type: Constant, delay: 2m}`), "", "there is no retry: the first delay is longer than maxAge 1m"},
		{"an unlimited one ends with maxAge, as it should", strategy(`unlimited: true, backoff: {type: Constant, delay: 20s}`), "", ""},
		{"an unlimited one without a retry", strategy(`unlimited: true, backoff: {type: Constant, delay: 2m}`), "", "there is no retry: the first delay is longer than maxAge 1m"},
		{
			"a delay that is never waited for", strategy(`delayFrom: error.retryAfter`), "",
			"its maxDelay 1h is longer than maxAge 1m: a delay over maxAge is not waited for, the message fails at once",
		},
		{"a delay that is", strategy(`delayFrom: error.retryAfter, maxDelay: 1m`), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, tt.spec)
			if got := strings.Join(p.Warnings(), "; "); got != tt.policy {
				t.Errorf("of the policy: %q, want %q", got, tt.policy)
			}
			var got []string
			for _, v := range strategies(t, tt.spec) {
				got = append(got, v.Warnings...)
			}
			if strings.Join(got, "; ") != tt.strategy {
				t.Errorf("of its strategy: %q, want %q", got, tt.strategy)
			}
		})
	}
}

func TestStrategies_AreHeavyWhereWorkGrowsWithTheMessage(t *testing.T) {
	views := strategies(t, `
strategies:
- {name: light, when: error.status == 429, delayFrom: error.retryAfter}
- {name: list, when: 'message.body.items.exists(i, i.qty > 100)', delayFrom: error.retryAfter}
- {name: both, when: 'message.headers.exists(n, n == "a")', delayFrom: 'duration(string(message.body.wait))'}
- {name: field, when: message.body.amount > 3, action: Fail}
`)
	var got []string
	for _, v := range views {
		got = append(got, fmt.Sprint(v.Name, v.Heavy))
	}
	if want := "light[] list[when] both[when delayFrom] field[]"; strings.Join(got, " ") != want {
		t.Errorf("heavy are %v, want %s", got, want)
	}
}
