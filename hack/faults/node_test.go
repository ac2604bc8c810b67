package faults

import (
	"context"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// TestWorker_LosesNothingWhenTheBrokerFails has a broker of its own, which is stopped, killed and starved.
func TestWorker_LosesNothingWhenTheBrokerFails(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	node := testbroker.Private(t)
	t.Run("it is stopped and started, then killed and started", func(t *testing.T) {
		rounds(t, func(t *testing.T) {
			// In this order: RabbitMQ 3.10 may not find a quorum queue again that was declared seconds before a kill.
			ends := []func(context.Context) error{node.Halt, node.Kill}
			s := newScene(t, node, retrying())
			for _, end := range ends {
				s.publish(1000)
				s.acknowledgesAgain()
				s.interrupt(end)
			}
			s.settle(bounds{faults: len(ends), duplicates: len(ends) * 2 * prefetch})
		})
	})
	t.Run("its memory alarm blocks publishers", func(t *testing.T) {
		rounds(t, func(t *testing.T) {
			const alarms = 3
			p := retrying()
			p.answer = func(c call) int { // slowly, for only who publishes is blocked
				time.Sleep(10 * time.Millisecond)
				return failsFirst(c)
			}
			s := newScene(t, node, p)
			blocked := point{fromBroker, connectionBlocked}
			for range alarms {
				s.publish(1200)
				before := s.wire.count(blocked)
				s.watermark("0.000001")
				s.await(atOnceWithin, "the worker to be blocked", func() bool { return s.wire.count(blocked) > before })
				s.watermark("0.3")
				s.acknowledgesAgain()
			}
			s.settle(bounds{faults: alarms})
		})
	})
}

// interrupt ends the broker, starts it again and waits for the worker.
func (s *scene) interrupt(end func(context.Context) error) {
	s.t.Helper()
	if err := end(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	before := s.acknowledged()
	if err := s.node.Resume(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	// The worker may be faster than the management API, for which Resume waits.
	s.worksAgain(func() bool { return s.acknowledged() > before })
	s.Broker = s.Reconnect(s.node.URL(s.vhost))
}

// watermark sets the share of the memory above which the broker takes no messages.
func (s *scene) watermark(share string) {
	s.t.Helper()
	if err := s.node.Control(s.t.Context(), "set_vm_memory_high_watermark", share); err != nil {
		s.t.Fatal(err)
	}
}
