package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

// lastWords is how long the output of a program is read after its end, where something that it left behind holds it open.
const lastWords = time.Second

// upkeep keeps a program running that is a worker, and knows what it does.
type upkeep struct {
	// args are the program and its arguments, but for the address that it listens on.
	args  []string
	logTo io.Writer
	// limit is how long it may take to stop.
	limit func() time.Duration
	log   *slog.Logger
	ask   *asker

	mu      sync.Mutex
	process *subprocess.Process
	told    record
	// problem is why none runs; empty where one does, or none is to.
	problem string
}

func newUpkeep(args []string, logTo io.Writer, limit func() time.Duration, log *slog.Logger) *upkeep {
	return &upkeep{args: args, logTo: logTo, limit: limit, log: log, ask: newAsker(), told: record{before: tallies{}}}
}

// run keeps the program running until ctx ends. Then it tells it to stop, and returns when it has.
func (u *upkeep) run(ctx context.Context) {
	defer u.report("")
	var pause subprocess.Backoff
	for {
		began := time.Now()
		exit := u.once(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := pause.After(time.Since(began), false, rand.Int64N)
		u.log.Warn("the worker's program ended by itself and is started again", "exit", exit, "in", wait)
		u.report("its program does not run: " + exit)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// once runs the program to its end, and says how it ended.
func (u *upkeep) once(ctx context.Context) (exit string) {
	address, err := freeAddress()
	if err != nil {
		return err.Error()
	}
	process, input, output, err := u.start(address)
	if err != nil {
		return err.Error()
	}
	u.log.Info("the worker's program starts", "process", process.Pid(), "listen", address)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		copyLines(u.logTo, output)
	}()
	over, end := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { u.follow(over, ctx.Done(), address) })
	select {
	case <-process.Done():
	case <-ctx.Done():
		u.stop(process, input)
	}
	_ = input.Close()
	end()
	following.Wait()
	u.ended()
	select {
	case <-reading:
	case <-time.After(lastWords):
	}
	_ = output.Close()
	<-reading
	return process.Exit().String()
}

// start starts the program. Its input stands open until the caller closes it, and its output is all that it prints.
func (u *upkeep) start(address string) (process *subprocess.Process, input, output *os.File, err error) {
	stdin, input, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err //nolint:wrapcheck // it says of what
	}
	defer func() { _ = stdin.Close() }()
	output, printed, err := os.Pipe()
	if err != nil {
		_ = input.Close()
		return nil, nil, nil, err //nolint:wrapcheck // it says of what
	}
	defer func() { _ = printed.Close() }()
	u.mu.Lock()
	defer u.mu.Unlock()
	process, err = subprocess.Start(subprocess.Command{Args: append(slices.Clone(u.args), "--listen", address)}, stdin, printed, printed)
	if err != nil {
		_, _ = input.Close(), output.Close()
		return nil, nil, nil, err
	}
	u.process = process
	return process, input, output, nil
}

// stop tells a program to stop, in the two ways that get through a `go run` or a script before it: the end of its input, and what
// Ctrl-C in a terminal sends. One that has not stopped within the limit is killed.
func (u *upkeep) stop(process *subprocess.Process, input io.Closer) {
	_ = input.Close()
	process.Interrupt()
	limit := u.limit()
	select {
	case <-process.Done():
	case <-time.After(limit):
		u.log.Warn("the worker's program is killed: it has not stopped in time; the broker delivers the rest again", "after", limit)
		process.Kill()
		<-process.Done()
	}
}

// kill ends the program at once.
func (u *upkeep) kill() {
	u.mu.Lock()
	process := u.process
	u.mu.Unlock()
	if process != nil {
		process.Kill()
	}
}

// ended puts what a program has told to what those before it have.
func (u *upkeep) ended() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.process = nil
	u.told.ended()
}

func (u *upkeep) report(problem string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.problem = problem
}

// addTo counts what all programs have done.
func (u *upkeep) addTo(all tallies) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.told.addTo(all)
}

// ready is true where the program that runs has said last that it is.
func (u *upkeep) ready() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.process != nil && u.told.now.ready
}

// follows is true where the program that runs has said last that a configuration is in force, and where none runs: one that is started reads
// what is written.
func (u *upkeep) follows(hash string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.process == nil || u.told.now.status.ConfigHash == hash
}

// member is what the program that runs has told last, or why none runs. known is false where there is neither.
func (u *upkeep) member(process string) (_ member, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.told.member(process, u.problem), u.process != nil || u.problem != ""
}

// freeAddress is one on loopback that nobody listens on at the moment.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String(), nil
}
