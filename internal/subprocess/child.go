// Package subprocess starts and ends programs of the team. Each is the leader of a process group of its own, so that what it starts
// ends with it, and on Linux the kernel kills it when this process ends, however that happens.
package subprocess

import (
	"os"
	"sync"
)

// Command is a program and what it is started with.
type Command struct {
	// Args are the program and its arguments; see Find for how the program is found.
	Args []string
	// Dir is the working directory; empty for this process's own.
	Dir string
	// Env is the whole environment, each as NAME=value; nil for this process's own.
	Env []string
}

// Process is a program that was started. Its methods may be called by many goroutines at a time.
type Process struct {
	pid    int
	system system

	mu sync.Mutex
	// reaped says that the pid may belong to another process by now.
	reaped bool
	exit   Exit

	watch sync.Once
	done  chan struct{}
}

// Start finds and starts a program with the three files as its standard input, output and error. They stay the caller's, who
// closes them. The error says what is wrong with the command. Wait or Done must be called, or an ended process is never removed
// from the system's table.
func Start(c Command, stdin, stdout, stderr *os.File) (*Process, error) {
	path, err := Find(c)
	if err != nil {
		return nil, err
	}
	return start(path, c, [3]*os.File{stdin, stdout, stderr})
}

func start(path string, c Command, files [3]*os.File) (*Process, error) {
	pid, system, err := startSystem(path, c, files)
	if err != nil {
		return nil, startError(path, c, err)
	}
	return newProcess(pid, system), nil
}

func newProcess(pid int, system system) *Process {
	return &Process{pid: pid, system: system, done: make(chan struct{})}
}

// Pid of the process, which is the number of its group as well.
func (p *Process) Pid() int { return p.pid }

// Wait waits as Done does, and returns how the program ended.
func (p *Process) Wait() Exit {
	<-p.Done()
	return p.exit
}

// Done is closed when the program has ended and what was left of its group has been killed. Processes that moved to another
// group live on.
func (p *Process) Done() <-chan struct{} {
	p.watch.Do(func() { go p.await() })
	return p.done
}

// Exit says how the program ended; it is to be called after Done only.
func (p *Process) Exit() Exit { return p.exit }

// Kill ends the program and its group at once. It does nothing where they have ended.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		killGroup(p.pid)
	}
}

func (p *Process) await() {
	p.system.await(p.pid)
	p.finish()
}

// finish takes leave of a program that has ended. The group is killed before the system forgets the program, for until then nobody
// else can get its number.
func (p *Process) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	killRest(p.pid)
	p.exit = p.system.reap(p.pid)
	p.reaped = true
	close(p.done)
}
