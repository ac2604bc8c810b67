package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// startsLate is slow to start the first time, so that messages wait for it whose turns at the rate limit pass. It writes down each call.
const startsLate = `if mkdir "$0/started" 2>/dev/null; then sleep 4; fi
echo '{"type":"hello","protocol":1,"concurrency":100}'
while read -r line; do
	call=${line#*'"id":"'}; message=${line#*'"message":{"id":"'}
	echo "${message%%'"'*}" >>"$0/calls"
	echo '{"type":"result","id":"'${call%%'"'*}'","outcome":"ack"}'
done`

// Messages that have a process and wait for their turn are in nobody's hands: the process has not seen them when the worker is killed.
func TestWorker_CallsNoWaitingMessageTwiceWhenKilled(t *testing.T) {
	t.Parallel()
	const all = 30
	folder := t.TempDir()
	transport := testtransport.New("http://127.0.0.1:1")
	group := &transport.Spec.Workers[0]
	group.Concurrency = new(int32(all))
	group.RateLimits = []v1alpha1.RateLimit{{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(4)}}
	group.Handler = v1alpha1.Handler{Image: new("registry.example/app:1"), Process: &v1alpha1.ProcessHandler{
		Command: []string{"/bin/sh", "-c", startsLate, folder}, Processes: new(int32(1)),
	}}
	result := testtransport.Compile(t, transport, testtransport.Explicit(time.Second))
	broker := testbroker.Shared(t)
	vhost := broker.Vhost(t)
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	write(t, filepath.Join(folder, "config.json"), string(data))
	write(t, filepath.Join(folder, "broker", "uri"), broker.URL(vhost))
	b := testtransport.Declare(t, broker.URL(vhost), transport, result)
	b.Publish("async", testtransport.Queue, numbered(1, 1+all)...)
	calls := func() []string {
		text, _ := os.ReadFile(filepath.Join(folder, "calls")) // there are none without the file
		return strings.Fields(string(text))
	}
	worker := process{t: t, binary: build(t), args: []string{
		"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"), "--listen", "127.0.0.1:0", "--log-level", "WARN",
	}}
	quarantine := process{t: t, binary: worker.binary, args: append(slices.Clone(worker.args), "--quarantine", "--journal", filepath.Join(folder, "journal"))}
	worker.start()
	quarantine.start()
	var inHand []string
	for _, at := range []int{6, 12} {
		testtransport.Eventually(t, fmt.Sprint(at, " calls"), func() bool { return len(calls()) >= at })
		time.Sleep(100 * time.Millisecond) // in which the last one is mostly settled: the next has its turn after 250 ms
		if err := worker.end(syscall.SIGKILL); err == nil {
			t.Fatal("the worker ended by itself")
		}
		before := calls()
		inHand = append(inHand, before[len(before)-1]) // where the machine is busy, it is not
		worker.start()
	}
	called := func() map[string]int {
		times := map[string]int{}
		for _, id := range calls() {
			times[id]++
		}
		return times
	}
	testtransport.Eventually(t, "all handled", func() bool { return len(called()) == all && b.Stored() == 0 })
	for _, p := range []*process{&worker, &quarantine} {
		if err := p.end(syscall.SIGTERM); err != nil {
			t.Errorf("a worker did not stop cleanly: %v\n%s", err, p.log)
		}
	}
	for id, times := range called() {
		if times > 1 && !slices.Contains(inHand, id) {
			t.Errorf("message %s was called %d times, and those in hand were %v", id, times, inHand)
		}
	}
	if failed := b.Ready("async.failed"); failed > 0 {
		t.Errorf("%d messages failed", failed)
	}
}
