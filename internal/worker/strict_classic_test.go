package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// A classic queue that is migrated to a strictly ordered one is emptied in order. It does not count the deliveries of a message.
func TestStrict_GivesUpAClassicQueuesMessageAfterItsRetries(t *testing.T) {
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") == "a" {
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	fillClassic(r, letters("a", "b")...)
	testtransport.Eventually(t, "the second message", func() bool { return r.handled() == 1 })
	if failed := r.Take("async.failed"); failed.MessageId != "a" {
		t.Errorf("failed: %s %v", failed.MessageId, failed.Headers)
	}
	if want := []string{"a1", "a2", "a3", "b1"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}

func TestStrict_GivesUpANamelessClassicMessageAfterItsRetries(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(50*time.Millisecond, 50*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	fillClassic(r, nameless(1)...)
	r.Take("async.failed")
	if want := []string{"1", "2", "3"}; !slices.Equal(p.attempts(), want) {
		t.Errorf("attempts %v, want %v", p.attempts(), want)
	}
	if ids := p.ids(t); ids[0] == ids[1] || ids[1] == ids[2] {
		t.Errorf("ids %v: the messages may be two that are equal, so who handles each id once would leave one out", ids)
	}
}

func TestStrict_IgnoresAPublishersCountOnAClassicQueue(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRig(t, p, testtransport.Explicit(50*time.Millisecond, 50*time.Millisecond), strict(v1alpha1.OnFailureContinue))
	fillClassic(r, amqp091.Publishing{MessageId: "a", Headers: amqp091.Table{"x-delivery-count": int64(30)}})
	r.Take("async.failed")
	if want := []string{"a1", "a2", "a3"}; !slices.Equal(p.order(), want) {
		t.Errorf("calls %v, want %v", p.order(), want)
	}
}

// fillClassic publishes into a classic queue, which the worker is told to empty.
func fillClassic(r *rig, messages ...amqp091.Publishing) {
	r.t.Helper()
	if _, err := r.Channel().QueueDeclare(standin, true, false, false, false, map[string]any{"x-queue-type": "classic"}); err != nil {
		r.t.Fatal(err)
	}
	r.Publish("", standin, messages...)
	r.read(compile.ReadsStandin)
}
