package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/failurequeue"
)

// failedRun is what a command of failed does, with its errors as those of failed.
func failedRun(env Environment, run func(ctx context.Context, name string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		ctx, stop := untilSignal(command.Context(), env.Signals)
		defer stop()
		if err := run(ctx, slices.Concat(args, []string{""})[0]); err != nil {
			return &statusError{err}
		}
		return nil
	}
}

func newFailedGroups(env Environment) *cobra.Command {
	var flags failedFlags
	command := &cobra.Command{
		Use:   "groups [TRANSPORT]",
		Short: "Count the messages that failed alike",
		Long: `Groups shows the causes of the messages that were given up, those of most messages first. Messages have one cause if they failed for the
same reason, by the same strategy, with the same status, class and message of the last error; numbers, IDs, addresses and quoted text in that
message do not count. <n>, <uuid>, <s> and the like stand for them.
` + failedHelp,
		Example: `  redrive failed groups async -n shop
  redrive failed groups -f config/samples --since 1h
  redrive failed groups async --where 'error.status >= 500'`,
		Args: oneTransport,
	}
	command.RunE = failedRun(env, func(ctx context.Context, name string) error {
		if !slices.Contains([]string{formatTable, formatJSON}, flags.format) {
			return fmt.Errorf("-o %s: the formats are table and json", flags.format)
		}
		var causes deadletter.Causes
		found, err := flags.run(ctx, env, name, func(l *deadletter.Letter) error {
			causes.Add(l.Entry())
			return nil
		})
		if err != nil && !errors.Is(err, failurequeue.ErrNotWhole) {
			return err
		}
		if flags.format == formatJSON {
			return errors.Join(err, found.json(env, "causes", causes.List()))
		}
		return errors.Join(err, write(env.Out, []byte(found.heading()+causesText(causes.List(), found.now))))
	})
	flags.define(command, true)
	command.Flags().StringVarP(&flags.format, "output", "o", formatTable, "`format`: table or json")
	return command
}

func newFailedList(env Environment) *cobra.Command {
	var flags failedFlags
	var limit int
	command := &cobra.Command{
		Use:     "ls [TRANSPORT]",
		Aliases: []string{"list"},
		Short:   "List the messages that were given up, the latest first",
		Long: `Ls shows messages that were given up, with their errors and without their bodies: those that were given up last stand
first. The KEY is the same each time; redrive failed show takes it.
` + failedHelp,
		Example: `  redrive failed ls async -n shop --cause f3a91c02
  redrive failed ls -f config/samples --queue orders -o wide
  redrive failed ls async --where "message.headers.partner == 'acme' && failure.age < duration('24h')" -o json`,
		Args: oneTransport,
	}
	command.RunE = failedRun(env, func(ctx context.Context, name string) error {
		switch {
		case !slices.Contains([]string{formatTable, formatWide, formatJSON}, flags.format):
			return fmt.Errorf("-o %s: the formats are table, wide and json", flags.format)
		case limit < 1:
			return errors.New("--limit: at least 1")
		}
		last := latest{limit: limit}
		found, err := flags.run(ctx, env, name, func(l *deadletter.Letter) error {
			last.add(l.Entry())
			return nil
		})
		if err != nil && !errors.Is(err, failurequeue.ErrNotWhole) {
			return err
		}
		entries := last.entries()
		if flags.format == formatJSON {
			return errors.Join(err, found.json(env, "failed", entries))
		}
		text := found.heading() + entriesText(entries, found.now, flags.format == formatWide)
		if more := found.chosen - len(entries); more > 0 {
			text += fmt.Sprintf("%s older ones are not shown: --limit\n", grouped(more))
		}
		return errors.Join(err, write(env.Out, []byte(text)))
	})
	flags.define(command, true)
	command.Flags().IntVar(&limit, "limit", 50, "most messages to show, the latest of them")
	command.Flags().StringVarP(&flags.format, "output", "o", formatTable, "`format`: table, wide or json")
	return command
}

// heading says what was looked at.
func (l looked) heading() string {
	text := fmt.Sprintf("%s failed messages in %s", grouped(l.all), l.names.FailureQueue())
	if l.all == 1 {
		text = "1 failed message in " + l.names.FailureQueue()
	}
	if l.chosen != l.all {
		text += fmt.Sprintf(", %s of them chosen", grouped(l.chosen))
	}
	return fmt.Sprintf("%s, as of %s (%.1f s)\n", plainLine(text), l.now.Format(time.TimeOnly), l.took.Seconds())
}

// json is the report of a look, with what was asked for under a name.
func (l looked) json(env Environment, name string, list any) error {
	text, err := json.MarshalIndent(map[string]any{
		"transport": l.transport.Name, "namespace": l.transport.Namespace, "failureQueue": l.names.FailureQueue(),
		"asOf": l.now.UTC().Format(time.RFC3339), "messages": l.all, "chosen": l.chosen, name: list,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	return write(env.Out, append(text, '\n'))
}

func causesText(causes []deadletter.Cause, now time.Time) string {
	if len(causes) == 0 {
		return ""
	}
	rows := [][]string{{"CAUSE", "MESSAGES", "QUEUES", "REASON", "FIRST", "LAST", "ERROR"}}
	for i := range causes {
		cause := &causes[i]
		rows = append(rows, []string{
			cause.ID, grouped(cause.Messages), some(cause.Queues), byStrategy(cause.Reason, cause.Strategy), ago(cause.First, now), ago(cause.Last, now),
			shorter(cause.Error, shownError),
		})
	}
	return lines(rows, 2, 3, 6)
}

func entriesText(entries []deadletter.Entry, now time.Time, wide bool) string {
	if len(entries) == 0 {
		return ""
	}
	rows := [][]string{{"KEY", headQueue, "REASON", "ATTEMPTS", "AGE", "ERROR"}}
	left := []int{1, 2, 5}
	if wide {
		rows = [][]string{{"KEY", headQueue, "REASON", "ATTEMPTS", "AGE", "ID", "TYPE", "CAUSE", "SIZE", "TRACE", "ERROR"}}
		left = []int{1, 2, 5, 6, 7, 9, 10}
	}
	for i := range entries {
		e := &entries[i]
		row := []string{e.Key, e.Queue, byStrategy(e.Reason, e.Strategy), strconv.FormatInt(e.Attempts, 10), ago(e.FailedAt, now)}
		if wide {
			row = append(row, dash(e.ID), dash(e.Type), e.Cause, strconv.Itoa(e.Size), dash(e.Trace), e.ErrorText())
		} else {
			row = append(row, shorter(e.ErrorText(), shownError))
		}
		rows = append(rows, row)
	}
	return lines(rows, left...)
}

func lines(rows [][]string, left ...int) string {
	for _, row := range rows {
		for i := range row {
			row[i] = plainLine(row[i])
		}
	}
	return strings.Join(terminal.Align(rows, left...), "\n") + "\n"
}

func byStrategy(reason, strategy string) string {
	if strategy == "" {
		return reason
	}
	return reason + ", " + strategy
}

// some are the first names of a list.
func some(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ",")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(",+%d", more)
	}
	return text
}

func ago(at *time.Time, now time.Time) string {
	if at == nil {
		return unknown
	}
	return duration.HumanDuration(max(0, now.Sub(*at)))
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// plainLine is a text of somebody else in one line: a terminal obeys what is no character, and shows some letters in another order.
func plainLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// plainText is such a text with its lines and tabs.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// plainLines writes lines of which somebody else may have written a part.
func plainLines(text *strings.Builder) func(format string, args ...any) {
	return func(format string, args ...any) { text.WriteString(plainLine(fmt.Sprintf(format, args...)) + "\n") }
}

func shorter(text string, most int) string {
	text = plainLine(text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// grouped is a number with commas.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
