package tracing_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testcollector"
	"redrive.dev/redrive/internal/tracing"
)

// journal is a log that tests read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) lines(part string) (found int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, part) {
			found++
		}
	}
	return found
}

// start sets the environment and starts tracing.
func start(t *testing.T, env map[string]string, attributes ...attribute.KeyValue) (trace.TracerProvider, func(), *journal) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	log := &journal{}
	provider, shutdown := tracing.Start(t.Context(), slog.New(slog.NewTextHandler(log, nil)), attributes...)
	return provider, shutdown, log
}

func spans(provider trace.TracerProvider, n int) {
	tracer := provider.Tracer("test")
	for range n {
		_, span := tracer.Start(context.Background(), "work")
		span.End()
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestStart_TracesNothingWithoutTheEnvironment(t *testing.T) {
	provider, shutdown, log := start(t, map[string]string{"OTEL_TRACES_EXPORTER": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""})
	shutdown()
	if provider != nil || log.lines("") > 0 {
		t.Errorf("provider %v, log %s", provider, log.text.String())
	}
}

func TestStart_SendsSpansWithTheirSender(t *testing.T) {
	collector := testcollector.New(t)
	provider, shutdown, log := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
		"OTEL_EXPORTER_OTLP_HEADERS":  "authorization=Bearer%20s3cr3t",
		"OTEL_RESOURCE_ATTRIBUTES":    "deployment.environment.name=staging,redrive.transport=theirs",
	}, attribute.String("redrive.transport", "shop/async"), attribute.String("redrive.worker", "default"))
	spans(provider, 700)
	shutdown()
	if got := len(collector.Named("work")); got != 700 {
		t.Errorf("%d spans came, want 700", got)
	}
	for name, want := range map[string]string{
		"service.name": "redrive-worker", "deployment.environment.name": "staging", "redrive.worker": "default",
		"telemetry.sdk.language": "go", "redrive.transport": "theirs",
	} {
		if got := collector.Resource()[name]; got != want {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
	for _, header := range collector.Requests() {
		if header.Get("Authorization") != "Bearer s3cr3t" || !strings.HasPrefix(header.Get("User-Agent"), "redrive-worker/") {
			t.Errorf("headers %v", header)
		}
	}
	if log.lines("s3cr3t") > 0 || log.lines("traces are on") != 1 {
		t.Errorf("log: %s", log.text.String())
	}
}

func TestStart_NamesTheServiceByTheEnvironment(t *testing.T) {
	collector := testcollector.New(t)
	provider, shutdown, _ := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_SERVICE_NAME": "shop-orders", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
	})
	spans(provider, 1)
	shutdown()
	if got := collector.Resource()["service.name"]; got != "shop-orders" {
		t.Errorf("service.name is %v", got)
	}
}

func TestStart_UsesTheSamplerOfTheEnvironment(t *testing.T) {
	collector := testcollector.New(t)
	provider, shutdown, _ := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_TRACES_SAMPLER": "always_off"})
	spans(provider, 10)
	shutdown()
	if got := len(collector.Spans()); got > 0 {
		t.Errorf("%d spans came", got)
	}
}

func TestStart_SendsSpansOverTLS(t *testing.T) {
	authority := testcert.NewAuthority(t, "collectors")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	collector := testcollector.NewUnstarted()
	collector.Server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	collector.Server.StartTLS()
	t.Cleanup(collector.Server.Close)
	dir := t.TempDir()
	for name, text := range map[string][]byte{"ca.crt": authority.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	provider, shutdown, log := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":           collector.Server.URL,
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        filepath.Join(dir, "ca.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": filepath.Join(dir, "tls.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_KEY":         filepath.Join(dir, "tls.key"),
	})
	spans(provider, 1)
	shutdown()
	if len(collector.Spans()) != 1 {
		t.Errorf("no span came; log: %s", log.text.String())
	}
}

func TestStart_TurnsTracesOffForAnUnsupportedVariable(t *testing.T) {
	for name, value := range map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_RESOURCE_ATTRIBUTES": "no pair"} {
		t.Run(name, func(t *testing.T) {
			provider, shutdown, log := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", name: value})
			shutdown()
			if provider != nil || log.lines("traces are off") != 1 || log.lines(name) != 1 || log.lines("level=ERROR") != 1 {
				t.Errorf("provider %v, log %s", provider, log.text.String())
			}
		})
	}
}

func TestQuiet_TellsOnceOfACollectorThatIsAway(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	provider, shutdown, log := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:s3cr3t@" + address, "OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_TIMEOUT": "200",
	})
	eventually(t, "the log to tell", func() bool {
		spans(provider, 10_000) // more than the queue holds
		return log.lines("spans are lost") > 0
	})
	for range 20 {
		spans(provider, 1000)
	}
	ended := make(chan struct{})
	go func() { shutdown(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Fatal("the end waits for the collector")
	}
	// The cause is that nobody listens, or, on a busy machine, that the time was over before that was known.
	if log.lines("spans are lost") != 1 || log.lines("s3cr3t") > 0 || log.lines("error=") != 1 {
		t.Errorf("log: %s", log.text.String())
	}
}

func TestStart_EndsThoughTheCollectorNeverAnswers(t *testing.T) {
	collector := testcollector.New(t)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(release) })
	collector.Answer(func(*http.Request) int { asked <- struct{}{}; <-release; return http.StatusOK })
	provider, shutdown, log := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_BSP_SCHEDULE_DELAY": "10"})
	spans(provider, 1)
	<-asked
	ended := make(chan struct{})
	go func() { shutdown(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute): // it takes three seconds
		t.Fatal("the end waits for the collector")
	}
	if log.lines("the last spans are lost") != 1 {
		t.Errorf("log: %s", log.text.String())
	}
}

func TestClient_AsksABusyCollectorAgain(t *testing.T) {
	collector := testcollector.New(t)
	var once sync.Once
	collector.Answer(func(*http.Request) int {
		status := http.StatusOK
		once.Do(func() { status = http.StatusServiceUnavailable })
		return status
	})
	provider, shutdown, log := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL})
	spans(provider, 3)
	shutdown()
	if len(collector.Spans()) != 3 || len(collector.Requests()) != 2 || log.lines("lost") > 0 {
		t.Errorf("%d spans in %d requests; log: %s", len(collector.Spans()), len(collector.Requests()), log.text.String())
	}
}

func TestClient_AsksARefusingCollectorOnceForEachBatch(t *testing.T) {
	collector := testcollector.New(t)
	collector.Answer(func(*http.Request) int { return http.StatusForbidden })
	provider, shutdown, log := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_BSP_SCHEDULE_DELAY": "10"})
	defer shutdown()
	spans(provider, 1)
	eventually(t, "the log to tell", func() bool { return log.lines("the collector answered 403 Forbidden") == 1 })
	if got := len(collector.Requests()); got != 1 {
		t.Errorf("%d requests for one batch", got)
	}
	collector.Answer(func(*http.Request) int { return http.StatusOK })
	spans(provider, 1)
	eventually(t, "the log to tell of the end", func() bool { return log.lines("takes spans again") == 1 })
}
