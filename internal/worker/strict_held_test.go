package worker_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
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

// Each time that it went back the broker counted a delivery, which the next pod took for an attempt: the message had none left when its turn came.
// RabbitMQ before 4.3 leaves no other way. Where the publisher has written a count, the broker has to count once, so that it is not believed.
func TestStrict_LongWaitForALimitCostsNoAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers amqp091.Table
		counted int
	}{
		"a message":                    {nil, 0},
		"one that brings a count":      {amqp091.Table{"x-delivery-count": int64(1000)}, 1},
		"one that brings a count of 1": {amqp091.Table{"x-delivery-count": int64(1)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPartner(t, always(200))
			r := newRig(t, p, testtransport.Explicit(100*time.Millisecond), func(tr *v1alpha1.Transport) {
				strict(v1alpha1.OnFailureContinue)(tr)
				tr.Spec.Broker.ConsumerTimeout, tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(2*time.Second), v1alpha1.NewDuration(400*time.Millisecond)
				limitedTo(v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromString("0.001"), Burst: new(int32(1)), Key: new("'all'")})(tr)
			})
			r.publish(amqp091.Publishing{MessageId: "a"}, amqp091.Publishing{MessageId: "b", Headers: c.headers}, amqp091.Publishing{MessageId: "c"})
			returned := func() int { return int(r.counted("redrive_messages_handled_total", "outcome", "returned")) }
			testtransport.Eventually(t, "it to have gone back", func() bool { return returned() >= 3 })
			r.stop()
			counted := 1 + c.counted // with that the first pod has stopped
			if !r.IsSince(4, 3) {
				counted = 1 + returned()
			}
			r.config.RateLimits = nil
			r.start(nil)
			testtransport.Eventually(t, "the rest handled", func() bool { return r.handled() == 2 })
			if want := []string{"a1", fmt.Sprintf("b%d", 1+counted), "c1"}; !slices.Equal(p.order(), want) {
				t.Errorf("calls %v, want %v", p.order(), want)
			}
		})
	}
}
