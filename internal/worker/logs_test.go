package worker_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

func TestLog_SaysOfEachAttemptWhatFailedAndWasDecided(t *testing.T) {
	policy := testtransport.Explicit(time.Second, time.Second)
	policy.Strategies = []v1alpha1.Strategy{{
		Name: "busy", When: "error.status == 503", Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(100 * time.Millisecond)},
	}}
	r := newRig(t, newPartner(t, func(_ *http.Request, attempt int) int { return []int{503, 500, 200}[attempt-1] }), policy, nil)
	r.stop()
	var log bytes.Buffer
	r.log = slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})
	r.start(nil)
	r.publish(letters("a")...)
	testtransport.Eventually(t, "the message to be handled", func() bool { return r.handled() == 1 })
	r.stop() // then nobody writes to the log any more

	var got []map[string]any
	for line := range strings.Lines(log.String()) {
		record := map[string]any{}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if text, _ := record["msg"].(string); strings.HasPrefix(text, "attempt ") {
			maps.DeleteFunc(record, func(key string, _ any) bool { return slices.Contains([]string{"time", "took"}, key) })
			got = append(got, record)
		}
	}
	failed := func(attempt, status, delay int, strategy string) map[string]any {
		return map[string]any{
			"level": "INFO", "msg": "attempt failed", "queue": "test", "message": "a", "attempt": float64(attempt),
			"retries": float64(attempt), "maxRetries": float64(2), "error": map[int]string{503: "HTTP 503 Service Unavailable", 500: "HTTP 500 Internal Server Error"}[status],
			"source": "Handler", "status": float64(status), "class": "", "action": "Retry", "delay": float64(delay), "strategy": strategy, "reason": "Retry",
		}
	}
	want := []map[string]any{
		failed(1, 503, int(100*time.Millisecond), "busy"), failed(2, 500, int(time.Second), ""),
		{"level": "DEBUG", "msg": "attempt succeeded", "queue": "test", "message": "a", "attempt": float64(3)},
	}
	if !slices.EqualFunc(got, want, maps.Equal[map[string]any]) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
