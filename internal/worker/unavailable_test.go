package worker_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func TestTroubles_TellOfAQueueWithoutALeaderAndOthersGoOn(t *testing.T) {
	t.Parallel()
	own := testbroker.Private(t)
	p := newPartner(t, always(200))
	r := newRigOn(t, own, p, testtransport.Explicit(time.Second), withQueues(nil, "free"))
	r.stop()
	own.StopMember(t, r.target.VHost, "free")
	r.handlers = newHandler
	r.start(nil)
	testtransport.Eventually(t, "the trouble", func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Reason == v1alpha1.ReasonQueueUnavailable && troubles[0].Subject == "free" &&
			strings.Contains(troubles[0].Message, "leader")
	})
	r.publish(make([]amqp091.Publishing, 40)...)
	testtransport.Eventually(t, "the messages of the other queue", func() bool { return len(p.got()) >= 40 })
	testtransport.Eventually(t, "the worker to say which queue it waits for", func() bool {
		err := r.worker.Ready()
		return err != nil && strings.Contains(err.Error(), `queue "free"`)
	})
	if value(t, r.registry, "redrive_queue_unavailable") != 1 {
		t.Error("no metric tells of it")
	}
	own.StartMember(t, r.target.VHost, "free")
	r.Publish("async", "free", amqp091.Publishing{MessageId: "last"})
	testtransport.Eventually(t, "the end of the trouble", func() bool {
		return len(r.worker.Status().Troubles) == 0 && r.worker.Ready() == nil && len(p.got()) >= 41
	})
	r.empty()
}
