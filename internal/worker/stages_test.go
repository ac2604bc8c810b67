package worker_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/worker"
)

// bare is a configuration in which nothing may be left out.
func bare() compile.Config {
	return compile.Config{
		Version: 1, Transport: "default/async", Worker: "default", Concurrency: 1, Timeout: *v1alpha1.NewDuration(time.Second),
		Exchanges: compile.Exchanges{Fallback: "async.fallback", Return: "async.return", Failed: "async.failed"},
		Queues:    []compile.Queue{{Name: "test", Policy: "default"}},
		Policies:  map[string]v1alpha1.RetryPolicySpec{"default": {MaxRetries: new(int32(0))}},
	}
}

// guarded is one in which nothing is left out.
func guarded() compile.Config {
	config := bare()
	config.Lanes = retry.Lanes{time.Second}
	config.RateLimits = []compile.RateLimit{{Name: "all", PerSecond: 1, Burst: 1}}
	config.RetryBudget = &compile.RetryBudget{Percent: 20, Window: *v1alpha1.NewDuration(time.Second), MinPerSecond: 1}
	config.CircuitBreaker = &compile.CircuitBreaker{
		FailurePercent: 50, MinimumCalls: 10, Window: *v1alpha1.NewDuration(time.Second), OpenFor: *v1alpha1.NewDuration(time.Second),
		MaxOpenFor: *v1alpha1.NewDuration(time.Second),
	}
	return config
}

// idle is a worker that does not run, and its log.
func idle(t *testing.T, config compile.Config) (*worker.Worker, *bytes.Buffer, http.Handler) {
	t.Helper()
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	w, err := worker.New(worker.Options{
		Config: config, Now: time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(registry), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Handlers: func(v1alpha1.Handler, int) (handler.Handler, error) { return newProgram(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, &log, w.Endpoints(registry)
}

// told is what a worker says of itself at /status.
func told(t *testing.T, endpoints http.Handler) (status compile.WorkerStatus) {
	t.Helper()
	answer := httptest.NewRecorder()
	endpoints.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status", http.NoBody))
	if err := json.Unmarshal(answer.Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	return status
}

func TestPipeline_IsShownInTheStatusAndTheLog(t *testing.T) {
	t.Parallel()
	strict := guarded()
	strict.Queues[0].Strict = v1alpha1.OnFailureBlock
	cases := map[string]struct {
		config        compile.Config
		usual, strict string
	}{
		"nothing is asked for":     {bare(), "unreadable quarantined slot stale expired ready expired attempt", ""},
		"all is asked for":         {guarded(), "unreadable quarantined slot stale expired early open.breaker budget rate.limits breaker ready expired attempt", ""},
		"a strictly ordered queue": {strict, "", "unreadable slot stale expired crashed open.breaker budget rate.limits breaker ready expired attempt"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, log, endpoints := idle(t, c.config)
			status := told(t, endpoints)
			for got, want := range map[*[]string]string{&status.Pipeline: c.usual, &status.StrictPipeline: c.strict} {
				words := strings.Fields(want)
				for i := range words {
					words[i] = strings.ReplaceAll(words[i], ".", " ")
				}
				if !slices.Equal(*got, words) {
					t.Errorf("got  %q\nwant %q", *got, words)
				}
				if len(words) > 0 && !strings.Contains(log.String(), strings.Join(words, " > ")) {
					t.Errorf("the log does not show %q: %s", words, log)
				}
			}
		})
	}
}

func TestReload_TellsOfStagesThatHaveChanged(t *testing.T) {
	t.Parallel()
	w, log, endpoints := idle(t, bare())
	config := guarded()
	for range 2 {
		if err := w.Reload(config); err != nil {
			t.Fatal(err)
		}
		config.Concurrency++ // which changes no stage
	}
	if n := strings.Count(log.String(), "stages that each message goes through"); n != 2 {
		t.Errorf("told %d times: %s", n, log)
	}
	if got := told(t, endpoints).Pipeline; !slices.Contains(got, "rate limits") {
		t.Errorf("got %q", got)
	}
}

func TestPipeline_IsOnThePageOfTheWorker(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/worker.md")
	if err != nil {
		t.Fatal(err)
	}
	strict := guarded()
	strict.Queues = append(strict.Queues, compile.Queue{Name: "ordered", Policy: "default", Strict: v1alpha1.OnFailureContinue})
	_, _, endpoints := idle(t, strict)
	status := told(t, endpoints)
	if len(status.Pipeline) == 0 || len(status.StrictPipeline) == 0 {
		t.Fatalf("got %+v", status)
	}
	last := -1
	for i, name := range status.Pipeline {
		if slices.Contains(status.Pipeline[:i], name) {
			continue // it comes a second time
		}
		at := bytes.Index(page, []byte("\n| "+name+" |"))
		if at < last {
			t.Errorf("%q is not on the page, or not in its place", name)
		}
		last = at
	}
	for _, name := range status.StrictPipeline {
		if !bytes.Contains(page, []byte("\n| "+name+" |")) {
			t.Errorf("%q is not on the page", name)
		}
	}
}
