// Package testcollector is a collector of OpenTelemetry traces for tests: it takes OTLP over HTTP in protobuf and keeps the spans.
package testcollector

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector keeps what it gets.
type Collector struct {
	// URL of it, for OTEL_EXPORTER_OTLP_ENDPOINT.
	URL    string
	Server *httptest.Server

	mu       sync.Mutex
	answer   func(*http.Request) int
	spans    []Span
	resource map[string]any
	requests []http.Header
}

// Span is one as it came over the wire.
type Span struct {
	*tracepb.Span

	// Attributes by their names: string, int64, float64 or bool.
	Attributes map[string]any
	// Scope is the name of the instrumentation.
	Scope string
}

// New starts a collector that takes everything.
func New(t testing.TB) *Collector {
	t.Helper()
	c := NewUnstarted()
	c.Server.Start()
	c.URL = c.Server.URL
	t.Cleanup(c.Server.Close)
	return c
}

// NewUnstarted makes a collector whose server is not started, to be started with TLS.
func NewUnstarted() *Collector {
	c := &Collector{answer: func(*http.Request) int { return http.StatusOK }}
	c.Server = httptest.NewUnstartedServer(c)
	return c
}

// Answer sets the status with which requests are answered. Spans are kept where it is 200.
func (c *Collector) Answer(answer func(*http.Request) int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// Hang leaves requests without an answer until release is closed.
func (c *Collector) Hang(release <-chan struct{}) {
	c.Answer(func(*http.Request) int { <-release; return http.StatusOK })
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	answer := c.answer
	c.requests = append(c.requests, r.Header.Clone())
	c.mu.Unlock()
	status := answer(r)
	if status == http.StatusOK {
		status = c.keep(r)
	}
	w.WriteHeader(status)
}

func (c *Collector) keep(r *http.Request) int {
	if r.URL.Path != "/v1/traces" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return http.StatusNotFound
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return http.StatusBadRequest
		}
		body = unpacked
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return http.StatusBadRequest
	}
	var traces tracepb.TracesData
	if err := proto.Unmarshal(data, &traces); err != nil {
		return http.StatusBadRequest
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range traces.GetResourceSpans() {
		c.resource = values(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, Span{Span: span, Attributes: values(span.GetAttributes()), Scope: scope.GetScope().GetName()})
			}
		}
	}
	return http.StatusOK
}

// Spans are those that came, the first that began first.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := slices.Clone(c.spans)
	slices.SortStableFunc(spans, func(a, b Span) int { return int(a.GetStartTimeUnixNano()) - int(b.GetStartTimeUnixNano()) }) //nolint:gosec // of this century
	return spans
}

// Named are the spans of a name.
func (c *Collector) Named(name string) []Span {
	return slices.DeleteFunc(c.Spans(), func(s Span) bool { return s.GetName() != name })
}

// Resource that sent the last spans, by the names of its attributes.
func (c *Collector) Resource() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource
}

// Requests are the headers of all requests, the refused ones too.
func (c *Collector) Requests() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// Traceparent of a span, as W3C writes it, but for its flags.
func (s Span) Traceparent() string {
	return "00-" + hex.EncodeToString(s.GetTraceId()) + "-" + hex.EncodeToString(s.GetSpanId())
}

func values(attributes []*commonpb.KeyValue) map[string]any {
	all := make(map[string]any, len(attributes))
	for _, attribute := range attributes {
		switch v := attribute.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			all[attribute.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			all[attribute.GetKey()] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			all[attribute.GetKey()] = v.DoubleValue
		case *commonpb.AnyValue_BoolValue:
			all[attribute.GetKey()] = v.BoolValue
		}
	}
	return all
}
