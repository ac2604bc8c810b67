package controllers

import (
	"errors"
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/tenancy"
)

func TestWeigh_CountsWhatFollowsFromASpec(t *testing.T) {
	t.Parallel()
	transport := &v1alpha1.Transport{Spec: v1alpha1.TransportSpec{Queues: slices.Repeat([]v1alpha1.Queue{{
		BindingKeys: slices.Repeat([]string{"key"}, 32),
		Bindings:    slices.Repeat([]v1alpha1.Binding{{Keys: slices.Repeat([]string{"key"}, 32)}}, 16),
	}}, 64)}}
	b := tenancy.NewMemory(48 << 20) // of which one namespace has half
	run := &transportRun{transport: transport, weighed: b.Reserve("shop")}
	if err := run.weigh(t.Context(), 0); !errors.Is(err, tenancy.ErrMemory) {
		t.Errorf("64 queues with 544 keys each: %v", err)
	}
	run.weighed.Release()
	transport.Spec.Queues = transport.Spec.Queues[:8]
	run.weighed = b.Reserve("shop")
	if err := run.weigh(t.Context(), 128); err != nil {
		t.Errorf("8 queues: %v", err)
	}
}
