//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestAQueueBecomesAQuorumQueueUnderLoad(t *testing.T) {
	t.Parallel()
	s := openShop(t, "exchange", plan{change: func(transport *v1alpha1.Transport) {
		for i := range transport.Spec.Queues {
			if queue := &transport.Spec.Queues[i]; queue.Name == ordersQueue {
				queue.Type = new(v1alpha1.QueueClassic)
			}
		}
	}})
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	s.awaitHandled(100)
	if kind := s.kindOf(ordersQueue); kind != "classic" {
		t.Fatalf("the queue is %s at first", kind)
	}
	s.update(func(transport *v1alpha1.Transport) {
		for i := range transport.Spec.Queues {
			transport.Spec.Queues[i].Type = nil
		}
	})
	await(t, time.Minute, "the exchange to begin", func() (bool, any) {
		transport, err := s.read(t.Context())
		return err == nil && len(transport.Status.Migrations) > 0, err
	})
	await(t, 4*time.Minute, "the exchange to be over", func() (bool, any) {
		transport, err := s.read(t.Context())
		if err != nil {
			return false, err
		}
		status := transport.Status
		over := len(status.Migrations)+len(status.Retiring) == 0 && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition)
		return over, fmt.Sprintf("%+v", status)
	})
	s.awaitHandled(100)
	checkOnce(t, s.tally.settle(flow.stop(), 2*time.Minute))
	if kind, left := s.kindOf(ordersQueue), s.kindOf(ordersQueue+".standin"); kind != "quorum" || left != "" {
		t.Errorf("the queue is %q, and the stand-in %q", kind, left)
	}
}

// kindOf is the type of a queue on the broker; empty where it does not exist.
func (s *shop) kindOf(name string) string {
	s.t.Helper()
	var queues []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	}
	must(s.t, s.broker.manage(s.t.Context(), http.MethodGet, apiPath("queues", s.vhost), nil, &queues))
	for _, queue := range queues {
		if queue.Name == name {
			return queue.Type
		}
	}
	return ""
}
