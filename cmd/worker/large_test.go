package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	// large is the largest message that RabbitMQ 3.10 takes unless told otherwise, and podMemory what the worker has in docs/examples/orders.yaml.
	large     = 128 << 20
	podMemory = 256 << 20
)

// group is a control group whose memory is bounded, as that of a container.
type group struct {
	folder, peak string
}

// newGroup makes one. It is nil where this machine or this user has none to make.
func newGroup(t *testing.T, limit int) *group {
	t.Helper()
	for base, files := range map[string][2]string{
		"/sys/fs/cgroup/memory": {"memory.limit_in_bytes", "memory.max_usage_in_bytes"}, "/sys/fs/cgroup": {"memory.max", "memory.peak"},
	} {
		folder, err := os.MkdirTemp(base, "redrive-large-*") //nolint:usetesting // a control group, and one that was left must not keep others from theirs
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(folder) })
		if _, err := os.Stat(filepath.Join(folder, "cgroup.procs")); err != nil {
			continue // an ordinary folder: control groups are elsewhere
		}
		if os.WriteFile(filepath.Join(folder, files[0]), []byte(strconv.Itoa(limit)), 0o600) == nil {
			return &group{folder: folder, peak: filepath.Join(folder, files[1])}
		}
	}
	return nil
}

// confine lets a process run with so much memory: in a group of its own, or else by what Go keeps to.
func (p *process) confine(g *group) {
	command := []string{"-c", fmt.Sprintf("export GOMEMLIMIT=%d; exec \"$0\" \"$@\"", podMemory)}
	if g != nil {
		command = []string{"-c", fmt.Sprintf("echo $$ >%q && exec \"$0\" \"$@\"", filepath.Join(g.folder, "cgroup.procs"))}
	}
	p.binary, p.args = "/bin/sh", append(append(command, p.binary), p.args...)
}

// most is the most memory that the process had so far, in bytes.
func (p *process) most() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, rest, _ := strings.Cut(line, ":"); name == "VmHWM" {
			kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
			return kilobytes << 10, err
		}
	}
	return 0, errors.New("it has none")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

// metricsOf a worker; empty while it does not answer.
func metricsOf(address string) string {
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// It ended the worker while it was received, and each one that was started after that: 21 times, until the broker gave it up.
func TestWorker_HandlesWhatIsBehindAMessageOf128MiB(t *testing.T) {
	testtransport.Long(t)
	const behind = 300
	s := newScene(t, testbroker.Private(t, fmt.Sprint("max_message_size = ", large)))
	address := freeAddress(t)
	s.process.args[slices.Index(s.process.args, "127.0.0.1:0")] = address
	body := bytes.Repeat([]byte("0123456789abcdef"), large/16)
	s.Publish("async", testtransport.Queue, amqp091.Publishing{MessageId: "large", Body: body})
	small := numbered(1, 1+behind)
	for i := range small {
		small[i].Body = body[:1000]
	}
	s.Publish("async", testtransport.Queue, small...)

	inGroup := newGroup(t, podMemory)
	s.process.confine(inGroup)
	s.process.start()
	pid := s.process.command.Process.Pid
	ends := map[string]int{}
	testtransport.Eventually(t, "every message handled or failed", func() bool {
		for _, d := range s.TakeAll("async.failed") {
			ends[d.MessageId]++
			if d.MessageId == "large" && !bytes.Equal(d.Body, body) {
				t.Errorf("it failed with %d bytes, want all %d", len(d.Body), len(body))
			}
		}
		s.partner.mu.Lock()
		defer s.partner.mu.Unlock()
		return len(ends)+len(s.partner.handled) >= 1+behind && s.Stored() == 0
	})
	most, err := s.process.most()
	must(t, err)
	counted := regexp.MustCompile(`redrive_messages_handled_total{outcome="rejected",queue="test",strategy=""} (\d+)`)
	if metrics := metricsOf(address); !counted.MatchString(metrics) {
		t.Errorf("it is not counted: %s", metrics)
	}
	if syscall.Kill(pid, 0) != nil || s.process.end(syscall.SIGTERM) != nil {
		t.Errorf("the worker ended: %s", s.process.log)
	}
	for id, times := range s.partner.handled {
		ends[id] += times
	}
	for id, times := range ends {
		if times != 1 {
			t.Errorf("message %s ended %d times", id, times)
		}
	}
	if ends["large"] != 1 || s.partner.handled["large"] != 0 || len(ends) != 1+behind {
		t.Errorf("%d messages ended, want %d; the large one %d times", len(ends), 1+behind, ends["large"])
	}
	if log := s.process.log.String(); !strings.Contains(log, fmt.Sprintf("its body of %d bytes", large)) {
		t.Errorf("the log does not say how large it is: %s", log)
	}
	t.Logf("in a group: %t; the worker had %d MiB at most", inGroup != nil, most>>20)
	if most > podMemory {
		t.Errorf("the worker had %d bytes, and may have %d", most, podMemory)
	}
}

// Each takes an eighth of the memory, and the copies of the one before may still be there.
func TestWorker_KeepsLargestMessagesInARowWithinItsMemory(t *testing.T) {
	testtransport.Long(t)
	const size, count = podMemory/8 - 1000, 12
	s := newScene(t, testbroker.Private(t, fmt.Sprint("max_message_size = ", large)))
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for i := range count {
		s.Publish("async", testtransport.Queue, amqp091.Publishing{MessageId: strconv.Itoa(1 + i), Body: body})
	}
	inGroup := newGroup(t, podMemory)
	s.process.confine(inGroup)
	s.process.start()
	testtransport.Eventually(t, "every message handled", func() bool {
		s.partner.mu.Lock()
		defer s.partner.mu.Unlock()
		return len(s.partner.handled) == count && s.Stored() == 0
	})
	most, err := s.process.most()
	must(t, err)
	t.Logf("in a group: %t; the worker had %d MiB at most", inGroup != nil, most>>20)
	if most > podMemory {
		t.Errorf("the worker had %d bytes, and may have %d", most, podMemory)
	}
	if err := s.process.end(syscall.SIGTERM); err != nil {
		t.Errorf("the worker ended: %v: %s", err, s.process.log)
	}
}
