//go:build unix

// Package clients_test runs what users have behind and before Redrive: real producers, Symfony Messenger, Celery, pika and amqplib, that
// publish to a RabbitMQ, `redrive run`, and handlers in their languages. `make test-clients` runs more messages than `make test` does.
package clients_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// within bounds what is waited for: interpreters start slowly beside other tests.
const within = 3 * time.Minute

func TestMain(m *testing.M) { testbroker.Main(tests{m}) }

// tests are all of this package, and what remains of them.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	_ = os.RemoveAll(built)
	return code
}

// many is how many messages of a kind a producer publishes.
func many(t *testing.T) int {
	t.Helper()
	count, err := strconv.Atoi(cmp.Or(os.Getenv("CLIENTS_MESSAGES"), "3"))
	if err != nil || count < 1 {
		t.Fatalf("CLIENTS_MESSAGES is %q, and must be a number from 1 on", os.Getenv("CLIENTS_MESSAGES"))
	}
	return count
}

// built is the folder of the program, once there is one.
var built string

// redrive builds the program once for all tests.
var redrive = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("REDRIVE"); program != "" {
		return program, nil
	}
	var err error
	if built, err = os.MkdirTemp("", "redrive-clients-"); err != nil {
		return "", fmt.Errorf("a folder for the program: %w", err)
	}
	program := filepath.Join(built, "redrive")
	if said, err := exec.CommandContext(context.Background(), "go", "build", "-o", program, "redrive.dev/redrive/cmd/redrive").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build redrive: %w\n%s", err, said)
	}
	return program, nil
})

// stage is a vhost with a Transport that `redrive run` carries out.
type stage struct {
	t      *testing.T
	url    string
	broker *testtransport.Broker
	// management is the URL of the vhost's queues.
	management string
	// report is the file in which handlers write down what they see.
	report string
}

// play starts `redrive run` on a manifest, in a folder of this package, and waits until its topology stands.
func play(t *testing.T, folder, manifest string) *stage {
	t.Helper()
	if testing.Short() {
		t.Fatal("this needs a RabbitMQ, and interpreters") // see the callers
	}
	program, err := redrive()
	if err != nil {
		t.Fatal(err)
	}
	shared := testbroker.Shared(t)
	url := shared.URL(shared.Vhost(t))
	vhost := url[strings.LastIndex(url, "/")+1:]
	queues := shared.ManagementURL + "/api/queues/" + vhost + "?columns=name,messages"
	s := &stage{t: t, url: url, management: queues, report: filepath.Join(t.TempDir(), "report")}
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &journal{}
	run := exec.Command(program, "run", "-f", file)
	run.Dir, run.Stdout, run.Stderr = folder, log, log
	run.Env = s.environment("AMQP_URL="+url, "MANAGEMENT_URL="+shared.ManagementURL)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	t.Cleanup(func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("redrive run: %v", err)
		}
		if t.Failed() {
			t.Logf("redrive run said:\n%s", log)
		}
	})
	testtransport.EventuallyWithin(t, within, "the topology", func() bool { return log.has("as it should be") })
	s.broker = testtransport.Connect(t, url)
	return s
}

// environment is that of a program of the stage.
func (s *stage) environment(more ...string) []string {
	return append(append(os.Environ(), "REPORT="+s.report), more...)
}

// publish runs a producer to its end.
func (s *stage) publish(folder string, environment []string, command ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	producer := exec.CommandContext(ctx, command[0], command[1:]...)
	producer.Dir, producer.Env = folder, s.environment(environment...)
	said, err := producer.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", command, err, said)
	}
	return string(said)
}

// settled waits until so many messages have failed for good, and none is anywhere else.
func (s *stage) settled(failed int) []amqp091.Delivery {
	s.t.Helper()
	testtransport.EventuallyWithin(s.t, within, fmt.Sprintf("%d failed messages, and none elsewhere", failed), func() bool {
		return s.broker.Ready("async.failed") >= failed && s.stored() == failed
	})
	all := s.broker.TakeAll("async.failed")
	if len(all) != failed {
		s.t.Errorf("%d messages failed, want %d", len(all), failed)
	}
	return all
}

// stored is how many messages all queues hold together, by the word of the management API, which is some seconds late.
func (s *stage) stored() int {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.management, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var queues []struct{ Messages int }
	if err := json.NewDecoder(response.Body).Decode(&queues); err != nil {
		s.t.Fatal(err)
	}
	sum := 0
	for _, queue := range queues {
		sum += queue.Messages
	}
	return sum
}

// seen is what a handler or a listener reported.
type seen struct {
	Kind, Name, ID, Transport  string
	Attempt, Redelivered, Size int
	Consumed, Early            bool
	Headers, Message           map[string]any
	Body                       string
}

// reports reads what the handlers have reported so far, by kind.
func (s *stage) reports() map[string][]seen {
	s.t.Helper()
	data, err := os.ReadFile(s.report)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	all := map[string][]seen{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var one seen
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			s.t.Fatalf("%v: %s", err, lines.Bytes())
		}
		all[one.Kind] = append(all[one.Kind], one)
	}
	return all
}

// attempts of each name, in their order.
func attempts(all []seen) map[string]string {
	found := map[string]string{}
	for _, one := range all {
		found[one.Name] += strconv.Itoa(one.Attempt)
	}
	return found
}

// journal is a log that may be looked at while it grows.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) has(text string) bool { return strings.Contains(j.String(), text) }

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
