package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// Each change of the configuration had the first message of a queue in order, which waited for a rate limit, go back: before RabbitMQ 4.3 the broker counts
// that, and the next pod took it for attempts.
func TestStrict_AMessageThatWaitsForARateLimitIsKeptWhileTheConfigurationChanges(t *testing.T) {
	const reloads = 6
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") == "b" {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	const pause = 100 * time.Millisecond
	r := newRig(t, p, testtransport.Explicit(pause, pause, pause), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureContinue)(tr)
		limitedTo(v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromString("0.001"), Burst: new(int32(1))})(tr)
	})
	r.publish(letters("a", "b", "c")...)
	testtransport.Eventually(t, "the second to wait", func() bool { return r.counted("redrive_rate_limited_total") >= 1 })
	for i := range reloads {
		r.config.MaxCrashes = 3 + (i+1)%2
		if err := r.worker.Reload(r.config); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause) // in which the message goes back, where it does
	}
	if n := r.counted("redrive_messages_handled_total", "outcome", "returned"); n != 0 {
		t.Errorf("it went back %v times", n)
	}
	r.stop()
	r.config.RateLimits = nil
	r.start(nil)
	testtransport.Eventually(t, "the rest to be handled", func() bool { return slices.Contains(p.order(), "c1") })
	if want := []string{"a1", "b2", "b3", "b4", "c1"}; !slices.Equal(p.order(), want) { // the pod that stopped counts as one
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}
