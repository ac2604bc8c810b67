package tracing

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func variables(pairs map[string]string) environment {
	return func(name string) string { return pairs[name] }
}

func TestSettings_AreOffUnlessTheEnvironmentAsksForTraces(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		on   bool
	}{
		{"nothing is set", nil, false},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, true},
		{"an endpoint for traces", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, true},
		{"an endpoint for metrics", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318"}, false},
		{"an empty endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, false},
		{"an exporter", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true},
		{"no exporter", map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, false},
		{"the SDK is disabled", map[string]string{"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, false},
		{"it is not", map[string]string{"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := read(variables(tt.env)); (s != nil) != tt.on || err != nil {
				t.Errorf("on %v, error %v; want on %v", s != nil, err, tt.on)
			}
		})
	}
}

func TestSettings_TakeTheEndpointOfTheEnvironment(t *testing.T) {
	const all, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	tests := []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces"},
		{map[string]string{all: "http://c:4318"}, "http://c:4318/v1/traces"},
		{map[string]string{all: "https://c/otlp/"}, "https://c/otlp/v1/traces"},
		{map[string]string{traces: "http://c:4318/here"}, "http://c:4318/here"},
		{map[string]string{traces: "http://c:4318"}, "http://c:4318/"},
		{map[string]string{all: "http://c:4318", traces: "http://d:4318/v1/traces"}, "http://d:4318/v1/traces"},
	}
	for _, tt := range tests {
		s, err := read(variables(tt.env))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.endpoint.String(); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.env, got, tt.want)
		}
	}
}

func TestSettings_TakeHeadersTimeoutAndCompression(t *testing.T) {
	s, err := read(variables(map[string]string{
		"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_HEADERS": "x-other=1",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS": " authorization = Bearer%20a%3Db , x-tenant=shop,",
		"OTEL_EXPORTER_OTLP_TIMEOUT":        "2500", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Authorization": {"Bearer a=b"}, "X-Tenant": {"shop"}}
	if len(s.headers) != 2 || s.headers.Get("Authorization") != want.Get("Authorization") || s.headers.Get("X-Tenant") != "shop" {
		t.Errorf("headers %v, want %v", s.headers, want)
	}
	if s.timeout != 2500*time.Millisecond || !s.gzip {
		t.Errorf("timeout %s, gzip %v", s.timeout, s.gzip)
	}
}

func TestSettings_NameABadVariableAndShowNoSecret(t *testing.T) {
	const secret = "s3cr3t"
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ variable, value, want string }{
		{"OTEL_TRACES_EXPORTER", "zipkin", `OTEL_TRACES_EXPORTER is "zipkin": it is otlp or none`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": only http/protobuf is spoken here`},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json"`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL, such as http://localhost:4318"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://u:" + secret + "@c", "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:" + secret + "@c:port", "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=1," + secret, "OTEL_EXPORTER_OTLP_HEADERS: entry 2 is not name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=%zz" + secret, "OTEL_EXPORTER_OTLP_HEADERS: entry 1 is not name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=%0Ax:" + secret, "OTEL_EXPORTER_OTLP_HEADERS: entry 1 is not name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a b=" + secret, "OTEL_EXPORTER_OTLP_HEADERS: entry 1 is not name=value"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", `OTEL_EXPORTER_OTLP_TIMEOUT is "10s": it is a number of milliseconds`},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "0", `OTEL_EXPORTER_OTLP_TIMEOUT is "0"`},
		{"OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", `OTEL_EXPORTER_OTLP_COMPRESSION is "zstd": it is gzip or none`},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.crt", "OTEL_EXPORTER_OTLP_CERTIFICATE: open /nowhere/ca.crt"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", empty, "holds no certificate in PEM"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY", "/nowhere/tls.key", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY: "},
		{"OTEL_TRACES_SAMPLER", "sometimes", `OTEL_TRACES_SAMPLER is "sometimes": it is always_on`},
	}
	for _, tt := range tests {
		t.Run(tt.variable+" "+tt.want, func(t *testing.T) {
			env := map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}
			env[tt.variable] = tt.value
			s, err := read(variables(env))
			if s != nil || err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func TestCheckSampler_RefusesWhatItDoesNotKnow(t *testing.T) {
	tests := []struct {
		sampler, argument string
		wrong             bool
	}{
		{"", "", false},
		{"always_off", "", false},
		{"Parentbased_Always_On", "", false},
		{"traceidratio", "0.25", false},
		{"traceidratio", "", false},
		{"parentbased_traceidratio", "1", false},
		{"traceidratio", "25%", true},
		{"traceidratio", "NaN", true},
		{"parentbased_traceidratio", "1.1", true},
		{"always_on", "not read", false},
		{"jaeger_remote", "", true},
	}
	for _, tt := range tests {
		_, err := read(variables(map[string]string{
			"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": tt.sampler, "OTEL_TRACES_SAMPLER_ARG": tt.argument,
		}))
		if (err != nil) != tt.wrong {
			t.Errorf("%q, %q: error %v", tt.sampler, tt.argument, err)
		}
	}
}
