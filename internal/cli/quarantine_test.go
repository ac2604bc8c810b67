package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/testtransport"
)

var processLine = regexp.MustCompile(`the quarantine worker starts".* process=(\d+)`)

// processes are those that a run has started for quarantined messages, by their ids.
func (s *started) processes() []int {
	var found []int
	for _, match := range processLine.FindAllStringSubmatch(s.log.String(), -1) {
		id, _ := strconv.Atoi(match[1])
		found = append(found, id)
	}
	return found
}

func TestRun_HandlesQuarantineInAProcessOfItsOwn(t *testing.T) {
	b := newBench(t)
	t.Setenv(local.EnvAMQP, b.amqpURL)
	t.Setenv(local.EnvManagement, b.management)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	reached := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Redrive-Message-Id") == "poison" {
			reached <- struct{}{}
			<-r.Context().Done() // until its worker is gone
		}
	}))
	defer server.Close()
	dir := folder(t, map[string]string{"transport.yaml": strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL), "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	if n := run.processes(); len(n) > 0 {
		t.Errorf("a process runs without quarantined messages: %v", n)
	}
	broker := testtransport.Connect(t, b.direct)
	broker.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "poison"})

	for n := range 3 {
		<-reached
		ids := run.processes()
		if len(ids) != n+1 {
			t.Fatalf("processes %v, want %d", ids, n+1)
		}
		keepsSecrets(t, ids[n], b)
		process, err := os.FindProcess(ids[n])
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	failed := broker.Take("async.failed")
	if failed.MessageId != "poison" || failed.Headers["redrive-reason"] != "PoisonCrash" || failed.Headers["redrive-crashes"] != int64(3) ||
		failed.Headers["redrive-crash-exit"] != "signal: killed" || failed.Headers["redrive-worker"] == nil {
		t.Errorf("%s failed with %v", failed.MessageId, failed.Headers)
	}
	broker.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "innocent"})
	testtransport.Eventually(t, "the table to count what the process did", func() bool {
		return strings.Contains(run.out.String(), "handled=1 retried=0 failed=1")
	})

	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Fatalf("exit code %d: %s", code, run.log.String())
	}
	if ids := run.processes(); len(ids) != 4 {
		t.Errorf("processes %v, want 4", ids)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	if ready := broker.Ready("test.quarantine"); ready > 0 {
		t.Errorf("%d quarantined messages are left", ready)
	}
}

// keepsSecrets checks what everybody may read of a process, where the system shows it.
func keepsSecrets(t *testing.T, id int, b *bench) {
	t.Helper()
	for _, name := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id), name))
		if err != nil {
			t.Logf("not checked: %v", err)
			continue
		}
		if text := string(data); strings.Contains(text, b.amqpURL) || strings.Contains(text, b.management) {
			t.Errorf("%s shows a login: %q", name, text)
		}
	}
}
