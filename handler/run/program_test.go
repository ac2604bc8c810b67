package run_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/run"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// programVariable makes one of the programs of these tests of the test's own.
const programVariable = "REDRIVE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(programVariable) {
	case "team":
		run.Main(handler.Func(team))
	case "shipped":
		run.Main(nil)
	}
	testbroker.Main(m)
}

// orderError has a class and a status.
type orderError struct{}

func (orderError) Error() string { return "the order has no customer" }
func (orderError) Class() string { return "NoCustomer" }
func (orderError) Status() int   { return 422 }

// team is a team's handler. The id of a message says what becomes of it.
func team(_ context.Context, m *handler.Message) error {
	kind, _, _ := strings.Cut(m.ID, "-")
	switch kind {
	case "fail":
		return handler.Fail(orderError{})
	case "drop":
		return handler.Drop(errors.New("nobody needs it"))
	case "later":
		if m.Attempt < 4 {
			return handler.RetryAfter(100*time.Millisecond, errors.New("not yet"))
		}
	case "error":
		return orderError{}
	case "panic":
		panic("no flour left")
	case "hang":
		select {}
	}
	return nil
}

// program is a running process of the test's own program.
type program struct {
	command *exec.Cmd
	input   io.WriteCloser
	log     output
	address string
	ended   chan struct{}
}

// output may be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts a program with arguments; it is killed with the test.
func start(t *testing.T, kind string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	p := &program{command: exec.CommandContext(context.Background(), self, args...), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), programVariable+"="+kind)
	p.command.Stdout, p.command.Stderr = &p.log, &p.log
	p.input, err = p.command.StdinPipe()
	must(t, err)
	must(t, p.command.Start())
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("log of %v:\n%s", args, &p.log)
		}
	})
	return p
}

// code waits for the end of a program and returns its exit code.
func (p *program) code() int {
	<-p.ended
	return p.command.ProcessState.ExitCode()
}

// metrics of a worker; empty while it does not answer.
func (p *program) metrics() string {
	response, err := http.Get("http://" + p.address + "/metrics")
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// scene is a Transport with an inProcess handler on a broker, and the folder that its worker is configured by.
type scene struct {
	*testtransport.Broker

	folder string
}

func newScene(t *testing.T, concurrency int32, timeout time.Duration) *scene {
	t.Helper()
	transport := testtransport.New("")
	worker := &transport.Spec.Workers[0]
	worker.Handler = v1alpha1.Handler{Image: new("registry.example.com/orders:1"), InProcess: &v1alpha1.InProcessHandler{}}
	worker.Concurrency, worker.Timeout = &concurrency, v1alpha1.NewDuration(timeout)
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.HandlerAdvice = v1alpha1.HandlerAdviceFollow
	result := testtransport.Compile(t, transport, policy)
	broker := testbroker.Shared(t)
	to := broker.URL(broker.Vhost(t))
	s := &scene{Broker: testtransport.Declare(t, to, transport, result), folder: t.TempDir()}
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	s.write(t, "config.json", string(data))
	s.write(t, "broker/uri", to)
	return s
}

func (s *scene) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(s.folder, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// start starts a program as the scene's worker.
func (s *scene) start(t *testing.T, kind string, args ...string) *program {
	t.Helper()
	address := freeAddress(t)
	p := start(t, kind, append([]string{
		"--config", filepath.Join(s.folder, "config.json"), "--credentials", filepath.Join(s.folder, "broker"), "--listen", address,
	}, args...)...)
	p.address = address
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		if _, ok := errors.AsType[*url.Error](err); ok {
			t.Fatal("a URL is wrong") // which may hold a password
		}
		t.Fatal(err)
	}
}
