package docs_test

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/worker"
)

const telemetryPage = "docs/telemetry.md"

// workersMetrics are the labels of all metrics that a worker registers, by the names of the metrics: its own and those of every
// kind of handler.
func workersMetrics(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	worker.NewMetrics(registry)
	for _, spec := range []v1alpha1.Handler{
		{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1:9/"}},
		{Exec: &v1alpha1.ExecHandler{Command: []string{"true"}}},
		{Process: &v1alpha1.ProcessHandler{Command: []string{"true"}}},
		{InProcess: &v1alpha1.InProcessHandler{}},
	} {
		program := public.Func(func(context.Context, *public.Message) error { return nil })
		made, err := handler.New(spec, handler.Options{Concurrency: 1, Version: "test", Program: program, Metrics: registry})
		if err != nil {
			t.Fatal(err)
		}
		if err := made.Close(); err != nil {
			t.Fatal(err)
		}
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{(.*)\}\}$`)
	found := map[string][]string{}
	for description := range descriptions {
		match := parts.FindStringSubmatch(description.String())
		if match == nil {
			t.Fatalf("%s is not understood", description)
		}
		found[match[1]] = strings.FieldsFunc(match[2], func(r rune) bool { return r == ',' })
	}
	return found
}

// documentedMetrics are those in the table of the page: type and labels by name.
func documentedMetrics(t *testing.T) (types map[string]string, labels map[string][]string) {
	t.Helper()
	types, labels = map[string]string{}, map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `(redrive_\\w+)` \\| (\\w+) \\|([^|]*)\\|")
	word := regexp.MustCompile("`([a-z]+)`")
	for _, match := range row.FindAllStringSubmatch(read(t, telemetryPage), -1) {
		types[match[1]], labels[match[1]] = match[2], nil
		// After a colon or a semicolon stand values.
		names, _, _ := strings.Cut(strings.ReplaceAll(match[3], ";", ":"), ":")
		for _, label := range word.FindAllStringSubmatch(names, -1) {
			labels[match[1]] = append(labels[match[1]], label[1])
		}
	}
	return types, labels
}

func TestDocs_StateTheMetricsOfWorkers(t *testing.T) {
	registered := workersMetrics(t)
	types, documented := documentedMetrics(t)
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		labels, there := documented[name]
		switch {
		case !there:
			t.Errorf("%s: %s is not in the table", telemetryPage, name)
		case !slices.Equal(labels, registered[name]):
			t.Errorf("%s: %s has the labels %v, not %v", telemetryPage, name, registered[name], labels)
		case strings.HasSuffix(name, "_total") != (types[name] == "counter"):
			t.Errorf("%s: %s is no %s", telemetryPage, name, types[name])
		}
	}
	for name := range documented {
		if _, there := registered[name]; !there {
			t.Errorf("%s: no worker has %s", telemetryPage, name)
		}
	}
}

func TestDocs_NameEveryVariableOfTraces(t *testing.T) {
	for _, name := range in(t, "internal/tracing/settings.go", `forTraces\("(\w+)"\)`) {
		mentioned(t, telemetryPage, "OTEL_EXPORTER_OTLP_"+name)
	}
	mentioned(t, telemetryPage, in(t, "internal/tracing/settings.go", `"(OTEL_[A-Z_]*[A-Z])"`)...)
}

func TestDocs_NameEveryAttributeOfSpans(t *testing.T) {
	mentioned(t, telemetryPage, in(t, "internal/worker/tracing.go", `"(redrive\.[a-z.]+)"`)...)
}
