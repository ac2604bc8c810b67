// Package tracing sets up OpenTelemetry traces as the standard environment variables say. They are off unless
// OTEL_TRACES_EXPORTER or an endpoint is set, and off too where a variable cannot be followed: the log says which, and the
// program goes on.
//
// Spans go to a collector by OTLP over HTTP in protobuf. The transport is this package's own, because the official one brings
// all of gRPC with it, six megabytes; the spans on the wire are written by the official code.
package tracing

import (
	"context"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"redrive.dev/redrive/internal/version"
)

const (
	// serviceName is that of a worker where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name none.
	serviceName = "redrive-worker"
	// flushTime is how long the end of the program waits for the last spans.
	flushTime = 3 * time.Second
)

// Transport is the Transport, as namespace/name, that a process works for.
func Transport(name string) attribute.KeyValue { return attribute.String("redrive.transport", name) }

// Worker is the worker group that a process belongs to.
func Worker(name string) attribute.KeyValue { return attribute.String("redrive.worker", name) }

// Start gives what makes spans, nil where traces are off. attributes describe this process, beside those in
// OTEL_RESOURCE_ATTRIBUTES. shutdown sends what is left, and takes three seconds at most; it is never nil.
//
// Spans wait in a bounded queue and are sent in the background: while the collector is away or slow they are lost, and
// nobody waits for them.
func Start(ctx context.Context, log *slog.Logger, attributes ...attribute.KeyValue) (provider trace.TracerProvider, shutdown func()) {
	off := func() {}
	s, err := read(os.Getenv)
	if err != nil {
		log.Error("traces are off", "error", err)
		return nil, off
	}
	if s == nil {
		return nil, off
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(serviceName), semconv.ServiceVersion(version.Version())),
		resource.WithAttributes(attributes...),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv())
	if err != nil {
		log.Error("traces are off", "error", "OTEL_RESOURCE_ATTRIBUTES is not a list of name=value")
		return nil, off
	}
	quiet := newQuiet(otlptrace.NewUnstarted(newClient(s)), log, time.Now)
	made := sdk.NewTracerProvider(sdk.WithBatcher(quiet), sdk.WithResource(described))
	log.Info("traces are on", "collector", s.endpoint.Host)
	return made, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
		if err := made.Shutdown(ctx); err != nil {
			log.Warn("the last spans are lost: the collector has not taken them in time", "collector", s.endpoint.Host)
		}
	}
}
