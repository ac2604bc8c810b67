package handler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"sync"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/subprocess"
)

// ClassNotStarted is a command that could not be started, so that nothing has seen the message.
const ClassNotStarted = "NotStarted"

const (
	// maxStdout is how much of the end of a standard output is kept, and so the longest result.
	maxStdout = 64 << 10
	// maxStderr is how much of the end of a standard error is kept.
	maxStderr = 8 << 10
)

// Exec starts a command for each message: the body is its standard input, the rest is in its environment, and exit code 0 is
// success, unless the last line of its standard output is a result that says otherwise.
//
// The command is the leader of a process group of its own. When it has ended, what it has left running in that group is killed; so is
// all of it when the attempt's time is up. A process that moves to a group of its own lives on, and is not waited for.
type Exec struct {
	command subprocess.Command
	// environment that each command gets beside the message's own.
	environment []string
	stderr      *stderrLog
	lookout     *lookout
}

// NewExec returns a handler that starts a command. A program that is not there yet is no error: the handler is not ready until it
// is.
func NewExec(spec v1alpha1.ExecHandler, options Options) (*Exec, error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return nil, errors.New("the exec handler needs a command that begins with the name of a program")
	}
	e := &Exec{
		command:     subprocess.Command{Args: spec.Command},
		environment: inherited(os.Environ(), options.Withheld),
		stderr:      newStderrLog(options.logger()),
	}
	e.lookout = newLookout(func() (string, error) { return subprocess.Find(e.command) }, options.logger())
	return e, nil
}

// Ready says whether there is a program that can be started, as far as that can be seen without doing so.
func (e *Exec) Ready() (why error, changed <-chan struct{}) { //nolint:revive,staticcheck // the order is Handler's
	changed, why = e.lookout.ready()
	return why, changed
}

// Close ends the search for a program that is not there.
func (e *Exec) Close() error {
	e.lookout.close()
	return nil
}

// Handle runs the command for one message.
func (e *Exec) Handle(ctx context.Context, request Request) *retry.Failure {
	if err := ctx.Err(); err != nil {
		return brokenOff(err, "")
	}
	path, err := e.lookout.program()
	if err != nil {
		return notStarted(err)
	}
	said, _ := sayings.Get().(*saying) // there is nothing else in it
	defer said.release()

	command := e.command
	command.Env = said.variables.of(ctx, &request, e.environment)
	exit, err := subprocess.Run(ctx, path, command, request.Body, &said.stdout, &said.stderr)
	if err != nil {
		e.lookout.stumbled(path, err)
		return notStarted(err)
	}
	e.lookout.walked()
	if text := said.stderr.String(); text != "" {
		e.stderr.write(func() []any {
			return []any{"queue", request.Queue, "message", request.ID, "attempt", request.Attempt, "text", text}
		})
	}
	return said.failure(ctx, exit)
}

func notStarted(err error) *retry.Failure {
	text := message.Text(err.Error(), message.MaxText)
	return &retry.Failure{Source: retry.SourceConnection, Class: ClassNotStarted, Message: text, Logged: text}
}

// saying is what a command wrote, with room for what it is told.
type saying struct {
	stdout    lastLine
	stderr    subprocess.Tail
	variables variables
}

var sayings = sync.Pool{New: func() any { //nolint:gochecknoglobals // a pool is for all that need one
	return &saying{stdout: lastLine{tail: subprocess.Tail{Size: maxStdout}}, stderr: subprocess.Tail{Size: maxStderr}}
}}

func (s *saying) release() {
	s.stdout.reset()
	s.stderr.Reset()
	sayings.Put(s)
}

// failure makes the outcome of how a command ended and what it wrote; nil is success. A command that came to an end by itself is
// judged by that, even if it was at the last moment.
func (s *saying) failure(ctx context.Context, exit subprocess.Exit) *retry.Failure {
	if end := ctx.Err(); end != nil && exit.Code < 0 {
		return brokenOff(end, s.lastWords())
	}
	if exit.Code < 0 {
		return killed(exit, s.lastWords())
	}
	line, whole := s.stdout.last()
	var failure *retry.Failure
	switch {
	case !whole:
		return malformedResult(errTooLong)
	case isResult(line):
		failure = decodeResult(line)
	case exit.Code == 0:
		return nil
	}
	if exit.Code != 0 {
		failure = exited(failure, exit)
	}
	if failure != nil && failure.Message == "" {
		failure.Message = cmp.Or(s.lastWords(), exit.String()+", without a word on standard error")
		failure.Logged = exit.String()
	}
	return failure
}

// lastWords are the end of the standard error, as it stands in a failure.
func (s *saying) lastWords() string {
	last, cut := s.stderr.Bytes()
	return message.Text(subprocess.Text(last, cut, message.MaxText), message.MaxText)
}

var errTooLong = errors.New("it is longer than 64 KiB")

// lastLine keeps the last line that is not empty of an output.
type lastLine struct {
	tail subprocess.Tail
	// head is the beginning of the last line, however long it is. ended says that the next byte begins another one.
	head  []byte
	ended bool
	// outcome is true where the last line has the word of a result, and seam what may be the beginning of that.
	outcome bool
	seam    []byte
}

// headSize is how much of a line's beginning is kept, to tell whether it is meant as a result.
const headSize = 256

func (l *lastLine) reset() {
	l.tail.Reset()
	l.begin()
}

// begin begins another line.
func (l *lastLine) begin() { l.head, l.ended, l.outcome, l.seam = l.head[:0], false, false, l.seam[:0] }

// Write never fails.
func (l *lastLine) Write(p []byte) (int, error) {
	text := bytes.TrimRight(p, " \t\r\n")
	if len(text) > 0 {
		if l.ended {
			_, _ = l.tail.Write([]byte{'\n'})
		}
		_, _ = l.tail.Write(text)
		begin := 0
		if bytes.IndexByte(text, '\n') >= 0 { // it is many times as fast as the search from the end
			begin = bytes.LastIndexByte(text, '\n') + 1
		}
		if begin > 0 || l.ended {
			l.begin()
		}
		l.head = append(l.head, text[begin:min(len(text), begin+headSize-min(len(l.head), headSize))]...)
		l.lookForOutcome(text[begin:])
	}
	rest := p[len(text):]
	if len(rest) > 0 {
		l.seam = l.seam[:0]
	}
	l.ended = l.ended || bytes.IndexByte(rest, '\n') >= 0
	if !l.ended { // white space within a line; what follows the last one must not push it out
		_, _ = l.tail.Write(rest)
	}
	return len(p), nil
}

// lookForOutcome looks for the word that makes a line a result, wherever it stands in a line that is too long to be kept.
func (l *lastLine) lookForOutcome(part []byte) {
	word := []byte(`"outcome"`)
	most := len(word) - 1
	l.seam = append(l.seam, part[:min(len(part), most)]...)
	l.outcome = l.outcome || bytes.Contains(l.seam, word) || bytes.Contains(part, word)
	if len(part) > most {
		l.seam = append(l.seam[:0], part[len(part)-most:]...)
	}
	l.seam = l.seam[:copy(l.seam, l.seam[max(0, len(l.seam)-most):])]
}

// last returns the last line. whole is false for one that is meant as a result and too long to be kept.
func (l *lastLine) last() (line []byte, whole bool) {
	tail, cut := l.tail.Bytes()
	tail = trimLine(tail)
	begin := bytes.LastIndexByte(tail, '\n') + 1
	if begin > 0 || !cut {
		return trimLine(tail[begin:]), true
	}
	return nil, !l.outcome || !bytes.HasPrefix(trimLine(l.head), []byte("{"))
}
