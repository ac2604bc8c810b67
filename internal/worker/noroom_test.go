package worker_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// The memory is full with what another queue has in hand for longer than room is waited for. The message at the head of a strict queue is
// given back unread, which the broker counts as a delivery: it is no attempt.
func TestNoRoom_ChargesAStrictMessageNoAttempt(t *testing.T) {
	isChargedNothing(t, testtransport.Queue, strict(v1alpha1.OnFailureContinue))
}

// Nobody has had it in hand: were it quarantined, nobody would handle it here.
func TestNoRoom_QuarantinesNoMessage(t *testing.T) {
	isChargedNothing(t, testtransport.Queue, func(*v1alpha1.Transport) {})
}

// It was counted under the name of the stand-in, and looked for under that of the work queue.
func TestAwaitRoom_KnowsAMessageOfAStandInByItsWorkQueue(t *testing.T) {
	t.Run("strict", func(t *testing.T) { isChargedNothing(t, standin, strict(v1alpha1.OnFailureContinue)) })
	t.Run("ordinary", func(t *testing.T) { isChargedNothing(t, standin, func(*v1alpha1.Transport) {}) })
}

// isChargedNothing has a message come from a queue while there is no room for it.
func isChargedNothing(t *testing.T, from string, order func(*v1alpha1.Transport)) {
	t.Helper()
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") == "strict" {
			return http.StatusBadGateway
		}
		time.Sleep(11 * time.Second)
		return http.StatusOK
	})
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond), func(tr *v1alpha1.Transport) {
		order(tr)
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(12 * time.Second)
		for _, name := range []string{"q1", "q2"} {
			tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
		}
	})
	r.stop()
	r.memory = 4 << 20 // of which a quarter is for messages
	for _, queue := range []string{"q1", "q2"} {
		r.Publish("async", queue, amqp091.Publishing{MessageId: queue, Body: make([]byte, 450_000)})
	}
	r.start(nil)
	if from == standin {
		r.withStandin(compile.ReadsBoth)
	}
	testtransport.Eventually(t, "the memory to be full", func() bool { return len(p.got()) == 2 })
	r.Publish("", from, amqp091.Publishing{MessageId: "strict", Body: make([]byte, 500_000)})
	failed := r.Take("async.failed")
	var attempts []string
	for _, call := range p.got() {
		if call.header.Get("Redrive-Message-Id") == failed.MessageId {
			attempts = append(attempts, call.header.Get("Redrive-Attempt"))
		}
	}
	if failed.MessageId != "strict" || len(attempts) != 2 || attempts[0] != "1" || attempts[1] != "2" {
		t.Errorf("message %s failed after the attempts %q, want strict after 1 and 2", failed.MessageId, attempts)
	}
	if n := value(t, r.registry, "redrive_messages_without_room_total"); n == 0 {
		t.Error("it had room: this shows nothing")
	}
}

// Headers count twice, and no room is waited for theirs: what is on loan can have more memory than it may. A message without a body that comes
// meanwhile went to the failure queue, and nobody had handled it.
func TestNoRoom_HandlesAMessageWithoutABody(t *testing.T) {
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Message-Id") != "empty" {
			time.Sleep(11 * time.Second)
		}
		return http.StatusOK
	})
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(12 * time.Second)
		for _, name := range []string{"q1", "q2"} {
			tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
		}
	})
	r.stop()
	r.memory = 4 << 20 // of which a quarter is for messages
	large := amqp091.Table{"large": strings.Repeat("x", 100_000)}
	for _, queue := range []string{"q1", "q2"} {
		r.Publish("async", queue, amqp091.Publishing{MessageId: queue, Body: make([]byte, 450_000), Headers: large})
	}
	r.start(nil)
	testtransport.Eventually(t, "the memory to be full", func() bool { return len(p.got()) == 2 })
	r.publish(amqp091.Publishing{MessageId: "empty"})
	testtransport.Eventually(t, "an end of it", func() bool { return len(p.got()) == 3 || r.Ready("async.failed") > 0 })
	if failed := r.Ready("async.failed"); failed > 0 {
		t.Errorf("%d messages failed", failed)
	}
	if n := value(t, r.registry, "redrive_messages_without_room_total"); n == 0 {
		t.Error("it had room: this shows nothing")
	}
}
