package main_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
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
func TestWorker_HandlesAllMessagesAfterItStoodStill(t *testing.T) {
	t.Parallel()
	const all, perSecond, timeout = 60, 6, 2500 * time.Millisecond
	const wait = all / 2 / perSecond * time.Second // of the last of those that have a place
	var calls atomic.Int64
	var answered sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		time.Sleep(timeout / 5)
		if r.Context().Err() == nil {
			answered.Store(r.Header.Get("Redrive-Message-Id"), true)
		}
	}))
	defer server.Close()
	transport := testtransport.New(server.URL)
	group := &transport.Spec.Workers[0]
	group.Concurrency, group.Timeout = new(int32(all/2)), v1alpha1.NewDuration(timeout)
	group.RateLimits = []v1alpha1.RateLimit{{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(perSecond)}}
	result := testtransport.Compile(t, transport, testtransport.Explicit(time.Second, time.Second, time.Second))
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
	testtransport.Eventually(t, "some calls", func() bool { return calls.Load() >= perSecond/2 })
	must(t, worker.command.Process.Signal(syscall.SIGSTOP))
	time.Sleep(wait) // in which the turns of all come that wait
	must(t, worker.command.Process.Signal(syscall.SIGCONT))
	testtransport.EventuallyWithin(t, time.Minute, "all handled", func() bool {
		handled := 0
		answered.Range(func(_, _ any) bool { handled++; return true })
		return handled == all
	})
	if err := worker.end(syscall.SIGTERM); err != nil {
		t.Errorf("the worker did not stop cleanly: %v\n%s", err, worker.log)
	}
	if failed := b.Ready("async.failed"); failed > 0 {
		t.Errorf("%d messages failed", failed)
	}
}
