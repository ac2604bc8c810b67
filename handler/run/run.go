// Package run makes a program of a handler: the worker of a Transport, with the handler in its own process. It is the worker that
// Redrive ships, which is this package with no handler in it. A Transport names the image of such a program with
//
//	handler: {image: registry.example.com/orders:1.4.0, inProcess: {}}
//
// and `redrive run -f DIR -- PROGRAM` runs it without a cluster.
package run

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/quarantine"
	"redrive.dev/redrive/internal/subprocess"
	"redrive.dev/redrive/internal/worker"
)

// Main is the whole main function of a worker: it reads the command line and runs until SIGTERM or SIGINT, after which it
// receives no more messages, waits for the handler, and settles what it has. It never returns.
//
//	func main() { run.Main(handler.Func(handle)) }
//
// The worker's flags are added to those of flag.CommandLine, so that a program can have its own, of other names; it must leave it to
// Main to parse them. The exit code is 0 after a stop, 1 after an error, which is on standard error, and 2 where the command line
// is wrong. With --quarantine it is that of the worker's process, which is then a child of this one.
//
// It has to be called by the main goroutine: where the process is the first of its container, that one takes away the processes
// that others leave behind. Where h is nil the Transport has to name another handler than inProcess.
func Main(h handler.Handler) {
	o := Flags(flag.CommandLine)
	flag.Parse()
	worker.LetHeapGrow()
	httpserver.GuardStandardLog()
	os.Exit(subprocess.Main(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return exitCode(Run(ctx, h, *o))
	}))
}

// exitCode tells an error to people, if there is one, and gives the code for it.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if ended, ok := errors.AsType[childError](err); ok {
		return int(ended) // it has said why itself
	}
	_, _ = fmt.Fprintln(os.Stderr, "worker:", err)
	return 1
}

// Run is Main for a program with a main function of its own. It runs a worker until ctx ends and all is settled, or until an
// error that needs people or a new process; a broker or a handler that is away is none.
//
// On Kubernetes the program is given the worker's command line, so it has to take its Options from Flags. Where they say Quarantined messages,
// Run starts the same program again with the same arguments and hands the work to that child, so nothing before it may be in the
// way of a second process.
func Run(ctx context.Context, h handler.Handler, o Options) error {
	o = o.complete()
	if o.Install != "" {
		return install(o.Install)
	}
	isChild := o.Quarantine && quarantine.IsChild()
	switch {
	case isChild:
		ctx = quarantine.Attach(ctx)
	case o.UntilEOF:
		var release func()
		ctx, release = untilEOF(ctx)
		defer release()
	}
	if o.Quarantine && !isChild {
		return supervise(ctx, &o)
	}
	return work(ctx, h, &o)
}

// untilEOF gives a context that ends when standard input does, or when one of the signals comes that whoever started this
// process may send to it and all that is between them.
func untilEOF(ctx context.Context) (until context.Context, release func()) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer end()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx, func() { end(); stop() }
}

// childError is the exit code of a child.
type childError int

func (e childError) Error() string {
	return fmt.Sprintf("the quarantine worker ended with exit code %d", int(e))
}

// supervise runs the quarantine worker as a child process.
func supervise(ctx context.Context, o *Options) error {
	supervisor := quarantine.Supervisor{Command: quarantine.Itself, Journal: o.Journal, Log: o.Log}
	if code := supervisor.Run(ctx); code != 0 {
		return childError(code)
	}
	return nil
}
