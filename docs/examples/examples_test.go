//go:build unix

// Package examples_test runs the examples as a reader does: by one command each, on a real RabbitMQ.
package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

func TestExamples_RunByOneCommandEach(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and interpreters
	}
	scripts, err := filepath.Glob("*/run.sh")
	if err != nil || len(scripts) < 4 {
		t.Fatalf("found %v, %v", scripts, err)
	}
	if said, err := exec.CommandContext(t.Context(), "php", "process-php/bin/console", "list", "redrive").CombinedOutput(); err != nil {
		t.Fatalf("hack/languages.sh installs what the examples need, or says how; go test -short does without: %v\n%s", err, said)
	}
	cli := filepath.Join(t.TempDir(), "redrive") // once for all
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-o", cli, "redrive.dev/redrive/cmd/redrive").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	shared := testbroker.Shared(t)
	for _, script := range scripts {
		t.Run(filepath.Dir(script), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute) // more than the script gives itself
			defer cancel()
			command := exec.CommandContext(ctx, "./"+script)
			command.Env = append(os.Environ(),
				"REDRIVE="+cli, testbroker.AMQPVariable+"="+shared.AMQPURL, testbroker.ManagementVariable+"="+shared.ManagementURL)
			// Of a `go run` that is told to end alone its program would be left.
			command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
			command.WaitDelay = time.Minute
			said, err := command.CombinedOutput()
			// What it expects to be handled is what the worker has handled, by its own count.
			handled := regexp.MustCompile(`(?m)^\d+ messages: (\d+) handled, `).FindSubmatch(said)
			if err != nil || handled == nil || !strings.Contains(string(said), " handled="+string(handled[1])+" ") {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}
