package main_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// writesHalves answers with lines of twice so many bytes: one half, and five seconds later the other.
const writesHalves = `half() { head -c %d /dev/zero | tr '\0' x; }
echo '{"type":"hello","protocol":1}'
i=0
while read -r line; do
	i=$((i+1)); printf '{"type":"result","id":"%%s","outcome":"ack","note":"' $i; half; sleep 5; half; echo '"}'
done`

// It was killed within seconds: each process may have written the most of a MiB, and all of that was kept.
func TestWorker_SurvivesHalfLinesOfManyProcesses(t *testing.T) {
	testtransport.Long(t)
	const processes = 200
	transport := testtransport.New("http://127.0.0.1:1")
	group := &transport.Spec.Workers[0]
	group.Concurrency = new(int32(processes))
	group.Handler = v1alpha1.Handler{Image: new("registry.example/app:1"), Process: &v1alpha1.ProcessHandler{
		Command: []string{"/bin/sh", "-c", fmt.Sprintf(writesHalves, 500_000)}, Processes: new(int32(processes)),
	}}
	result := testtransport.Compile(t, transport, testtransport.Explicit(time.Second))
	broker, folder, address := testbroker.Shared(t), t.TempDir(), freeAddress(t)
	vhost := broker.Vhost(t)
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	write(t, filepath.Join(folder, "config.json"), string(data))
	write(t, filepath.Join(folder, "broker", "uri"), broker.URL(vhost))
	b := testtransport.Declare(t, broker.URL(vhost), transport, result)
	b.Publish("async", testtransport.Queue, numbered(1, 1+processes)...)

	p := &process{t: t, binary: build(t), args: []string{
		"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"), "--listen", address, "--log-level", "WARN",
	}}
	inGroup := newGroup(t, podMemory)
	p.confine(inGroup)
	p.start()
	succeeded := regexp.MustCompile(`redrive_messages_handled_total{outcome="succeeded",queue="test",strategy=""} (\d+)`)
	most := 0
	testtransport.Eventually(t, "some messages are handled", func() bool {
		if most, err = p.most(); err != nil || most == 0 {
			t.Fatalf("the worker ended: %v: %s", err, p.log)
		}
		found := succeeded.FindStringSubmatch(metricsOf(address))
		if len(found) == 0 {
			return false
		}
		n, err := strconv.Atoi(found[1])
		must(t, err)
		return n >= processes/4
	})
	t.Logf("in a group: %t; the worker had %d MiB at most", inGroup != nil, most>>20)
	if most > podMemory/4*3 {
		t.Errorf("the worker had %d bytes, of %d that it and its processes have", most, podMemory)
	}
	must(t, p.command.Process.Kill())
}
