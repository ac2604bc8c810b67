package worker

import (
	"context"
	"log/slog"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// instrumentation names what makes the spans.
const instrumentation = "redrive.dev/redrive/internal/worker"

// maxAttribute bounds what comes from a message into a span; it is the longest short string of AMQP.
const maxAttribute = 255

// traceState is what a job knows of its trace. It is empty where traces are off.
type traceState struct {
	// parent and state are the W3C trace context that the handler gets: that of the attempt, or the producer's where it is not
	// traced.
	parent, state string
	// span of the attempt that goes on; nil between attempts.
	span trace.Span
	// last is the span of the last attempt.
	last trace.SpanContext
}

// traceparentOf and tracestateOf are the keys of W3C Trace Context.
const (
	traceparentOf = "traceparent"
	tracestateOf  = "tracestate"
)

// newTracer is nil where there is no provider.
func newTracer(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		return nil
	}
	return provider.Tracer(instrumentation, trace.WithSchemaURL(semconv.SchemaURL))
}

// trace begins the span of an attempt, in the trace of whoever published the message. Attempts are linked: each to the one
// before it, whose span came along in a header.
func (w *Worker) trace(ctx context.Context, j *job) context.Context {
	j.traced.parent, j.traced.state = message.TraceContext(j.view.Headers)
	if w.tracer == nil {
		return ctx
	}
	carrier := propagation.MapCarrier{traceparentOf: j.traced.parent, tracestateOf: j.traced.state}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(j.attributes()...)}
	if before := spanContext(j.state.Traceparent); before.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: before}))
	}
	ctx, span := w.tracer.Start(ctx, "process "+message.Text(j.queue.Name, maxAttribute), options...)
	j.traced.span, j.traced.last = span, span.SpanContext()

	carrier = propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	j.traced.parent, j.traced.state = carrier[traceparentOf], carrier[tracestateOf]
	j.state.Traceparent = ""
	if j.traced.last.IsSampled() { // to another one there is nothing to link
		j.state.Traceparent = j.traced.parent
	}
	return ctx
}

// ended ends the span of an attempt with what became of it, and gives that back. failure is nil where the attempt succeeded.
func (j *job) ended(o outcome, failure *retry.Failure) outcome {
	span := j.traced.span
	if span == nil {
		return o
	}
	j.traced.span = nil
	defer span.End()
	if !span.IsRecording() {
		return o
	}
	span.SetAttributes(attribute.String("redrive.outcome", string(o.kind)))
	if o.strategy != "" {
		span.SetAttributes(attribute.String("redrive.strategy", o.strategy))
	}
	if o.final.Reason != "" {
		span.SetAttributes(attribute.String("redrive.reason", string(o.final.Reason)))
	}
	switch {
	case failure != nil:
		kind := errorType(failure)
		span.SetAttributes(semconv.ErrorTypeKey.String(kind), attribute.String("redrive.error.source", string(failure.Source)))
		// No text of the handler: it may hold what was in the message.
		span.SetStatus(codes.Error, kind)
	case o.kind == failed: // by a defect of ours
		span.SetStatus(codes.Error, string(o.final.Reason))
	}
	return o
}

// traceSettling is settle with a span of its own where the broker has to confirm what becomes of the message.
func (w *Worker) traceSettling(ctx context.Context, j *job, o *outcome) bool {
	if w.tracer == nil || !j.attempted || !j.publishes(*o) {
		return w.settle(ctx, j, o)
	}
	spanCtx, span := w.tracer.Start(trace.ContextWithSpanContext(ctx, j.traced.last), "settle "+message.Text(j.queue.Name, maxAttribute),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationTypeSettle, semconv.MessagingOperationName("settle"),
			semconv.MessagingDestinationName(message.Text(j.queue.Name, maxAttribute)),
			attribute.String("redrive.outcome", string(o.kind))))
	defer span.End()
	settled := w.settle(spanCtx, j, o)
	if !settled {
		span.SetStatus(codes.Error, "the broker has the message again")
	}
	return settled
}

// attributes describe a message, but for its body and the values of its headers. The broker's names may hold any bytes, and
// one that is no UTF-8 would cost all the spans that are sent with it.
func (j *job) attributes() []attribute.KeyValue {
	queue := message.Text(j.queue.Name, maxAttribute)
	all := make([]attribute.KeyValue, 0, 12)
	all = append(all,
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(queue),
		semconv.MessagingRabbitMQDestinationRoutingKey(message.Text(j.state.RoutingKey, maxAttribute)),
		semconv.MessagingMessageID(message.Text(j.state.ID, maxAttribute)),
		semconv.MessagingMessageBodySize(len(j.delivery.Body)),
		attribute.Int64("redrive.attempt", j.state.History.Attempts+1),
	)
	if id := j.delivery.CorrelationID; id != "" {
		all = append(all, semconv.MessagingMessageConversationID(message.Text(id, maxAttribute)))
	}
	return all
}

// errorType is the failure's kind, in few different words.
func errorType(failure *retry.Failure) string {
	switch {
	case failure.Class != "":
		return message.Text(failure.Class, message.MaxClass)
	case failure.Status != 0:
		return strconv.Itoa(failure.Status)
	default:
		return string(failure.Source)
	}
}

// spanContext reads a traceparent; what is none gives one that is not valid.
func spanContext(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparentOf: traceparent})
	return trace.SpanContextFromContext(ctx)
}

// logFor is the log for what happens to a message: with the id of its trace, where that is kept.
func (w *Worker) logFor(j *job) *slog.Logger {
	if !j.traced.last.IsSampled() {
		return w.options.Log
	}
	return w.options.Log.With("trace_id", j.traced.last.TraceID().String())
}
