package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// A classic queue that is exchanged for a strictly ordered one is emptied in order. It does not count the deliveries of a message.
func TestAMessageOfAClassicQueueThatBecomesStrictIsGivenUpAfterItsRetries(t *testing.T) {
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") == "a" {
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	if _, err := r.Channel().QueueDeclare(standin, true, false, false, false, map[string]any{"x-queue-type": "classic"}); err != nil {
		t.Fatal(err)
	}
	r.Publish("", standin, letters("a", "b")...)
	r.read(compile.ReadsStandin)
	testtransport.Eventually(t, "the second message", func() bool { return r.handled() == 1 })
	if failed := r.Take("async.failed"); failed.MessageId != "a" {
		t.Errorf("failed: %s %v", failed.MessageId, failed.Headers)
	}
	if want := []string{"a1", "a2", "a3", "b1"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}
