package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
)

const (
	// longestLine of an export, in bytes: RabbitMQ takes bodies of at most 128 MiB, of which base64 makes a third more.
	longestLine = 256 << 20
	// mostImporting messages are published before the first of them is confirmed, of so many bytes.
	mostImporting      = 256
	mostImportingBytes = 16 << 20
	// confirmWithin is how long the broker may take to confirm one.
	confirmWithin = time.Minute
)

// importFlags are those of import.
type importFlags struct {
	orderFlags

	input string
	skip  int
}

func newFailedImport(env Environment) *cobra.Command {
	var flags importFlags
	command := &cobra.Command{
		Use:   "import [TRANSPORT]",
		Short: "Put exported messages into the failure queue, to be replayed",
		Long: `Import publishes the messages of a file that redrive failed export has written into the failure queue of a Transport, in the order of the file. They
are as they were: with their properties, headers, bodies and reasons, so that redrive failed replay sends them back.

First it reads the whole file: where a line is damaged, or has masks, nothing is imported. Then it shows what it would do, and asks. Without a terminal it needs
--yes. --plan shows the plan alone. A message that is in the file twice, or is in the failure queue already, is there twice after that.

Where it is stopped in the middle it says how many messages are in the failure queue, and --skip goes on behind them.

The login needs the right to write to the exchange that ends in .failed.

Exit codes: 0 done; 1 it was interrupted; 2 an error.` + planExitHelp + "\n" + failedHelp,
		Example: `  redrive failed import async -n shop -i failed.ndjson
  redrive failed import -f config/samples -i failed.ndjson --plan`,
		Args: oneTransport,
	}
	command.RunE = flags.runE(env, func(ctx context.Context, name string) error { return flags.carryOut(ctx, env, name) })
	flags.failedFlags.define(command, false)
	set := command.Flags()
	set.StringVarP(&flags.input, "input", "i", "", "`file` that redrive failed export has written")
	set.IntVar(&flags.skip, "skip", 0, "`number` of messages at the start of the file to leave out, as those that are in the failure queue already")
	set.BoolVar(&flags.planOnly, "plan", false, "show what would be done, and do nothing")
	set.BoolVarP(&flags.yes, "yes", "y", false, "do not ask")
	return command
}

// carryOut reads the file, shows the plan, asks, and imports.
func (f *importFlags) carryOut(ctx context.Context, env Environment, name string) error {
	if f.input == "" || f.input == "-" {
		return errors.New("-i: name a file: it is read twice")
	}
	if f.skip < 0 {
		return errors.New("--skip: a number of messages, from 0")
	}
	queues := map[string]int{}
	chosen := 0
	err := f.each(ctx, func(_ message.Message, queue string) error {
		queues[queue]++
		chosen++
		return nil
	})
	switch {
	case err != nil:
		return err
	case chosen == 0:
		return fmt.Errorf("%s has no message behind the first %s", f.input, grouped(f.skip))
	case !f.planOnly && !f.yes:
		if err := canAsk(env); err != nil {
			return err
		}
	}
	l, err := f.open(ctx, env, name)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.takesFailed(ctx); err != nil {
		return err
	}
	into := l.names.FailureQueue()
	if err := write(env.Out, []byte(importText(f.input, into, chosen, queues))); err != nil {
		return err
	}
	switch {
	case f.planOnly:
		return errChanges
	case !f.yes:
		if err := confirm(ctx, env, fmt.Sprintf("Import %s?", messages(chosen))); err != nil {
			return err
		}
	}
	done, err := f.publish(ctx, env, l)
	if err := write(env.Out, fmt.Appendf(nil, "%s of %s are in %s\n", grouped(done), messages(chosen), into)); err != nil {
		return err
	}
	if err == nil {
		return nil
	}
	goOn := fmt.Sprintf("to go on behind the %s that are confirmed, use --skip %d; up to %d of the next may be in the failure queue, too",
		messages(done), f.skip+done, mostImporting)
	if ctx.Err() != nil {
		return errors.Join(write(env.Err, []byte("interrupted: "+goOn+"\n")), errUnfinished)
	}
	return fmt.Errorf("%w; %s", err, goOn)
}

// importText is the plan.
func importText(file, into string, chosen int, queues map[string]int) string {
	rows := make([][]string, 0, len(queues)+1)
	rows = append(rows, []string{headQueue, "MESSAGES"})
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		rows = append(rows, []string{dash(queue), grouped(queues[queue])})
	}
	return fmt.Sprintf("Plan: import %s from %s into %s\n", messages(chosen), file, into) + lines(rows, 2)
}

// takesFailed refuses a broker without the exchange that leads to the failure queue, or without that queue.
func (l *look) takesFailed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	observed, err := l.port.Observe(ctx)
	if err != nil {
		return fmt.Errorf("ask the management API about exchanges: %w", err)
	}
	if _, exists := observed.Exchanges[l.names.Failed()]; !exists {
		return fmt.Errorf("there is no exchange %q in vhost %q: Transport %s has no topology there", l.names.Failed(), l.target.VHost, l.transport.Name)
	}
	if _, err := l.state(ctx); errors.Is(err, broker.ErrNotFound) {
		return fmt.Errorf("there is no failure queue %q in vhost %q", l.names.FailureQueue(), l.target.VHost)
	} else if err != nil {
		return fmt.Errorf("ask the management API about the failure queue: %w", err)
	}
	return nil
}

// each shows visit the messages of the file, with their work queues, behind those that are skipped.
func (f *importFlags) each(ctx context.Context, visit func(m message.Message, queue string) error) error {
	file, err := os.Open(f.input)
	if err != nil {
		return fmt.Errorf("read the export: %w", err)
	}
	defer func() { _ = file.Close() }()
	reader := bufio.NewReaderSize(file, 1<<20)
	for n := 1; ctx.Err() == nil; n++ {
		line, err := readLine(reader)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && n > f.skip {
			err = f.visit(line, visit)
		}
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", f.input, n, err)
		}
	}
	return ctx.Err() //nolint:wrapcheck // the caller's own context
}

// visit reads one line as a message that can be published: what would delete or multiply it, and a user that is not the login's, are kept aside, as on
// each copy that Redrive makes of a failed message.
func (f *importFlags) visit(line []byte, visit func(m message.Message, queue string) error) error {
	m, queue, err := deadletter.Import(line)
	if err != nil {
		return err
	}
	staged, err := message.Staged(m, 0, 0)
	if err != nil {
		return err
	}
	m, _, _ = message.Unstaged(staged)
	return visit(m, queue)
}

// readLine is the next line, without its end. The last one may have none.
func readLine(reader *bufio.Reader) (line []byte, err error) {
	for {
		part, err := reader.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(line) < longestLine:
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("it is longer than %d bytes", longestLine)
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(line)) > 0:
			return line, nil
		default:
			return line, err //nolint:wrapcheck // io.EOF must stay what it is
		}
	}
}

// importing is a message that is published and not confirmed.
type importing struct {
	size int
	wait func() error
}

// publish puts the messages into the failure queue, in their order, and tells how many are there: those before the first that is not confirmed.
func (f *importFlags) publish(ctx context.Context, env Environment, l *look) (done int, err error) {
	publisher := amqp.NewPublisher(amqp.Options{
		Source: func() (amqp.Target, error) { return l.target, nil }, Dial: l.dial, Name: holder("redrive failed import", l.now),
		Log: slog.New(slog.NewTextHandler(env.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	// It outlives the context, so that what was published is confirmed and counted.
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go publisher.Run(publishing)
	var open []importing
	bytes := 0
	confirm := func() error {
		first := open[0]
		open, bytes = open[1:], bytes-first.size
		if err := first.wait(); err != nil {
			return fmt.Errorf("message %d is not confirmed: %w", f.skip+done+1, errors.Join(err, publisher.Trouble()))
		}
		done++
		return nil
	}
	err = f.each(ctx, func(m message.Message, _ string) error {
		size := len(m.Body) + message.HeaderSize(m.Headers)
		for len(open) == mostImporting || len(open) > 0 && bytes+size > mostImportingBytes {
			if err := confirm(); err != nil {
				return err
			}
		}
		m.Exchange = l.names.Failed()
		within, cancel := context.WithTimeout(publishing, confirmWithin)
		wait, err := publisher.Begin(within, &m)
		if err != nil {
			cancel()
			return fmt.Errorf("publish: %w", errors.Join(err, publisher.Trouble()))
		}
		open = append(open, importing{size, func() error { defer cancel(); return wait() }})
		bytes += size
		return nil
	})
	for len(open) > 0 {
		if wrong := confirm(); wrong != nil {
			return done, errors.Join(err, wrong)
		}
	}
	return done, err
}
