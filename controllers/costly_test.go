package controllers

import (
	"context"
	"errors"
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

func TestWhatFollowsFromASpecCounts(t *testing.T) {
	t.Parallel()
	transport := &v1alpha1.Transport{Spec: v1alpha1.TransportSpec{Queues: slices.Repeat([]v1alpha1.Queue{{
		BindingKeys: slices.Repeat([]string{"key"}, 32),
		Bindings:    slices.Repeat([]v1alpha1.Binding{{Keys: slices.Repeat([]string{"key"}, 32)}}, 16),
	}}, 64)}}
	b := newMemoryBudget(48 << 20) // of which one namespace has two thirds
	run := &transportRun{transport: transport, weighed: b.hold("shop")}
	if err := run.weigh(t.Context(), 0); !errors.Is(err, errBudget) {
		t.Errorf("64 queues with 544 keys each: %v", err)
	}
	run.weighed.release()
	transport.Spec.Queues = transport.Spec.Queues[:8]
	run.weighed = b.hold("shop")
	if err := run.weigh(t.Context(), 128); err != nil {
		t.Errorf("8 queues: %v", err)
	}
}

func TestOneCostlyComparisonOfANamespaceAtATime(t *testing.T) {
	t.Parallel()
	run := &transportRun{slots: &namespaceSlots{busy: make(chan struct{}, 1)}}
	run.slots.busy <- struct{}{} // another one is at it
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	large := topology.Observed{Bindings: make([]topology.Binding, costly+1)}
	if _, err := run.decide(ended, apply.Input{}, large); !errors.Is(err, context.Canceled) {
		t.Errorf("it has not waited: %v", err)
	}
	if _, err := run.decide(ended, apply.Input{}, topology.Observed{}); err != nil {
		t.Errorf("a small one waits: %v", err)
	}
}
