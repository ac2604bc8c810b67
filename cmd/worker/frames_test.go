package main_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// readsSome acknowledges many small messages, for which the worker lets it have more at a time, and then reads nothing.
const readsSome = `echo '{"type":"hello","protocol":1,"concurrency":310}'
i=0
while [ $i -lt 3000 ]; do
	i=$((i+1)); read -r line; echo '{"type":"result","id":"'$i'","outcome":"ack"}'
done
exec sleep 1000`

// They take six times as much in the frame of a process, which nothing counted: the worker was killed within 2 s.
func TestWorker_SurvivesHeadersOfControlCharacters(t *testing.T) {
	testtransport.Long(t)
	transport := testtransport.New("http://127.0.0.1:1")
	group := &transport.Spec.Workers[0]
	group.Concurrency = new(int32(310))
	group.Handler = v1alpha1.Handler{Image: new("registry.example/app:1"), Process: &v1alpha1.ProcessHandler{
		Command: []string{"/bin/sh", "-c", readsSome}, Processes: new(int32(1)),
	}}
	result := testtransport.Compile(t, transport, testtransport.Explicit(time.Second))
	broker, folder, address := testbroker.Shared(t), t.TempDir(), freeAddress(t)
	vhost := broker.Vhost(t)
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	write(t, filepath.Join(folder, "config.json"), string(data))
	write(t, filepath.Join(folder, "broker", "uri"), broker.URL(vhost))
	b := testtransport.Declare(t, broker.URL(vhost), transport, result)
	b.Publish("async", testtransport.Queue, numbered(1000, 4000)...)
	hostile := make([]amqp091.Publishing, 400)
	for i := range hostile {
		hostile[i] = amqp091.Publishing{MessageId: strconv.Itoa(i), Headers: amqp091.Table{"note": strings.Repeat("\x01", 117<<10)}}
	}
	b.Publish("async", testtransport.Queue, hostile...)

	p := &process{t: t, binary: build(t), args: []string{
		"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"), "--listen", address, "--log-level", "WARN",
	}}
	inGroup := newGroup(t, podMemory)
	p.confine(inGroup)
	p.start()
	loaned, most, before := regexp.MustCompile(`(?m)^redrive_inflight_bytes (\S+)`), 0, ""
	testtransport.Eventually(t, "it has as many as it may", func() bool {
		if most, err = p.most(); err != nil || most == 0 {
			t.Fatalf("the worker ended: %v: %s", err, p.log)
		}
		found := loaned.FindStringSubmatch(metricsOf(address))
		if len(found) == 0 {
			return false
		}
		bytes, err := strconv.ParseFloat(found[1], 64)
		must(t, err)
		steady := found[1] == before && bytes > podMemory/16
		before = found[1]
		return steady
	})
	t.Logf("%s bytes on loan", before)
	t.Logf("in a group: %t; the worker had %d MiB at most", inGroup != nil, most>>20)
	if most > podMemory {
		t.Errorf("the worker had %d bytes, and may have %d", most, podMemory)
	}
	must(t, p.command.Process.Kill())
}
