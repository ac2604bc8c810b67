package worker

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// A process that reports progress has its attempt go on beyond the timeout. The breaker gave the place of such a probe to the next one, again
// and again: a partner that was down had several at a time.
func TestPatience_KeepsAProbesPlaceForTheLongestAttempt(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, time.Hour} {
		j := &job{received: time.Now(), program: &program{config: compile.Config{Timeout: *v1alpha1.NewDuration(timeout)}}}
		if longest := max(timeout, j.held()); j.patience() < longest {
			t.Errorf("timeout %s: a place is kept for %s, and an attempt may take %s", timeout, j.patience(), longest)
		}
	}
}
