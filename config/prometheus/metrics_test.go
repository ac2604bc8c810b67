package prometheus_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/controllers"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/worker"
)

var update = flag.Bool("update", false, "write testdata anew")

// exported is what a manager and a worker register, by which hack/monitoring judges the alerts and the dashboard.
const exported = "testdata/exported.txt"

func TestMain(m *testing.M) { testcluster.Main(m) }

// A rule on a metric or a label that is gone would never fire. The list is what the programs register; nobody writes it.
func TestMetricsList_IsWhatManagerAndWorkerExport(t *testing.T) {
	if testing.Short() {
		return // it needs an API server
	}
	var text strings.Builder
	text.WriteString("# What a manager and a worker register: who, name, labels. Written by `go test ./config/prometheus -update`.\n")
	for _, program := range []struct {
		name  string
		lines []string
	}{{"manager", managersMetrics(t)}, {"worker", workersMetrics(t)}} {
		for _, line := range program.lines {
			fmt.Fprintln(&text, program.name, line)
		}
	}
	if *update {
		if err := os.WriteFile(exported, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	known, err := os.ReadFile(exported)
	if err != nil {
		t.Fatal(err)
	}
	if string(known) != text.String() {
		t.Errorf("%s is out of date: go test ./config/prometheus -update writes\n%s", exported, text.String())
	}
}

// managersMetrics are those of a manager with Redrive's controllers, on a real API server.
func managersMetrics(t *testing.T) []string {
	t.Helper()
	mgr, err := ctrl.NewManager(testcluster.Start(t).Config, ctrl.Options{
		Scheme: controllers.NewScheme(), Client: objectcache.ClientOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := controllers.Setup(t.Context(), mgr, controllers.Options{}); err != nil {
		t.Fatal(err)
	}
	registry, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatalf("%T does not describe its metrics", metrics.Registry)
	}
	return described(t, registry)
}

// workersMetrics are those of a worker, with all kinds of handler.
func workersMetrics(t *testing.T) []string {
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
	return described(t, registry)
}

// described are name and labels of each metric that can be of use here. Those of Go and of the process differ by platform.
func described(t *testing.T, collector prometheus.Collector) []string {
	t.Helper()
	descriptions := make(chan *prometheus.Desc)
	go func() {
		collector.Describe(descriptions)
		close(descriptions)
	}()
	parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{(.*)\}\}$`)
	found := map[string]bool{}
	for description := range descriptions {
		match := parts.FindStringSubmatch(description.String())
		if match == nil {
			t.Fatalf("%s is not understood", description)
		}
		if regexp.MustCompile(`^(redrive|controller_runtime|leader_election|workqueue)_`).MatchString(match[1]) {
			found[strings.TrimSpace(match[1]+" "+strings.ReplaceAll(match[2], ",", " "))] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
