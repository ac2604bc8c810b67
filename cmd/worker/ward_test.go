package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	// doctorVariable makes a worker of the test's program, with a handler that can bring it down. It holds the doctor's URL.
	doctorVariable = "REDRIVE_TEST_DOCTOR"
	// memoryVariable is how many bytes that worker may use beyond those it has from its start; empty is no limit.
	memoryVariable = "REDRIVE_TEST_MEMORY"

	// deadly is the doctor's answer that kills the worker which asked.
	deadly = http.StatusTeapot

	quarantineQueue = testtransport.Queue + compile.QuarantineSuffix
	// movedQueue gets a copy of whatever is published to the quarantine queue.
	movedQueue = "moved"
)

// mortal is a handler in the worker's own process. It calls the doctor by HTTP, and kills the process when that is the answer.
func mortal(ctx context.Context, m *handler.Message) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv(doctorVariable), bytes.NewReader(m.Body))
	if err != nil {
		return handler.Fail(err)
	}
	request.Header.Set("Redrive-Message-Id", m.ID)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case deadly:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal comes
	default:
		return errors.New(response.Status)
	}
}

// starve lets this process use only so many bytes more than it does already. It ends where it needs more.
func starve(bytes string) {
	if bytes == "" {
		return
	}
	more, err := strconv.ParseUint(bytes, 10, 64)
	if err != nil {
		panic(err)
	}
	sizes, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(sizes))[0], 10, 64)
	if err != nil {
		panic(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		panic(err)
	}
	limit.Cur = pages*uint64(os.Getpagesize()) + more
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		panic(err)
	}
}

// doctor answers for each message as a test says, and remembers what it handled.
type doctor struct {
	*httptest.Server

	mu      sync.Mutex
	calls   map[string]int
	handled map[string]int
	// answers of a message by call, the last one for all further calls; a message without is handled after 20 ms.
	answers map[string][]int
	// held messages get no answer until their channel is closed.
	held map[string]chan struct{}
}

func newDoctor(t *testing.T) *doctor {
	t.Helper()
	d := &doctor{calls: map[string]int{}, handled: map[string]int{}, answers: map[string][]int{}, held: map[string]chan struct{}{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// ServeHTTP treats one attempt.
func (d *doctor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	id := r.Header.Get("Redrive-Message-Id")
	d.mu.Lock()
	d.calls[id]++
	status, held := http.StatusOK, d.held[id]
	if answers := d.answers[id]; len(answers) > 0 {
		status = answers[min(d.calls[id], len(answers))-1]
	}
	d.mu.Unlock()
	wait := time.After(20 * time.Millisecond)
	if held != nil {
		wait = nil
	}
	select {
	case <-wait:
	case <-held:
	case <-r.Context().Done():
		return
	}
	if status == http.StatusOK {
		d.mu.Lock()
		d.handled[id]++
		d.mu.Unlock()
	}
	w.WriteHeader(status)
}

// hold lets messages wait for their answer until the function that it returns is called.
func (d *doctor) hold(t *testing.T, ids ...string) (release func()) {
	t.Helper()
	until := make(chan struct{})
	release = sync.OnceFunc(func() { close(until) })
	t.Cleanup(release)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.held[id] = until
	}
	return release
}

func (d *doctor) answer(id string, statuses ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[id] = statuses
}

func (d *doctor) called(id string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[id]
}

// outcome is how often each message was handled.
func (d *doctor) outcome() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.handled)
}

// ward is a Transport on a broker, its doctor, and what workers need to serve it.
type ward struct {
	*testtransport.Broker
	*doctor

	t          *testing.T
	url        string
	management string
	vhost      string
	folder     string
	memory     string
	copies     []amqp091.Delivery
}

const wardConcurrency = 10

// wardOptions of a ward; the zero value is the usual one.
type wardOptions struct {
	queueType v1alpha1.QueueType
	timeout   time.Duration
	// address at which workers reach the broker; empty for its own.
	address string
	// strategies of the policy, and what else is different of the Transport.
	strategies []v1alpha1.Strategy
	change     func(*v1alpha1.Transport)
	// memory is how many bytes more than at its start a process may use; 0 is no limit.
	memory int64
}

func newWard(t *testing.T, broker *testbroker.Broker, o wardOptions) *ward {
	t.Helper()
	d := newDoctor(t)
	transport := testtransport.New(d.URL)
	concurrency := int32(wardConcurrency)
	group := &transport.Spec.Workers[0]
	group.Handler = v1alpha1.Handler{Image: new("registry.example/doctor:1"), InProcess: &v1alpha1.InProcessHandler{}}
	group.Concurrency = &concurrency
	if o.timeout > 0 {
		group.Timeout = v1alpha1.NewDuration(o.timeout)
	}
	if o.queueType != "" {
		transport.Spec.Queues[0].Type = &o.queueType
	}
	if o.change != nil {
		o.change(transport)
	}
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Strategies = o.strategies
	result := testtransport.Compile(t, transport, policy)
	data, err := compile.Encode(result.Workers[0])
	must(t, err)
	w := &ward{t: t, doctor: d, management: broker.ManagementURL, vhost: broker.Vhost(t), folder: t.TempDir()}
	w.url = broker.URL(w.vhost)
	if o.memory > 0 {
		w.memory = strconv.FormatInt(o.memory, 10)
	}
	write(t, filepath.Join(w.folder, "config.json"), string(data))
	u, err := url.Parse(w.url)
	must(t, err)
	if o.address != "" {
		u.Host = o.address
	}
	write(t, filepath.Join(w.folder, "broker", "uri"), u.String())
	w.Broker = testtransport.Declare(t, w.url, transport, result)
	_, err = w.Channel().QueueDeclare(movedQueue, true, false, false, false, nil)
	must(t, err)
	must(t, w.Channel().QueueBind(movedQueue, quarantineQueue, "async.return", false, nil))
	return w
}

// moves are the messages that were published to the quarantine queue so far: those that a worker moved there, and those that
// carry crashes, which the quarantine worker put there again.
func (w *ward) moves() (moved, charged []string) {
	w.t.Helper()
	w.copies = append(w.copies, w.TakeAll(movedQueue)...)
	for _, d := range w.copies {
		if d.Headers["redrive-crashes"] != nil {
			charged = append(charged, d.MessageId)
		} else {
			moved = append(moved, d.MessageId)
		}
	}
	return moved, charged
}

// quarantined makes a message one that came back from a worker that ended.
func (w *ward) quarantined(messages ...amqp091.Publishing) {
	w.t.Helper()
	w.Publish("async.return", quarantineQueue, messages...)
}

// manage calls the management API with a body, and returns the status.
func (w *ward) manage(method, path string, body any) int {
	w.t.Helper()
	data, err := json.Marshal(body)
	must(w.t, err)
	request, err := http.NewRequest(method, w.management+path, bytes.NewReader(data))
	must(w.t, err)
	response, err := http.DefaultClient.Do(request)
	must(w.t, err)
	must(w.t, response.Body.Close())
	return response.StatusCode
}

// pod runs a worker and starts it again when it ends by itself, as a kubelet does.
type pod struct {
	ward *ward
	name string
	args []string
	log  lockedBuffer
	gone chan struct{}

	mu       sync.Mutex
	process  *os.Process
	stopping bool
	code     int
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// worker starts a pod of the worker group.
func (w *ward) worker(name string) *pod {
	w.t.Helper()
	return w.run(name)
}

// quarantineWorker starts a pod that handles quarantined messages.
func (w *ward) quarantineWorker() *pod {
	w.t.Helper()
	return w.run("quarantine", "--quarantine", "--journal", w.journal())
}

func (w *ward) journal() string { return filepath.Join(w.folder, "journal") }

func (w *ward) run(name string, args ...string) *pod {
	w.t.Helper()
	p := &pod{ward: w, name: name, gone: make(chan struct{}), args: append([]string{
		"--config", filepath.Join(w.folder, "config.json"), "--credentials", filepath.Join(w.folder, "broker"), "--listen", "127.0.0.1:0",
	}, args...)}
	program, err := os.Executable()
	must(w.t, err)
	must(w.t, p.start(program))
	w.t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", name, tail(p.log.String()))
		}
	})
	return p
}

// tail is the end of a log, without the stacks that the runtime writes where memory runs out: those are thousands of lines.
func tail(text string) string {
	lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool {
		return !strings.HasPrefix(line, "{") && !strings.HasPrefix(line, "fatal error:") && !strings.HasPrefix(line, "panic:")
	})
	return strings.Join(lines[max(0, len(lines)-60):], "")
}

// start starts the process, and what waits for it.
func (p *pod) start(program string) error {
	command := exec.CommandContext(context.Background(), program, p.args...)
	command.Env = append(os.Environ(), doctorVariable+"="+p.ward.URL, "POD_NAME="+p.name, memoryVariable+"="+p.ward.memory)
	command.Stderr = &p.log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		close(p.gone)
		return nil
	}
	if err := command.Start(); err != nil {
		close(p.gone)
		return err
	}
	p.process = command.Process
	go func() {
		_ = command.Wait()
		p.mu.Lock()
		stopping := p.stopping
		p.code = command.ProcessState.ExitCode()
		p.mu.Unlock()
		if stopping {
			close(p.gone)
			return
		}
		_ = p.start(program)
	}()
	return nil
}

// end sends a signal to the process, waits for it, and returns its exit code.
func (p *pod) end(signal os.Signal) int {
	p.mu.Lock()
	p.stopping = true
	_ = p.process.Signal(signal)
	p.mu.Unlock()
	<-p.gone
	return p.code
}
