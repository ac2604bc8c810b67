package retry

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestSchedule_TellsTheDelaysAndTheEnd(t *testing.T) {
	tests := []struct {
		name, spec, want string
	}{
		{"the defaults", `{}`, "1s, 2s, 4s, then failed"},
		{"no retries", `maxRetries: 0`, "none: the first failure is final"},
		{"one retry", `maxRetries: 1`, "1s, then failed"},
		{"five delays stand in full", `maxRetries: 5`, "1s, 2s, 4s, 8s, 16s, then failed"},
		{"six are shortened", `maxRetries: 6`, "1s, 2s, 4s, … 32s, then failed"},
		{"the end repeats", `maxRetries: 26`, "1s, 2s, 4s, … 1m (×20), then failed"},
		{"a million retries end with maxAge", `maxRetries: 1000000`, "1s, 2s, 4s, … 1m (×1438), then failed (maxAge 24h)"},
		{"retries without a limit", `unlimited: true`, "1s, 2s, 4s, … 1m (×1438), then failed (maxAge 24h)"},
		{"constant", `{maxRetries: 3, backoff: {type: Constant, delay: 90s}}`, "1m30s (×3), then failed"},
		{"explicit, with equal ones in a row", `{maxRetries: 5, backoff: {type: Explicit, delays: [5s, 5s, 1m, 1h]}}`, "5s (×2), 1m, 1h (×2), then failed"},
		{"explicit, more than are used", `{maxRetries: 2, backoff: {type: Explicit, delays: [500ms, 1500ms, 1m]}}`, "500ms, 1.5s, then failed"},
		{"linear that never reaches its bound", `{maxRetries: 1000, maxAge: 8760h, backoff: {type: Linear, delay: 1s, step: 1s, maxDelay: 720h}}`, "1s, 2s, 3s, … 16m40s, then failed"},
		{"maxAge ends it", `{maxAge: 24h, backoff: {type: Constant, delay: 10h}}`, "10h (×2), then failed (maxAge 24h)"},
		{"maxAge ends it before it begins", `{maxAge: 1h, backoff: {type: Constant, delay: 2h}}`, "none: the first delay is longer than maxAge 1h"},
		{"maxAge ends it on the way", `{maxAge: 5s}`, "1s, 2s, then failed (maxAge 5s)"},
		{"proportional jitter", `{backoff: {type: Exponential, jitter: {type: Proportional, percent: 10}}}`, "1s ±10%, 2s ±10%, 4s ±10%, then failed"},
		{"proportional jitter, cut at the bound", `{backoff: {type: Exponential, delay: 30s, jitter: {type: Proportional, percent: 10}}}`, "30s ±10%, 54s to 1m (×2), then failed"},
		{"full jitter", `{backoff: {type: Exponential, jitter: {type: Full}}}`, "0s to 1s, 0s to 2s, 0s to 4s, then failed"},
		{"equal jitter", `{backoff: {type: Constant, jitter: {type: Equal}}}`, "500ms to 1s (×3), then failed"},
		{"tries at once", `immediate: 2`, "2 at once, then 1s, 2s, 4s, then failed"},
		{"tries at once and no retries", `{immediate: 1, maxRetries: 0}`, "1 at once, then failed"},
		{"tries at once and no time for retries", `{immediate: 1, maxAge: 1h, backoff: {type: Constant, delay: 2h}}`, "1 at once, then failed"},
		{"decorrelated jitter", `{maxRetries: 10, backoff: {type: Exponential, jitter: {type: Decorrelated}}}`, "1s to 3s, 1s to 9s, 1s to 27s, 1s to 1m (×7), then failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compile(t, tt.spec).Schedule(); got != tt.want {
				t.Errorf("schedule = %q\n      want = %q", got, tt.want)
			}
		})
	}
}

func TestSchedule_FitsIntoTheStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{backoff: *anyBackoff(t), maxRetries: rapid.Int64Range(0, 20_000).Draw(t, "maxRetries"), maxAge: defaultMaxAge}
		got := p.Schedule()
		if utf8.RuneCountInString(got) > 1024 || !strings.Contains(got, "then failed") && !strings.HasPrefix(got, "none: ") {
			t.Fatalf("schedule = %q", got)
		}
	})
}
