package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// nameless are equal messages without an id.
func nameless(n int) []amqp091.Publishing {
	return slices.Repeat([]amqp091.Publishing{{Body: []byte("x"), Headers: amqp091.Table{"tenant": "acme"}}}, n)
}

// ids are those of the calls, in order. The idempotency key must go with them.
func (p *partner) ids(t *testing.T) []string {
	t.Helper()
	keys := map[string]string{}
	var ids []string
	for _, got := range p.got() {
		id, key := got.header.Get("Redrive-Message-Id"), got.header.Get("Idempotency-Key")
		if known, there := keys[id]; id == "" || there && known != key {
			t.Errorf("id %q has the idempotency keys %q and %q", id, known, key)
		}
		keys[id] = key
		ids = append(ids, id)
	}
	return ids
}

func (p *partner) attempts() []string {
	var attempts []string
	for _, got := range p.got() {
		attempts = append(attempts, got.header.Get("Redrive-Attempt"))
	}
	return attempts
}

func TestNameless_KeepsItsPastFromRetryToRetry(t *testing.T) {
	p := newPartner(t, always(429))
	policy := testtransport.Explicit(50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{{Name: "once", When: "error.status == 429", MaxRetries: new(int32(1))}}
	r := newRig(t, p, policy, strict(v1alpha1.OnFailureContinue))
	r.publish(nameless(1)...)
	failed := r.Take("async.failed")
	ids := p.ids(t)
	if len(ids) != 2 || ids[0] != ids[1] {
		t.Fatalf("handled as %v, want twice under one id", ids)
	}
	if got := text(t, failed.Headers, "redrive-id"); got != ids[0] {
		t.Errorf("failed as %s, handled as %s", got, ids[0])
	}
	if text(t, failed.Headers, "redrive-strategy") != "once" || failed.Headers["redrive-streak"] != int64(2) {
		t.Errorf("headers %v: want the strategy once, which decided twice", failed.Headers)
	}
}

func TestNameless_EqualMessagesAreTwo(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int { return map[bool]int{true: 200, false: 502}[attempt == 2] })
	r := newRig(t, p, testtransport.Explicit(50*time.Millisecond, 50*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(nameless(2)...)
	testtransport.Eventually(t, "both handled", func() bool { return r.handled() == 2 })
	if want := []string{"1", "2", "1", "2"}; !slices.Equal(p.attempts(), want) {
		t.Fatalf("attempts %v, want %v", p.attempts(), want)
	}
	if ids := p.ids(t); ids[0] != ids[1] || ids[2] != ids[3] || ids[0] == ids[2] {
		t.Errorf("ids %v, want one for each message", ids)
	}
}

func TestNameless_TakesNoPastOfAnEqualOneThatIsDone(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(50*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(nameless(1)...)
	testtransport.Eventually(t, "the first handled", func() bool { return r.handled() == 1 })
	r.proxy.Refuse(true)
	r.proxy.Cut()
	r.publish(nameless(1)...)
	r.interrupt(testtransport.Queue) // so that it comes as one that was delivered before
	r.proxy.Refuse(false)
	testtransport.Eventually(t, "the second handled", func() bool { return r.handled() == 2 })
	if ids := p.ids(t); len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("ids %v, want one for each message", ids)
	}
}

func TestNameless_KeepsItsIDThroughALostSession(t *testing.T) {
	entered, release := make(chan struct{}, 8), make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		entered <- struct{}{}
		<-release
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(50*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	r.publish(nameless(1)...)
	<-entered
	before := r.counted("redrive_connections_total")
	r.proxy.Cut()
	testtransport.Eventually(t, "new sessions", func() bool { return r.counted("redrive_connections_total") > before && r.worker.Ready() == nil })
	close(release)
	testtransport.Eventually(t, "the message handled", func() bool { return r.handled() == 1 })
	if ids := p.ids(t); len(ids) != 2 || ids[0] != ids[1] {
		t.Errorf("ids %v, want the same twice", ids)
	}
	if want := []string{"1", "2"}; !slices.Equal(p.attempts(), want) {
		t.Errorf("attempts %v, want %v", p.attempts(), want)
	}
}

func TestNameless_IsNotHandledAgainAfterBlockingForLong(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(), func(tr *v1alpha1.Transport) {
		strict(v1alpha1.OnFailureBlock)(tr)
		tr.Spec.Broker.ConsumerTimeout = v1alpha1.NewDuration(10 * time.Second)
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Second)
	})
	r.publish(nameless(1)...)
	testtransport.Eventually(t, "it to go back and block again", func() bool {
		return r.counted("redrive_messages_handled_total", "outcome", "returned") > 1 && len(r.worker.Status().Troubles) == 1
	})
	if ids := p.ids(t); len(ids) != 1 {
		t.Errorf("handled %d times, want once", len(ids))
	}
}
