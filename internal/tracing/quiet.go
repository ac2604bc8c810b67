package tracing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// sayEvery is how often the log says that spans are lost.
const sayEvery = time.Minute

// quiet is an exporter that tells of its failures in the log, once a minute, and nobody else: the SDK would hand each of them to
// a handler that is the whole process's.
type quiet struct {
	sdk.SpanExporter

	log *slog.Logger
	now func() time.Time

	mu sync.Mutex
	// lost spans that the log has not been told of.
	lost int
	said time.Time
	// failing is true from when the log was told of a failure until it was told of the next success.
	failing bool
}

func newQuiet(exporter sdk.SpanExporter, log *slog.Logger, now func() time.Time) *quiet {
	return &quiet{SpanExporter: exporter, log: log, now: now}
}

// ExportSpans implements sdk.SpanExporter. It never fails.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil {
		if q.failing {
			q.failing = false
			q.log.Info("the collector takes spans again")
		}
		return nil
	}
	q.lost += len(spans)
	if now := q.now(); q.said.IsZero() || now.Sub(q.said) >= sayEvery {
		q.log.Warn("spans are lost: the collector does not take them", "spans", q.lost, "error", err)
		q.lost, q.said, q.failing = 0, now, true
	}
	return nil
}
