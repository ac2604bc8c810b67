package main

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

func TestLedger_AccountsForEveryMessage(t *testing.T) {
	ok, bad := attempt{status: http.StatusOK}, attempt{status: http.StatusBadGateway}
	tests := map[string]struct {
		attempts []attempt
		failures int
		want     sums
		good     bool
	}{
		"handled at once":                {[]attempt{ok}, 0, sums{published: 1, handled: 1}, true},
		"handled after failures":         {[]attempt{bad, {status: hang}, ok}, 0, sums{published: 1, handled: 1}, true},
		"failed":                         {[]attempt{bad}, 1, sums{published: 1, failed: 1}, true},
		"never seen again":               {[]attempt{bad}, 0, sums{published: 1, lost: 1}, false},
		"never seen at all":              {nil, 0, sums{published: 1, lost: 1}, false},
		"handled twice":                  {[]attempt{ok, ok}, 0, sums{published: 1, handled: 1, duplicated: 1}, false},
		"handled and failed":             {[]attempt{ok, bad}, 1, sums{published: 1, handled: 1, duplicated: 1}, false},
		"failed without being attempted": {nil, 1, sums{published: 1, failed: 1}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := &ledger{messages: []message{{id: "a"}}, attempts: map[string][]attempt{"a": tt.attempts}}
			for range tt.failures {
				l.failures = append(l.failures, failure{id: "a"})
			}
			if got := l.sums(); got != tt.want || got.good() != tt.good {
				t.Errorf("got %v, good %v; want %v, %v", got, got.good(), tt.want, tt.good)
			}
		})
	}
}

func TestScenarios_GiveAThousandMessagesDifferentIDs(t *testing.T) {
	ids := map[string]bool{}
	for _, m := range shuffled(scenarios()) {
		ids[m.id] = true
	}
	if len(ids) != total {
		t.Errorf("%d ids, want %d", len(ids), total)
	}
}

func TestScenario_AsksForThePolicysDelays(t *testing.T) {
	after := "error.retryAfter"
	policy, err := retry.Compile("sample", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{
		{Name: "throttled", When: "error.status == 429", DelayFrom: &after},
		{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]time.Duration{
		nil, nil,
		{time.Second},
		{time.Second, 2 * time.Second},
		{2 * time.Second},
		{time.Second},
		nil,
		{time.Second, 2 * time.Second, 4 * time.Second},
	}
	for i, s := range scenarios() {
		if got := s.asked(policy); !slices.Equal(got, want[i]) {
			t.Errorf("%s: asked %v, want %v", s.name, got, want[i])
		}
	}
}

func TestLedger_MeasuresDelaysFromTheEndOfAnAttempt(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	l := &ledger{
		messages: []message{{id: "a"}, {id: "b"}, {id: "other", scenario: 1}},
		attempts: map[string][]attempt{
			"a":     {{began: at(0), ended: at(1)}, {began: at(3), ended: at(4)}},
			"b":     {{began: at(0), ended: at(1)}, {began: at(6), ended: at(7)}, {began: at(8)}},
			"other": {{began: at(0), ended: at(0)}, {began: at(99)}},
		},
	}
	want := []spread{{median: 5 * time.Second, longest: 5 * time.Second}, {median: time.Second, longest: time.Second}}
	if got := l.gaps(0, 2); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
