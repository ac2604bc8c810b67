package worker_test

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// It waits for a limit, makes its attempt, and waits for its retry: together for longer than the broker leaves it to the worker.
func TestStrictMessage_ThatGoesBackBeforeItsRetryIsDueKeepsItsDelay(t *testing.T) {
	const delay = 4500 * time.Millisecond
	var failed atomic.Int64 // when, in nanoseconds
	p := newPartner(t, func(r *http.Request, attempt int) int {
		if r.Header.Get("Redrive-Message-Id") != "b" || attempt > 1 {
			return 200
		}
		time.Sleep(2500 * time.Millisecond)
		failed.Store(time.Now().UnixNano())
		return 503
	})
	r := newRig(t, p, testtransport.Explicit(delay), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureContinue)(tr)
		tr.Spec.Broker.ConsumerTimeout = v1alpha1.NewDuration(10 * time.Second)
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(4 * time.Second)
		limitedTo(v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromString("0.3"), Burst: new(int32(1)), Key: new("'all'")})(tr)
	})
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
	if want := []string{"a1", "b1", "b2"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
	last := p.got()[2].at
	if waited := last.Sub(time.Unix(0, failed.Load())); waited < delay {
		t.Errorf("its retry came after %s, want %s", waited, delay)
	}
}
