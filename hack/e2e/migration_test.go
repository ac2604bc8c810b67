//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestMigration_MakesAQuorumQueueUnderLoad(t *testing.T) {
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
	s.awaitExchanged()
	s.awaitHandled(100)
	checkOnce(t, s.tally.settle(flow.stop(), 2*time.Minute))
	if kind, left := s.kindOf(ordersQueue), s.kindOf(ordersQueue+".migrating"); kind != "quorum" || left != "" {
		t.Errorf("the queue is %q, and the stand-in %q", kind, left)
	}
}

// TestMigration_KeepsTheOrderOfMessagesThatWait has workers come up again when messages stand in the old queue and in the one
// that stands in for it.
func TestMigration_KeepsTheOrderOfMessagesThatWait(t *testing.T) {
	long(t)
	t.Parallel()
	const waiting, meanwhile = 200, 30
	s := openShop(t, "in-order", plan{change: func(transport *v1alpha1.Transport) {
		orders := queueOf(transport, ordersQueue)
		orders.Type, orders.SingleActiveConsumer = new(v1alpha1.QueueClassic), new(true)
		transport.Spec.Workers[0].Concurrency = ptr.To[int32](1)
	}})
	s.scale(0)
	s.awaitPods(0, time.Minute)
	next := func(n int) parcel { return parcel{id: strconv.Itoa(n), answer: []string{"503,200", ""}[min(n%20, 1)]} }
	parcels := make([]parcel, waiting)
	for n := range parcels {
		parcels[n] = next(n)
	}
	all := s.publish(parcels...)
	flow := s.startLoad(10, func(n int) parcel { return next(waiting + n) })
	s.update(func(transport *v1alpha1.Transport) { queueOf(transport, ordersQueue).Type = nil })
	await(t, time.Minute, "messages in both queues", func() (bool, any) {
		inQueue, err := s.count(ordersQueue)
		beside, none := s.count(ordersQueue + ".migrating")
		return inQueue >= waiting && beside >= meanwhile && errors.Join(err, none) == nil, fmt.Sprint(inQueue, beside, err, none)
	})

	s.scale(2)
	s.awaitExchanged()
	s.awaitHandled(meanwhile)
	maps.Copy(all, flow.stop())
	checkOnce(t, s.tally.settle(all, 2*time.Minute))
	s.checkOrder(len(all))
	if kind, left := s.kindOf(ordersQueue), s.kindOf(ordersQueue+".migrating"); kind != "quorum" || left != "" {
		t.Errorf("the queue is %q, and the stand-in %q", kind, left)
	}
}

func queueOf(transport *v1alpha1.Transport, name string) *v1alpha1.Queue {
	at := slices.IndexFunc(transport.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == name })
	return &transport.Spec.Queues[at]
}

// awaitExchanged waits until no queue is migrated any more and all is as it should be.
func (s *shop) awaitExchanged() {
	s.t.Helper()
	await(s.t, 4*time.Minute, "the exchange to be over", func() (bool, any) {
		transport, err := s.read(s.t.Context())
		if err != nil {
			return false, err
		}
		status := transport.Status
		over := len(status.Migrations)+len(status.Retiring) == 0 && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition)
		return over, fmt.Sprintf("%+v", status)
	})
}

// checkOrder holds the first attempts at messages that are numbered from 0 to their order.
func (s *shop) checkOrder(number int) {
	s.t.Helper()
	var latest time.Time
	var overtaken []int
	for n := range number {
		attempts := s.tally.attempts[strconv.Itoa(n)]
		switch {
		case len(attempts) == 0:
			s.t.Fatalf("there was no attempt at message %d", n)
		case attempts[0].At.Before(latest):
			overtaken = append(overtaken, n)
		default:
			latest = attempts[0].At
		}
	}
	if len(overtaken) > 0 {
		s.t.Errorf("%d of %d messages were tried after a later one, such as %v", len(overtaken), number, overtaken[:min(10, len(overtaken))])
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
