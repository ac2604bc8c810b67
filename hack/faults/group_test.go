package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testtransport"
)

// endsWithin is how long a worker may take to settle what it has when it is told to stop.
const endsWithin = testtransport.Patience

// group is the processes of one worker group, as the pods of a Deployment would run them.
type group struct {
	t testing.TB
	// workers take messages from the work queue.
	workers []*process
	// quarantine is the worker that handles alone what a session has left unsettled; nil where another process runs it.
	quarantine *process
}

// startGroup starts the processes of the scene's worker group.
func (s *scene) startGroup(replicas int) *group {
	s.t.Helper()
	g := &group{t: s.t}
	for n := range replicas {
		g.workers = append(g.workers, s.newWorker(fmt.Sprint("worker-", n)))
	}
	g.quarantine = s.newWorker("quarantine", "--quarantine", "--journal", s.t.TempDir())
	g.start()
	return g
}

// start starts all processes, which end with the test.
func (g *group) start() {
	g.t.Helper()
	for _, p := range g.all() {
		p.start()
		g.t.Cleanup(func() {
			p.kill()
			if g.t.Failed() {
				g.t.Logf("the end of %s's log:\n%s", p.name, p.log.end())
			}
		})
	}
}

// all processes of the group.
func (g *group) all() []*process {
	if g.quarantine == nil {
		return g.workers
	}
	return append(slices.Clone(g.workers), g.quarantine)
}

// revive starts those that have ended, as the kubelet does.
func (g *group) revive() {
	for _, p := range g.all() {
		if !p.alive() {
			p.start()
		}
	}
}

// onLoan is the number of deliveries that the group has not settled.
func (g *group) onLoan() int {
	total := 0
	for _, p := range g.all() {
		total += p.wire.onLoan()
	}
	return total
}

// stop tells all to stop, and fails the test where one does not end by itself and with success.
func (g *group) stop() {
	g.t.Helper()
	for _, p := range g.all() {
		p.terminate()
	}
}

// process is a worker with a wire of its own to the broker. It can be started again after it has ended.
type process struct {
	t    testing.TB
	name string
	wire *wire
	// address of its endpoints; empty where that is not known.
	address string
	// command makes the command to run.
	command func() *exec.Cmd
	log     *output

	mu      sync.Mutex
	running *exec.Cmd
	// done is closed when the process has ended, and err is how.
	done chan struct{}
	err  error
}

// newWorker configures the worker's binary, or, where the scene has a clock, the worker of this test's binary, which knows no
// more flags.
func (s *scene) newWorker(name string, more ...string) *process {
	s.t.Helper()
	w := newWire(s.t, s.target)
	folder := s.t.TempDir()
	write(s.t, filepath.Join(folder, "config.json"), s.config)
	s.logins = append(s.logins, login{folder: filepath.Join(folder, "broker"), address: s.names.named(w.address, brokerName)})
	s.logins[len(s.logins)-1].write(s)
	address, listen := "", "127.0.0.1:0"
	if s.serving {
		address = freeAddress(s.t)
		listen = address
	}
	return &process{t: s.t, name: name, wire: w, address: address, log: &output{}, command: func() *exec.Cmd {
		arguments := append([]string{
			"--config", filepath.Join(folder, "config.json"), "--credentials", filepath.Join(folder, "broker"),
			"--listen", listen, "--log-level", "WARN",
		}, more...)
		if s.files != "" {
			arguments = append(arguments, "--handler-files", s.files)
		}
		if s.names != nil {
			return s.names.command(arguments)
		}
		if s.clock == "" || len(more) > 0 {
			return exec.CommandContext(context.Background(), programs(s.t).worker, arguments...)
		}
		command := exec.CommandContext(context.Background(), os.Args[0], arguments...)
		command.Env = append(os.Environ(), clockVariable+"="+s.clock)
		return command
	}}
}

func (p *process) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	command, done := p.command(), make(chan struct{})
	command.Stdout, command.Stderr = p.log, p.log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithTest(command.SysProcAttr)
	if err := command.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.running, p.done = command, done
	go func() {
		err := command.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
}

func (p *process) ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

func (p *process) alive() bool {
	select {
	case <-p.ended():
		return false
	default:
		return true
	}
}

// kill ends the process, and all that it has started, as the kernel does when memory runs out. It returns when it is gone.
func (p *process) kill() {
	p.mu.Lock()
	command, done := p.running, p.done
	p.mu.Unlock()
	if command != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		<-done
	}
}

// terminate tells the process to stop, as the kubelet does, and waits until it has.
func (p *process) terminate() {
	p.t.Helper()
	_ = p.running.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended():
	case <-time.After(endsWithin):
		p.t.Fatalf("%s did not stop within %s", p.name, endsWithin)
	}
	if p.err != nil {
		p.t.Errorf("%s did not stop cleanly: %v", p.name, p.err)
	}
}

// killed is the fault that kills the process.
func (p *process) killed(c *cable, _ side, _ uint16) {
	p.kill()
	c.cut()
}

// output keeps what processes write.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// end is the last of it.
func (o *output) end() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.Bytes()
	return bytes.Clone(text[max(0, len(text)-8000):])
}
