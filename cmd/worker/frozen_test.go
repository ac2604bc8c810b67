package main_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// A worker that stood still finds that the turns of all its messages have come meanwhile. It spaced their calls within the timeout of the attempts:
// those beyond went back to the queue, with their places in the row taken, and so did all that came after them, without an end.
func TestAWorkerThatStoodStillCallsItsHandlerAtTheRateOfItsLimit(t *testing.T) {
	const all, perSecond, answerAfter = 60, 10, 400 * time.Millisecond
	var mu sync.Mutex
	var calls []time.Time
	answered := map[string]bool{}
	count := func() (called, handled int) {
		mu.Lock()
		defer mu.Unlock()
		return len(calls), len(answered)
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls = append(calls, time.Now())
		mu.Unlock()
		time.Sleep(answerAfter)
		mu.Lock()
		defer mu.Unlock()
		if r.Context().Err() == nil {
			answered[r.Header.Get("Redrive-Message-Id")] = true
		}
	}))
	defer server.Close()
	transport := testtransport.New(server.URL)
	group := &transport.Spec.Workers[0]
	group.Concurrency, group.Timeout = new(int32(all/2)), v1alpha1.NewDuration(time.Second)
	group.RateLimits = []v1alpha1.RateLimit{{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(perSecond)}}
	result := testtransport.Compile(t, transport, testtransport.Explicit(time.Second, time.Second))
	broker := testbroker.Shared(t)
	vhost, folder := broker.Vhost(t), t.TempDir()
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	write(t, filepath.Join(folder, "config.json"), string(data))
	write(t, filepath.Join(folder, "broker", "uri"), broker.URL(vhost))
	b := testtransport.Declare(t, broker.URL(vhost), transport, result)
	b.Publish("async", testtransport.Queue, numbered(1, 1+all)...)
	worker := process{t: t, binary: build(t), args: []string{
		"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"), "--listen", "127.0.0.1:0", "--log-level", "WARN",
	}}
	worker.start()
	testtransport.Eventually(t, "some calls", func() bool {
		called, _ := count()
		return called >= perSecond/2
	})
	must(t, worker.command.Process.Signal(syscall.SIGSTOP))
	time.Sleep(3 * time.Second) // in which the turns of all come that wait
	must(t, worker.command.Process.Signal(syscall.SIGCONT))
	stood, _ := count()
	testtransport.EventuallyWithin(t, time.Minute, "all handled", func() bool {
		_, handled := count()
		return handled == all
	})
	if err := worker.end(syscall.SIGTERM); err != nil {
		t.Errorf("the worker did not stop cleanly: %v\n%s", err, worker.log)
	}
	// Those that were with the handler meanwhile took too long.
	if called, failed := len(calls), b.Ready("async.failed"); failed > 0 || called > all+perSecond {
		t.Errorf("%d calls of %d messages, and %d failed", called, all, failed)
	}
	for i := stood + perSecond/2; i < len(calls); i++ {
		if within := calls[i].Sub(calls[i-perSecond/2]); within < 300*time.Millisecond {
			t.Fatalf("%d calls within %s at %d a second", perSecond/2+1, within, perSecond)
		}
	}
}
