package main_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/run"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const messages = 5000

func TestMain(m *testing.M) {
	if os.Getenv(doctorVariable) != "" {
		starve(os.Getenv(memoryVariable))
		run.Main(handler.Func(mortal))
	}
	// The tests wait for workers and lanes, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

// build makes the worker's binary as it is shipped.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "worker")
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("build the worker: %v\n%s", err, output)
	}
	return binary
}

// partner fails every message once or twice, some for good, and remembers what it answered with success.
type partner struct {
	*httptest.Server

	requests atomic.Int64
	mu       sync.Mutex
	handled  map[string]int
}

func newPartner(t *testing.T) *partner {
	t.Helper()
	p := &partner{handled: map[string]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		p.requests.Add(1)
		id, _ := strconv.Atoi(r.Header.Get("Redrive-Message-Id"))
		attempt, _ := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
		switch {
		case id%50 == 0:
			w.WriteHeader(http.StatusUnprocessableEntity)
		case attempt <= 1+id%2:
			w.WriteHeader(http.StatusBadGateway)
		default:
			p.mu.Lock()
			p.handled[r.Header.Get("Redrive-Message-Id")]++
			p.mu.Unlock()
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// process is the worker's binary, as a pod runs it.
type process struct {
	t       *testing.T
	binary  string
	args    []string
	command *exec.Cmd
	log     *bytes.Buffer
	// stderr has the log in place of log, where the test reads it before the end.
	stderr io.Writer
}

func (p *process) start() {
	p.t.Helper()
	p.log = &bytes.Buffer{}
	p.command = exec.CommandContext(context.Background(), p.binary, p.args...)
	p.command.Stderr = p.log
	if p.stderr != nil {
		p.command.Stderr = p.stderr
	}
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// end sends a signal and waits for the process.
func (p *process) end(signal os.Signal) error {
	_ = p.command.Process.Signal(signal)
	return p.command.Wait()
}

// scene is a Transport on a broker, its partner, and a worker's binary that is configured for both.
type scene struct {
	*testtransport.Broker

	partner *partner
	process *process
	// quarantine is the process that handles what a worker left when it ended.
	quarantine *process
	url        string
}

func newScene(t *testing.T, broker *testbroker.Broker) *scene {
	t.Helper()
	return newSceneWith(t, broker, 50)
}

// newSceneWith has so many messages in work at a time, and a policy that asks these strategies first.
func newSceneWith(t *testing.T, broker *testbroker.Broker, concurrency int32, strategies ...v1alpha1.Strategy) *scene {
	t.Helper()
	p := newPartner(t)
	transport := testtransport.New(p.URL)
	transport.Spec.Workers[0].Concurrency = &concurrency
	policy := testtransport.Explicit(500*time.Millisecond, time.Second, 2*time.Second)
	policy.Strategies = append(policy.Strategies, strategies...)
	policy.Strategies = append(policy.Strategies, v1alpha1.Strategy{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail})
	result := testtransport.Compile(t, transport, policy)
	vhost := broker.Vhost(t)

	folder := t.TempDir()
	data, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "config.json"), string(data))
	u, err := url.Parse(broker.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	for key, value := range map[string]string{
		"host": u.Hostname(), "port": u.Port(), "username": u.User.Username(), "password": password, "vhost": vhost,
	} {
		write(t, filepath.Join(folder, "broker", key), value)
	}
	worker := process{t: t, binary: build(t), args: []string{
		"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"), "--listen", "127.0.0.1:0", "--log-level", "WARN",
	}}
	return &scene{
		Broker:  testtransport.Declare(t, broker.URL(vhost), transport, result),
		partner: p,
		url:     broker.URL(vhost),
		process: &worker,
		quarantine: &process{t: t, binary: worker.binary, args: append(slices.Clone(worker.args),
			"--quarantine", "--journal", filepath.Join(folder, "journal"))},
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) fill() {
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		all[i].MessageId = strconv.Itoa(i)
	}
	s.Publish("async", testtransport.Queue, all...)
}

// settle waits until nothing is left to handle, and returns how many ids ended and how many ended more than once.
func (s *scene) settle(t *testing.T) (ended, repeated int) {
	t.Helper()
	ends := map[string]int{}
	testtransport.Eventually(t, "every id handled or failed", func() bool {
		for _, d := range s.TakeAll("async.failed") {
			ends[d.MessageId]++
			if d.Headers["redrive-reason"] == nil {
				t.Errorf("message %s failed without a reason", d.MessageId)
			}
		}
		s.partner.mu.Lock()
		defer s.partner.mu.Unlock()
		return len(ends)+len(s.partner.handled) >= messages && s.Ready(testtransport.Queue) == 0 && s.Waiting() == 0
	})
	for _, p := range []*process{s.process, s.quarantine} {
		if err := p.end(syscall.SIGTERM); err != nil {
			t.Errorf("a worker did not stop cleanly: %v\n%s", err, p.log)
		}
	}
	for id, times := range s.partner.handled {
		ends[id] += times
	}
	for _, times := range ends {
		if times > 1 {
			repeated++
		}
	}
	return len(ends), repeated
}

func TestWorker_LosesNoMessageWhenKilled(t *testing.T) {
	t.Parallel()
	s := newScene(t, testbroker.Shared(t))
	s.fill()
	s.process.start()
	s.quarantine.start()
	kills := 0
	for _, at := range []int64{500, 2500, 5000, 8000} {
		testtransport.Eventually(t, fmt.Sprint(at, " requests"), func() bool { return s.partner.requests.Load() >= at })
		if err := s.process.end(syscall.SIGKILL); err == nil {
			t.Fatal("the worker ended by itself")
		}
		kills++
		s.process.start()
	}
	ended, repeated := s.settle(t)
	t.Logf("%d kills: %d of %d ids ended, %d of them more than once", kills, ended, messages, repeated)
	if ended != messages {
		t.Errorf("%d of %d ids ended: %d lost", ended, messages, messages-ended)
	}
}

func TestWorker_LosesNoMessageInABrokerRestart(t *testing.T) {
	testtransport.Long(t)
	broker := testbroker.Private(t)
	s := newScene(t, broker)
	s.fill()
	s.process.start()
	s.quarantine.start()
	for i, restart := range []func(context.Context) error{
		broker.Restart,
		func(ctx context.Context) error {
			if err := broker.Kill(ctx); err != nil {
				return err
			}
			return broker.Resume(ctx)
		},
	} {
		at := int64(2000 + 3000*i)
		testtransport.Eventually(t, fmt.Sprint(at, " requests"), func() bool { return s.partner.requests.Load() >= at })
		if err := restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Broker = s.Reconnect(s.url)
	ended, repeated := s.settle(t)
	t.Logf("2 restarts: %d of %d ids ended, %d of them more than once", ended, messages, repeated)
	if ended != messages {
		t.Errorf("%d of %d ids ended: %d lost", ended, messages, messages-ended)
	}
}
