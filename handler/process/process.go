// Package process is the program's side of Redrive's process protocol, for teams who write Go: a worker with
// `handler: {process: …}` starts the program, and gives it messages on its standard input. docs/process-protocol.md has the protocol.
// It imports the standard library and redrive.dev/redrive/handler only.
//
//	func main() {
//		// load what the handler needs, then:
//		if err := process.Serve(context.Background(), os.Stdin, os.Stdout, handler.Func(handle), 4); err != nil {
//			log.Fatal(err)
//		}
//	}
package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"redrive.dev/redrive/handler"
)

// Version of the protocol.
const Version = 1

// maxConcurrency is how many messages at a time the protocol allows a process.
const maxConcurrency = 1000

// Serve says hello on out, and hands each message that comes on in to h, concurrency of them at a time at most, 1 to 1000. It
// returns nil when in has ended and all is answered, which is how the worker asks a program to end. It returns the error of ctx when that ends, after the
// messages in hand are answered; call it no more on the same in then.
//
// Nothing else may write to out: print to os.Stderr, which goes to the worker's log. A panic of h ends the program, as it
// should: the worker starts another one, and the message has failed with the source Crash.
func Serve(ctx context.Context, in io.Reader, out io.Writer, h handler.Handler, concurrency int) error {
	if concurrency < 1 || concurrency > maxConcurrency {
		return fmt.Errorf("concurrency is %d; it is 1 to %d", concurrency, maxConcurrency)
	}
	s := &server{handler: h, out: out, room: make(chan struct{}, concurrency)}
	if err := s.write(fmt.Appendf(nil, `{"type":"hello","protocol":%d,"concurrency":%d}`, Version, concurrency)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := make(chan []byte)
	failed := make(chan error, 1)
	go func() {
		failed <- read(ctx, in, lines)
	}()
	defer s.running.Wait()
	for {
		select {
		case line := <-lines:
			if err := s.accept(ctx, line); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // it is the caller's
		}
	}
}

// read passes on the lines of in. The end of in is no error, unless it comes amid a line.
func read(ctx context.Context, in io.Reader, lines chan<- []byte) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := reader.ReadBytes('\n')
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(line)) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the input ends amid a frame")
		default:
			return fmt.Errorf("read the input: %w", err)
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return nil
		}
	}
}

// server is one Serve.
type server struct {
	handler handler.Handler
	room    chan struct{}
	running sync.WaitGroup

	mu  sync.Mutex
	out io.Writer
}

// accept begins with a message.
func (s *server) accept(ctx context.Context, line []byte) error {
	var f frame
	if err := f.read(line); err != nil {
		return err
	}
	if f.Type != "message" {
		return nil // of a later version
	}
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // it is the caller's
	}
	s.running.Go(func() {
		defer func() { <-s.room }()
		// The message is answered even where ctx has ended meanwhile. An error says that nobody reads the answer, and the
		// end of the input then says so too.
		answered := false
		defer func() {
			if !answered && isGoexit() {
				_ = s.write(fmt.Appendf(nil, `{"type":"result","id":%s,"outcome":"failure","class":"Goexit","message":"the handler called runtime.Goexit"}`,
					f.quotedID()))
			}
		}()
		frame := s.answer(ctx, &f)
		answered = true
		_ = s.write(frame)
	})
	return nil
}

// isGoexit is true in a deferred call where the goroutine ends by runtime.Goexit, and false where it panics: that ends the process, and is no result.
func isGoexit() bool {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.Goexit":
			return true
		case frame.Function == "runtime.gopanic", !more:
			return false
		}
	}
}

// answer calls the handler and returns the result frame.
func (s *server) answer(ctx context.Context, f *frame) []byte {
	a := newAttempt(ctx, f.Deadline, func() {
		_ = s.write(fmt.Appendf(nil, `{"type":"progress","id":%s}`, f.quotedID())) // see accept
	})
	defer a.stop()
	err := s.handler.Handle(a, f.message()) //nolint:contextcheck // it is made of ctx
	if err == nil {
		return fmt.Appendf(nil, `{"type":"result","id":%s,"outcome":"ack"}`, f.quotedID())
	}
	failure := handler.FailureOf(err)
	r := result{
		Type: "result", ID: f.ID, Outcome: "failure", Class: cut(failure.Class), Message: cut(failure.Message), Status: failure.Status,
		Advice: failure.Advice,
	}
	if failure.RetryAfter != nil {
		seconds := failure.RetryAfter.Seconds()
		r.RetryAfter = &seconds
	}
	if failure.Carry != nil {
		r.Carry = new(cut(*failure.Carry)) // what is too long is so still, and the worker says it
	}
	data, _ := json.Marshal(r) //nolint:errchkjson // texts and numbers
	return data
}

// maxText keeps a result far below the longest frame that the worker reads.
const maxText = 16 << 10

func cut(text string) string { return text[:min(len(text), maxText)] }

// write writes a frame, at once and whole.
func (s *server) write(frame []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.Write(append(frame, '\n')); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
