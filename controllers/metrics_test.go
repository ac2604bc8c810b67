package controllers_test

import (
	"maps"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

func TestMetrics_TellHowMessagesAndTransportsStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	published := func() map[string]float64 {
		return w.series("redrive_published_config_info", "transport", "worker", "hash")
	}
	holds := func(condition, reason string) bool {
		return w.series("redrive_transport_condition", "transport", "condition", "reason")["async "+condition+" "+reason] == 1
	}
	if want := map[string]float64{"async default " + transport.Status.ConfigHash: 1}; !maps.Equal(published(), want) {
		t.Errorf("the configurations are %v, want %v", published(), want)
	}
	if !holds(v1alpha1.ReadyCondition, v1alpha1.ReasonSucceeded) || holds(v1alpha1.StalledCondition, v1alpha1.ReasonInvalid) {
		t.Errorf("the conditions are %v", w.series("redrive_transport_condition", "condition", "reason"))
	}

	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 3)...)
	taken, ok, err := w.amqp.Channel().Get("test", false)
	if err != nil || !ok {
		t.Fatalf("no message in test: %v", err)
	}
	of := func(metric, queue string) float64 { return w.series("redrive_queue_"+metric, "queue")[queue] }
	testtransport.Eventually(t, "two messages that wait, one in hand, and their age", func() bool {
		return of("messages", "test") == 3 && of("ready_messages", "test") == 2 && of("unacked_messages", "test") == 1 &&
			of("oldest_message_age_seconds", "test") > 1
	})
	w.park("2s", "1")
	if _, told := w.series("redrive_queue_oldest_message_age_seconds", "role")["lane"]; told {
		t.Error("lanes have an age")
	}
	if _, told := w.series("redrive_queue_expired_messages", "queue")["async.fallback.2s"]; !told || of("expired_messages", "test") != 0 {
		t.Errorf("expired are %v", w.series("redrive_queue_expired_messages", "queue"))
	}
	if err := taken.Ack(false); err != nil {
		t.Fatal(err)
	}
	w.amqp.TakeAll("test")
	testtransport.Eventually(t, "the age to be gone with the messages", func() bool {
		w.amqp.TakeAll("test") // what came back from the lane
		return of("messages", "test") == 0 && of("oldest_message_age_seconds", "test") == 0
	})

	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.RetryPolicyRef.Name = "missing" })
	testtransport.Eventually(t, "Stalled among the metrics, and Ready not", func() bool {
		return holds(v1alpha1.StalledCondition, v1alpha1.ReasonPolicyNotFound) && !holds(v1alpha1.ReadyCondition, v1alpha1.ReasonSucceeded)
	})
	if len(published()) != 1 {
		t.Errorf("the configurations are %v", published())
	}

	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
	if err := w.client.Delete(t.Context(), transport); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "nothing to be told of a Transport that is gone", func() bool {
		return len(published())+len(w.series("redrive_transport_condition", "reason"))+len(w.series("redrive_queue_messages", "queue")) == 0
	})
}

func TestMetrics_CountWhatTheFailureQueueDrops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second, 2*time.Second))
	transport := w.transport()
	transport.Spec.Failure = &v1alpha1.Failure{DropOldestAfter: new(int64(10))}
	w.create(transport)
	w.awaitReady(transport)
	dropped := func() map[string]float64 {
		return w.series("redrive_failure_dropped_messages_total", "transport", "queue")
	}
	await := func(what string, want float64) {
		t.Helper()
		testtransport.Eventually(t, what, func() bool {
			got, told := dropped()["async async.failed"]
			if got > want {
				t.Fatalf("%g messages count as dropped, want %g", got, want)
			}
			return told && got == want
		})
	}
	await("the failure queue to be seen", 0)
	w.amqp.Publish("", "async.failed", make([]amqp091.Publishing, 30)...)
	await("20 messages to count as dropped", 20)

	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Failure = nil })
	testtransport.Eventually(t, "nothing to be told without a bound", func() bool { return len(dropped()) == 0 })
}
