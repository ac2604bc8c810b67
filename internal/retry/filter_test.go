package retry_test

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

func TestFilter_SeesHowAMessageWasGivenUp(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	m := retry.Message{ID: "1", Queue: "orders", Headers: map[string]any{"partner": "acme"}, Body: []byte(`{"total": 7}`)}
	last := retry.Failure{Source: retry.SourceHandler, Status: 503, Class: "busy"}
	history := retry.History{Attempts: 4, Retries: 3, FirstFailure: now.Add(-2 * time.Hour)}
	given := retry.Given{Reason: "MaxRetries", Explanation: "3 of 3 retries used", Strategy: "slow", Cause: "613c48d3", Source: "Worker", At: now.Add(-time.Hour)}
	for expression, want := range map[string]bool{
		`failure.reason == 'MaxRetries' && failure.strategy == 'slow' && failure.source == 'Worker'`:  true,
		`failure.cause == '613c48d3' && failure.explanation.startsWith('3 of')`:                       true,
		`failure.age > duration('59m') && failure.age < duration('61m')`:                              true,
		`failure.at == timestamp('2026-11-28T11:00:00Z') && now == timestamp('2026-11-28T12:00:00Z')`: true,
		`age == duration('2h')`:                        true,
		`attempt == 4 && retries == 3`:                 true,
		`error.status >= 500 && error.class == 'busy'`: true,
		`message.headers.partner == 'acme'`:            true,
		`message.body.total > 7`:                       false,
		`has(failure.cause) && !has(message.type)`:     true,
		`failure.reason == 'expired'`:                  false,
	} {
		filter, err := retry.CompileFilter("--where", expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		for range 2 {
			if got, err := filter.Matches(m, last, history, given, now); err != nil || got != want {
				t.Errorf("%s: %t, %v", expression, got, err)
			}
		}
	}
	filter, err := retry.CompileFilter("--where", `has(failure.at) || failure.age > duration('0s') || age > duration('0s') || attempt > 1`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := filter.Matches(retry.Message{}, retry.Failure{}, retry.History{}, retry.Given{}, now); got || err != nil {
		t.Errorf("what tells nothing: %t, %v", got, err)
	}
}

func TestFilter_SaysWhatIsWrong(t *testing.T) {
	for expression, want := range map[string]string{
		`failure.nothing == ''`:  "failure has age, at, cause, explanation, reason, source, strategy",
		`failure.age`:            "--where, 1:1: must give a bool, but gives duration",
		`reason == 'MaxRetries'`: "--where, 1:1: there is no variable reason here, only age, attempt, error, failure,",
		``:                       "--where",
	} {
		if _, err := retry.CompileFilter("--where", expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", expression, err)
		}
	}
	filter, err := retry.CompileFilter("--where", `message.headers.partner == 'acme'`)
	if err != nil {
		t.Fatal(err)
	}
	matches, err := filter.Matches(retry.Message{Headers: map[string]any{"x": "secret"}}, retry.Failure{}, retry.History{}, retry.Given{}, time.Now())
	if matches || err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "no such key") {
		t.Errorf("%t, %v", matches, err)
	}
	// No expression of a policy knows it.
	if _, err := retry.CompileMatch("when", `failure.reason == ''`); err == nil {
		t.Error("an expression of a policy sees how a message was given up")
	}
}
