package worker_test

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcollector"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/tracing"
)

// A producer's context, as its instrumentation writes it.
const (
	producersTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	producersSpan   = "00f067aa0ba902b7"
	producersParent = "00-" + producersTrace + "-" + producersSpan + "-01"
	producersState  = "vendor=value"
)

// traceState starts a rig's worker anew, with a collector for its spans.
func traceState(t *testing.T, r *rig, env map[string]string) *testcollector.Collector {
	t.Helper()
	collector := testcollector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	for name, value := range env {
		t.Setenv(name, value)
	}
	provider, shutdown := tracing.Start(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(shutdown)
	r.stop()
	r.traces = provider
	r.start(nil)
	return collector
}

func twice(status int) func(*http.Request, int) int {
	return func(_ *http.Request, attempt int) int {
		if attempt < 3 {
			return status
		}
		return 200
	}
}

func TestTrace_EachAttemptIsASpanLinkedToTheOneBefore(t *testing.T) {
	p := newPartner(t, twice(502))
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{
		MessageId: "m-1", CorrelationId: "c-1", Body: []byte("secret body"),
		Headers: amqp091.Table{"traceparent": producersParent, "tracestate": []byte(producersState), "x-token": "secret header"},
	})
	testtransport.Eventually(t, "the spans of all attempts", func() bool { return len(collector.Named("process test")) == 3 })
	spans := collector.Named("process test")
	for i, span := range spans {
		if hex.EncodeToString(span.GetTraceId()) != producersTrace || hex.EncodeToString(span.GetParentSpanId()) != producersSpan {
			t.Errorf("attempt %d is not in the producer's trace: %v", i+1, span)
		}
		want := map[string]any{
			"messaging.system": "rabbitmq", "messaging.operation.type": "process", "messaging.operation.name": "process",
			"messaging.destination.name": "test", "messaging.rabbitmq.destination.routing_key": "test", "messaging.message.id": "m-1",
			"messaging.message.conversation_id": "c-1", "messaging.message.body.size": int64(11), "redrive.attempt": int64(i + 1),
			"redrive.outcome": "retried", "error.type": "502", "redrive.error.source": "Handler",
		}
		status := tracepb.Status_STATUS_CODE_ERROR
		if i == 2 {
			delete(want, "error.type")
			delete(want, "redrive.error.source")
			want["redrive.outcome"], status = "succeeded", tracepb.Status_STATUS_CODE_UNSET
		}
		if got := span.Attributes; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("attempt %d has the attributes %v, want %v", i+1, got, want)
		}
		if span.GetKind() != tracepb.Span_SPAN_KIND_CONSUMER || span.GetStatus().GetCode() != status || span.GetTraceState() != producersState {
			t.Errorf("attempt %d: kind %s, status %s, state %q", i+1, span.GetKind(), span.GetStatus(), span.GetTraceState())
		}
		links := span.GetLinks()
		if i == 0 && len(links) > 0 || i > 0 && (len(links) != 1 || !slices.Equal(links[0].GetSpanId(), spans[i-1].GetSpanId()) ||
			!slices.Equal(links[0].GetTraceId(), spans[i-1].GetTraceId())) {
			t.Errorf("attempt %d has the links %v", i+1, links)
		}
		request := p.got()[i].header
		if request.Get("Traceparent") != span.Traceparent()+"-01" || request.Get("Tracestate") != producersState {
			t.Errorf("the handler of attempt %d got %q, %q; want %s", i+1, request.Get("Traceparent"), request.Get("Tracestate"), span.Traceparent())
		}
	}
	testtransport.Eventually(t, "the spans of settling", func() bool { return len(collector.Named("settle test")) == 2 })
	for i, span := range collector.Named("settle test") {
		if !slices.Equal(span.GetParentSpanId(), spans[i].GetSpanId()) || span.GetStartTimeUnixNano() < spans[i].GetEndTimeUnixNano() {
			t.Errorf("settling %d is not the child of its attempt: %v", i+1, span)
		}
	}
	if all := fmt.Sprint(collector.Spans()); strings.Contains(all, "secret") {
		t.Errorf("the spans hold what is in the message: %s", all)
	}
}

func TestTrace_BeginsWithEachAttemptWithoutAContext(t *testing.T) {
	p := newPartner(t, twice(500))
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{Headers: amqp091.Table{"traceparent": "no context"}})
	testtransport.Eventually(t, "the spans of all attempts", func() bool { return len(collector.Named("process test")) == 3 })
	spans := collector.Named("process test")
	for i, span := range spans {
		if len(span.GetParentSpanId()) > 0 || i > 0 && (slices.Equal(span.GetTraceId(), spans[i-1].GetTraceId()) || len(span.GetLinks()) != 1) {
			t.Errorf("attempt %d: %v", i+1, span)
		}
	}
}

func TestTrace_SpanAndContextStayOnAMessageThatIsGivenUp(t *testing.T) {
	p := newPartner(t, always(500))
	policy := testtransport.Explicit(time.Second)
	policy.Strategies = []v1alpha1.Strategy{{Name: "hopeless", When: "error.status == 500", Action: v1alpha1.ActionFail}}
	r := newRigAlone(t, p, policy, nil)
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{Headers: amqp091.Table{"traceparent": producersParent}})
	testtransport.Eventually(t, "the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	failed := r.Take("async.failed")
	testtransport.Eventually(t, "the span", func() bool { return len(collector.Named("process test")) == 1 })
	span := collector.Named("process test")[0]
	if got := text(t, failed.Headers, "redrive-traceparent"); got != span.Traceparent()+"-01" {
		t.Errorf("the message has the span %s, want %s", got, span.Traceparent())
	}
	if got := text(t, failed.Headers, "traceparent"); got != producersParent {
		t.Errorf("the producer's context became %s", got)
	}
	if a := span.Attributes; a["redrive.outcome"] != "failed" || a["redrive.strategy"] != "hopeless" || a["redrive.reason"] != "Strategy" {
		t.Errorf("attributes %v", a)
	}
}

func TestTrace_TriesAtOnceHaveSpans(t *testing.T) {
	p := newPartner(t, twice(500))
	policy := testtransport.Explicit(time.Second)
	policy.Immediate = new(int32(2))
	r := newRigAlone(t, p, policy, nil)
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the spans of all attempts", func() bool { return len(collector.Named("process test")) == 3 })
	for i, span := range collector.Named("process test") {
		if span.Attributes["redrive.attempt"] != int64(i+1) || (len(span.GetLinks()) == 1) != (i > 0) {
			t.Errorf("attempt %d: %v", i+1, span)
		}
	}
	if settled := collector.Named("settle test"); len(settled) > 0 {
		t.Errorf("nothing was published, and yet there is %v", settled)
	}
}

func TestTrace_LinksTheAttemptsInAStrictQueue(t *testing.T) {
	p := newPartner(t, twice(500))
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	})
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{MessageId: "m-1"})
	testtransport.Eventually(t, "the spans of all attempts", func() bool { return len(collector.Named("process test")) == 3 })
	spans := collector.Named("process test")
	for i := 1; i < 3; i++ {
		if links := spans[i].GetLinks(); len(links) != 1 || !slices.Equal(links[0].GetSpanId(), spans[i-1].GetSpanId()) {
			t.Errorf("attempt %d has the links %v", i+1, links)
		}
	}
}

func TestTrace_NotSampledStaysSo(t *testing.T) {
	p := newPartner(t, twice(500))
	r := newRigAlone(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	collector := traceState(t, r, nil)
	parent := strings.TrimSuffix(producersParent, "01") + "00"
	r.publish(amqp091.Publishing{Headers: amqp091.Table{"traceparent": parent}}, amqp091.Publishing{MessageId: "sampled"})
	testtransport.Eventually(t, "all attempts", func() bool { return len(p.got()) == 6 })
	testtransport.Eventually(t, "the spans of the other message", func() bool { return len(collector.Named("process test")) == 3 })
	r.empty()
	for _, span := range collector.Spans() {
		if hex.EncodeToString(span.GetTraceId()) == producersTrace {
			t.Errorf("it is sampled all the same: %v", span)
		}
	}
	for _, request := range p.got() {
		if got := request.header.Get("Traceparent"); !strings.HasPrefix(got, "00-"+producersTrace) && request.header.Get("Redrive-Message-Id") != "sampled" ||
			strings.HasSuffix(got, "-00") != strings.HasPrefix(got, "00-"+producersTrace) {
			t.Errorf("the handler got %q", got)
		}
	}
}

func TestTrace_HandsOnTheProducersContextWhenItIsOff(t *testing.T) {
	p := newPartner(t, twice(500))
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	r.publish(amqp091.Publishing{Headers: amqp091.Table{"traceparent": []byte(producersParent), "tracestate": producersState}})
	testtransport.Eventually(t, "all attempts", func() bool { return len(p.got()) == 3 })
	for _, request := range p.got() {
		if request.header.Get("Traceparent") != producersParent || request.header.Get("Tracestate") != producersState {
			t.Errorf("the handler got %q, %q", request.header.Get("Traceparent"), request.header.Get("Tracestate"))
		}
	}
}

func TestTrace_NamesThatAreNoTextCostNoSpans(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRigAlone(t, p, testtransport.Explicit(time.Second), nil)
	collector := traceState(t, r, nil)
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{MessageId: "\xff\xfe", CorrelationId: "\x80", Headers: amqp091.Table{"redrive-routing-key": "\xc3("}}, amqp091.Publishing{MessageId: "text"})
	testtransport.Eventually(t, "both spans", func() bool { return len(collector.Named("process test")) == 2 })
}

func TestTrace_HoldsUpNoMessageWhileTheCollectorIsAway(t *testing.T) {
	const messages = 3000
	p := newPartner(t, always(200))
	r := newRigAlone(t, p, testtransport.Explicit(time.Second), nil)
	collector := traceState(t, r, map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8"})
	asked, release := make(chan struct{}, messages), make(chan struct{})
	t.Cleanup(func() { close(release) })
	collector.Answer(func(*http.Request) int { asked <- struct{}{}; <-release; return 200 })
	r.publish(amqp091.Publishing{})
	<-asked // and it is not answered until the end of the test
	r.publish(make([]amqp091.Publishing, messages)...)
	testtransport.Eventually(t, "all attempts", func() bool { return len(p.got()) == messages+1 })
	r.empty()
	r.stop()
}
