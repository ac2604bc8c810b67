package worker

import (
	"context"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// aJob is one with a producer's context, as in the middle of the pipeline.
func aJob() *job {
	headers := map[string]any{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1", "tenant": "acme"}
	return &job{
		delivery: &amqp.Delivery{Message: message.Message{Headers: headers, Body: []byte("{}")}}, queue: &compile.Queue{Name: "orders"},
		state: message.State{ID: "m-1", RoutingKey: "order.paid"}, view: retry.Message{Headers: headers},
	}
}

func TestTrace_AllocatesNothingWhenItIsOff(t *testing.T) {
	w, j := &Worker{tracer: newTracer(nil)}, aJob()
	ctx := context.Background()
	allocations := testing.AllocsPerRun(1000, func() {
		if w.trace(ctx, j) != ctx {
			t.Fatal("another context")
		}
		j.ended(outcome{kind: succeeded}, nil)
	})
	if allocations > 0 || j.traced.parent == "" {
		t.Errorf("%v allocations, parent %q", allocations, j.traced.parent)
	}
}

func BenchmarkTracesOfAnAttempt(b *testing.B) {
	for name, w := range map[string]*Worker{
		"off":         {tracer: newTracer(nil)},
		"on":          {tracer: newTracer(sdk.NewTracerProvider())},
		"not sampled": {tracer: newTracer(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample())))},
	} {
		b.Run(name, func(b *testing.B) {
			j, ctx := aJob(), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				w.trace(ctx, j)
				j.ended(outcome{kind: succeeded}, nil)
			}
		})
	}
}
