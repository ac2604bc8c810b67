package subprocess

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stubborn is how long the end of a killed program is waited for, once or twice. The system keeps one that waits for a disk or for
	// a file server that is gone.
	stubborn = 2 * time.Second
	// leftover bounds what is still read of an output after its program has ended. It is more than fits into a pipe: only a
	// process that left the group can write as much.
	leftover = 4 << 20
	// chunk is how much is read from a pipe at a time, and as much as fits into one.
	chunk = 64 << 10
)

// Run starts the program that Find found, writes input to it and what it says to output and problems, and waits for its end. What is
// left of its group is killed then, and what left the group is not waited for. A program need not read its input. When ctx ends, the
// group is killed at once. The writers must not fail. The error says why the program was not started.
//
// It is as fast as a program can be started: no goroutine, and one thread that waits for all that can happen.
func Run(ctx context.Context, path string, c Command, input []byte, output, problems io.Writer) (Exit, error) {
	r := run{input: input, writers: [2]io.Writer{outputRead: output, problemsRead: problems}}
	defer r.close()
	err := r.start(path, c)
	if err == nil {
		err = r.end(ctx)
	}
	if err != nil {
		return Exit{}, startError(path, c, err)
	}
	return r.exit, nil
}

// run is a program at work.
type run struct {
	process *Process
	pipes   pipes
	// input that is not written yet.
	input []byte
	// writers of the output and the errors.
	writers [2]io.Writer
	waits   [4]unix.PollFd
	buffer  *[chunk]byte
	exit    Exit
}

// start starts the program.
func (r *run) start(path string, c Command) error {
	if err := r.pipes.open(len(r.input)); err != nil {
		return err
	}
	r.feed()
	pid, system, err := fork(path, c, r.pipes.theirs())
	if err != nil {
		return err
	}
	r.pipes.closeTheirs()
	r.process = newProcess(pid, system)
	return nil
}

// end accompanies the program to its end.
func (r *run) end(ctx context.Context) error {
	ended, free, err := r.process.ended()
	if err != nil {
		r.process.Kill()
		r.process.Wait()
		return err
	}
	defer free()
	defer context.AfterFunc(ctx, r.process.Kill)()
	if !r.converse(ctx, ended) {
		r.process.Done() // it is taken away when it ends, if it does
		r.exit = Exit{Code: -1, Signal: unix.SIGKILL}
		return nil
	}
	r.process.finish()
	r.drain()
	r.exit = r.process.Exit()
	return nil
}

func (r *run) close() {
	r.pipes.close()
	if r.buffer != nil {
		buffers.Put(r.buffer)
	}
}

// The places of what is waited for. What a program wrote before its end is seen with it, for its end is looked at first.
const (
	atEnd = iota
	atOutput
	atProblems
	atInput
)

// converse gives the program its input and takes what it says, until it ends. It is false if the program does not end though it
// was killed.
func (r *run) converse(ctx context.Context, ended int) bool {
	for late := false; ; {
		r.waits = [...]unix.PollFd{
			atEnd:      wait(ended, unix.POLLIN),
			atOutput:   wait(r.pipes[outputRead], unix.POLLIN),
			atProblems: wait(r.pipes[problemsRead], unix.POLLIN),
			atInput:    wait(r.pipes[inputWrite], unix.POLLOUT),
		}
		n, err := unix.Poll(r.waits[:], int(stubborn.Milliseconds()))
		switch {
		case err != nil: // EINTR; with four descriptors there is no other
			continue
		case n == 0 && late:
			return false
		case n == 0:
			late = ctx.Err() != nil
		}
		r.take(outputRead, r.waits[atOutput].Revents)
		r.take(problemsRead, r.waits[atProblems].Revents)
		if r.waits[atEnd].Revents != 0 {
			return true
		}
		if r.waits[atInput].Revents != 0 {
			r.feed()
		}
	}
}

func wait(fd int, events int16) unix.PollFd {
	return unix.PollFd{Fd: int32(fd), Events: events} //nolint:gosec // descriptors are small
}

// feed writes as much of the input as the pipe takes, and closes it after the last byte or when nobody reads it.
func (r *run) feed() {
	n, err := 0, error(nil)
	if len(r.input) > 0 {
		n, err = unix.Write(r.pipes[inputWrite], r.input)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	r.input = r.input[max(n, 0):]
	if err != nil || len(r.input) == 0 {
		r.pipes.closeOne(inputWrite)
	}
}

// take reads once from a pipe of which poll says that there is something, if only its end. It returns how much it was.
func (r *run) take(pipe int, events int16) int {
	n := 0
	if events&unix.POLLIN != 0 {
		if r.buffer == nil {
			r.buffer, _ = buffers.Get().(*[chunk]byte)
		}
		n, _ = unix.Read(r.pipes[pipe], r.buffer[:]) // an error is an end
		if n > 0 {
			_, _ = r.writers[pipe].Write(r.buffer[:n]) // these do not fail
		}
	}
	if events != 0 && n <= 0 {
		r.pipes.closeOne(pipe)
	}
	return max(n, 0)
}

// drain reads what is left in the pipes after the program's end. Processes that left its group may still hold them.
func (r *run) drain() {
	for _, pipe := range []int{outputRead, problemsRead} {
		for left := leftover; left > 0 && r.pipes[pipe] >= 0; {
			r.waits[0] = wait(r.pipes[pipe], unix.POLLIN)
			if n, err := unix.Poll(r.waits[:1], 0); err == nil && n == 0 {
				break
			}
			left -= r.take(pipe, r.waits[0].Revents)
		}
	}
}

// buffers are what is read from pipes.
var buffers = sync.Pool{New: func() any { return new([chunk]byte) }} //nolint:gochecknoglobals // a pool is for all that need one
