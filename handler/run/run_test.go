package run_test

import (
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/testtransport"
)

func publish(s *scene, ids ...string) {
	for _, id := range ids {
		s.Publish("async", testtransport.Queue, amqp091.Publishing{MessageId: id})
	}
}

// awaitMetric waits for a line of the metrics.
func (p *program) awaitMetric(t *testing.T, line string) {
	t.Helper()
	testtransport.Eventually(t, line, func() bool { return strings.Contains(p.metrics(), "\n"+line+"\n") })
}

func TestRun_RunsAWorkerWithTheTeamsHandler(t *testing.T) {
	s := newScene(t, 4, 10*time.Second)
	p := s.start(t, "team")
	publish(s, "fine-1", "fine-2", "fail", "drop", "later", "error", "panic")

	failed := map[string]amqp091.Table{}
	testtransport.Eventually(t, "three messages to fail", func() bool {
		for _, d := range s.TakeAll("async.failed") {
			failed[d.MessageId] = d.Headers
		}
		return len(failed) >= 3
	})
	p.awaitMetric(t, `redrive_messages_handled_total{outcome="dropped",queue="test",strategy="(handler)"} 1`)
	p.awaitMetric(t, `redrive_messages_handled_total{outcome="succeeded",queue="test",strategy=""} 3`)

	expect := func(id string, attempts int64, header, want string) {
		t.Helper()
		got, _ := failed[id][header].(string)
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s is %q, want %q", id, header, got, want)
		}
		if failed[id]["redrive-attempts"] != attempts {
			t.Errorf("%s: %v attempts, want %d", id, failed[id]["redrive-attempts"], attempts)
		}
	}
	expect("fail", 1, "redrive-reason", "Unrecoverable")
	expect("fail", 1, "redrive-error-class", "NoCustomer")
	expect("error", 2, "redrive-reason", "MaxRetries")
	expect("error", 2, "redrive-error-message", "the order has no customer")
	expect("panic", 2, "redrive-error-class", "panic")
	expect("panic", 2, "redrive-error-message", "panic: no flour left, at redrive.dev/redrive/handler/run_test.team (program_test.go:")

	must(t, p.command.Process.Signal(syscall.SIGTERM))
	if code := p.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.log.String(); strings.Count(log, "the handler panicked") != 2 || !strings.Contains(log, "run_test.team(") {
		t.Error("the log does not show the stack of each panic")
	}
}

func TestRun_GoesOnBesideAHandlerThatNeverReturns(t *testing.T) {
	s := newScene(t, 2, 100*time.Millisecond)
	p := s.start(t, "team")
	publish(s, "hang", "fine-1", "fine-2")
	p.awaitMetric(t, `redrive_messages_handled_total{outcome="succeeded",queue="test",strategy=""} 2`)
	if failed := s.Take("async.failed"); failed.MessageId != "hang" || failed.Headers["redrive-error-source"] != "Timeout" {
		t.Errorf("%s failed with %v", failed.MessageId, failed.Headers)
	}
	p.awaitMetric(t, "redrive_handler_abandoned_calls 2")
	must(t, p.command.Process.Signal(syscall.SIGTERM))
	if code := p.code(); code != 0 {
		t.Errorf("exit code %d: calls that have run away kept it from stopping", code)
	}
}

func TestRun_StopsAtTheEndOfItsInputWhereAsked(t *testing.T) {
	s := newScene(t, 2, 10*time.Second)
	stays, goes := s.start(t, "team"), s.start(t, "team", "--stop-on-stdin-close")
	for _, p := range []*program{stays, goes} {
		testtransport.Eventually(t, "the worker to run", func() bool { return p.metrics() != "" })
		must(t, p.input.Close())
	}
	if code := goes.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if stays.metrics() == "" {
		t.Error("the other one ended as well")
	}
}

// Any pod may reach the port, unless a NetworkPolicy says otherwise.
func TestRun_BoundsTheConnectionsOfItsPort(t *testing.T) {
	p := newScene(t, 2, 10*time.Second).start(t, "team")
	testtransport.Eventually(t, "the worker to run", func() bool { return p.metrics() != "" })
	open := make([]net.Conn, 0, httpserver.MaxConnections+1)
	for range cap(open) {
		connection, err := net.Dial("tcp", p.address)
		must(t, err)
		defer func() { _ = connection.Close() }()
		open = append(open, connection)
	}
	testtransport.Eventually(t, "the oldest to be closed", func() bool {
		_, err := io.WriteString(open[0], "x")
		return err != nil
	})
	if p.metrics() == "" {
		t.Error("it does not answer beside them")
	}
}

func TestQuarantine_StopsAtTheEndOfItsInput(t *testing.T) {
	s := newScene(t, 2, 10*time.Second)
	p := s.start(t, "team", "--quarantine", "--journal", filepath.Join(s.folder, "journal"), "--stop-on-stdin-close")
	s.Publish("async.return", testtransport.Queue+".quarantine", amqp091.Publishing{MessageId: "fine-1"})
	p.awaitMetric(t, `redrive_messages_handled_total{outcome="succeeded",queue="test",strategy=""} 1`)
	must(t, p.input.Close())
	if code := p.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if p.metrics() != "" {
		t.Error("its child goes on without it")
	}
}

func TestRun_SaysWhatAnInProcessHandlerNeeds(t *testing.T) {
	s := newScene(t, 1, time.Second)
	p := s.start(t, "shipped")
	if code := p.code(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(p.log.String(), "worker: "+filepath.Join(s.folder, "config.json")+": handler: the configuration says inProcess, and this program") {
		t.Error("it does not say what is wrong")
	}
}

func TestRun_TellsOfAWrongCommandLine(t *testing.T) {
	p := start(t, "team", "--no-such-flag")
	if code := p.code(); code != 2 || !strings.Contains(p.log.String(), "flag provided but not defined: -no-such-flag") {
		t.Errorf("exit code %d", code)
	}
	p = start(t, "team", "--config", "/nowhere/at/all")
	if code := p.code(); code != 1 || !strings.Contains(p.log.String(), "worker: read the configuration: open /nowhere/at/all") {
		t.Errorf("exit code %d", code)
	}
}

func TestInstall_CopiesTheProgram(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "new", "bin")
	installed := filepath.Join(dir, "worker")
	for range 2 { // as after a restart of the container
		if p := start(t, "team", "--install="+dir); p.code() != 0 || p.log.String() != "" {
			t.Fatalf("exit code %d, it says %q", p.code(), &p.log)
		}
	}
	info, err := os.Stat(installed)
	must(t, err)
	if info.Mode() != fs.FileMode(0o755) {
		t.Errorf("its mode is %s", info.Mode())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("in the folder are %v, %v", files, err)
	}
	command := exec.CommandContext(t.Context(), installed, "--config", "/nowhere/at/all")
	command.Env = append(os.Environ(), programVariable+"=shipped")
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "worker: read the configuration") {
		t.Errorf("what was installed does not run: %v, %s", err, out)
	}
}

func TestInstall_SaysWhyItFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	p := start(t, "team", "--install="+file)
	if code := p.code(); code != 1 || !strings.Contains(p.log.String(), "worker: --install="+file+": mkdir "+file+": not a directory") {
		t.Errorf("exit code %d", code)
	}
}
