package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/message"
)

const (
	// leastKey is how much of a key is enough to look for it, in digits, and wholeKey all of it.
	leastKey, wholeKey = 4, 12
	// maxShownBody is how much of a body a terminal shows, in bytes.
	maxShownBody = 64 << 10
	maxShownHex  = 4 << 10
)

// showFlags are those of show.
type showFlags struct {
	failedFlags

	raw, reveal bool
}

func newFailedShow(env Environment) *cobra.Command {
	var flags showFlags
	command := &cobra.Command{
		Use:   "show [TRANSPORT] KEY",
		Short: "Show one message that was given up",
		Long: `Show prints a message with its properties, its headers, its attempts and its body. The KEY is that of redrive failed ls, or its first digits.

Values of headers whose names tell of secrets are masked, and so are the fields in spec.failure.redact. A body that is neither JSON nor a form has
no fields, and is not shown. --reveal shows all of it. The masks help against a look over your shoulder, and not against you: who may
read the failure queue may read all that is in it.
` + failedHelp,
		Example: `  redrive failed show async 3c55cdb01f2a -n shop
  redrive failed show 3c55 -f config/samples --reveal
  redrive failed show async 3c55cdb01f2a --raw --reveal > body.bin`,
		Args: cobra.RangeArgs(1, 2),
	}
	command.RunE = func(command *cobra.Command, args []string) error {
		key := args[len(args)-1]
		return failedRun(env, func(ctx context.Context, name string) error { return flags.show(ctx, env, name, key) })(command, args[:len(args)-1])
	}
	flags.define(command, false)
	command.Flags().BoolVar(&flags.raw, "raw", false, "print nothing but the body, as it is; needs --reveal")
	command.Flags().BoolVar(&flags.reveal, "reveal", false, "show what is masked")
	command.Flags().StringVarP(&flags.format, "output", "o", formatText, "`format`: text, or json as in export")
	return command
}

func (f *showFlags) show(ctx context.Context, env Environment, name, key string) error {
	switch {
	case !slices.Contains([]string{formatText, formatJSON}, f.format):
		return fmt.Errorf("-o %s: the formats are text and json", f.format)
	case len(key) < leastKey:
		return fmt.Errorf("%q: a key has %d digits, and at least the first %d of them are needed: redrive failed ls shows it", key, wholeKey, leastKey)
	case f.raw && !f.reveal:
		return errors.New("--raw prints the body as it is, and needs --reveal")
	}
	var found []deadletter.Letter
	looked, err := f.run(ctx, env, name, func(l *deadletter.Letter) error {
		if !strings.HasPrefix(l.Key, key) || slices.ContainsFunc(found, func(o deadletter.Letter) bool { return o.Key == l.Key }) {
			return nil
		}
		found = append(found, *l)
		return nil
	})
	switch {
	case err != nil && (!errors.Is(err, failurequeue.ErrNotWhole) || len(found) != 1): // the one may be it
		return err
	case len(found) == 0:
		return fmt.Errorf("there is no message %s among the %s in %s: redrive failed ls shows them", key, grouped(looked.all), looked.names.FailureQueue())
	case len(found) > 1:
		var keys []string
		for i := range found[:min(len(found), 10)] {
			keys = append(keys, found[i].Key)
		}
		return fmt.Errorf("%s is the beginning of %d keys: %s", key, len(found), strings.Join(keys, ", "))
	}
	return f.print(env, &found[0])
}

func (f *showFlags) print(env Environment, l *deadletter.Letter) error {
	switch {
	case f.raw:
		return write(env.Out, l.Properties.Body)
	case f.format == formatJSON:
		masks := &f.redactor
		if f.reveal {
			masks = nil
		}
		text, err := l.Export(masks)
		if err != nil {
			return err
		}
		return write(env.Out, append(text, '\n'))
	}
	headers, body, whole := l.Message.Headers, l.Properties.Body, true
	if !f.reveal {
		headers = f.redactor.Headers(headers)
		body, whole = f.redactor.Body(l.Message.ContentType, body)
	}
	text := letterText(l, headers)
	switch {
	case len(l.Properties.Body) == 0:
		text += "\nThe body is empty.\n"
	case !whole:
		text += fmt.Sprintf("\nThe body, %s bytes, is neither JSON nor a form: --reveal shows it.\n", grouped(len(l.Properties.Body)))
	default:
		text += fmt.Sprintf("\nBody, %s bytes:\n%s\n", grouped(len(l.Properties.Body)), bodyText(body))
	}
	return write(env.Out, []byte(text))
}

// letterText is all of a message but its body.
func letterText(l *deadletter.Letter, headers map[string]any) string {
	entry := l.Entry()
	rows := [][]string{
		{"Key", l.Key},
		{"Queue", l.Message.Queue},
		{"Failed", stamp(entry.FailedAt)},
		{"Reason", byStrategy(l.Given.Reason, l.Given.Strategy)},
		{"", l.Given.Explanation},
		{"Cause", l.Given.Cause},
		{"Given up by", map[string]string{deadletter.SourceWorker: "a worker", deadletter.SourceBroker: "RabbitMQ"}[l.Given.Source]},
		{"Last error", entry.ErrorText()},
		{"Process ended", l.Exit},
		{"Attempts", strconv.FormatInt(l.History.Attempts, 10)},
		{"First failure", stamp(entry.FirstFailure)},
		{"Trace", l.Trace},
		{"Message ID", l.Message.ID},
		{"Type", l.Message.Type},
		{"Content type", l.Message.ContentType},
		{"Content encoding", l.Properties.ContentEncoding},
		{"Exchange", l.Message.Exchange},
		{"Routing key", l.Message.RoutingKey},
		{"Correlation ID", l.Message.CorrelationID},
		{"Reply to", l.Message.ReplyTo},
		{"App ID", l.Message.AppID},
		{"User ID", l.Message.UserID},
	}
	if !l.Message.Timestamp.IsZero() {
		rows = append(rows, []string{"Timestamp", l.Message.Timestamp.UTC().Format(time.RFC3339)})
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	return lines(rows, 1) + headersText(headers) + attemptsText(l.Attempts, l.History.Attempts)
}

func stamp(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339)
}

func headersText(headers map[string]any) string {
	if len(headers) == 0 {
		return ""
	}
	rows := make([][]string, 0, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		rows = append(rows, []string{"  " + name, valueText(headers[name])})
	}
	return "\nHeaders:\n" + lines(rows, 1)
}

// valueText is the value of a header as text; tables and lists are JSON.
func valueText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return strconv.QuoteToASCII(string(v))
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case map[string]any, []any:
		if text, err := json.Marshal(v); err == nil {
			return string(text)
		}
	}
	return fmt.Sprint(value)
}

// attemptsText has the attempts that the message tells of: the first and the last ones.
func attemptsText(attempts []message.Attempt, all int64) string {
	if len(attempts) == 0 {
		return ""
	}
	rows := [][]string{{"  ATTEMPT", "AT", "THEN", "ERROR"}}
	for i := range attempts {
		a := &attempts[i]
		then := "given up"
		if a.Delay > 0 {
			then = "retry after " + a.Delay.String()
		}
		e := deadletter.Entry{Error: &deadletter.LastError{Source: string(a.Source), Status: a.Status, Class: a.Class, Message: a.Message}}
		rows = append(rows, []string{"  " + strconv.FormatInt(a.Number, 10), a.At.UTC().Format(time.RFC3339), then, e.ErrorText()})
	}
	text := "\nAttempts:\n" + lines(rows, 1, 2, 3)
	if missing := all - int64(len(attempts)); missing > 0 {
		text += fmt.Sprintf("  of %d; a message keeps the first three and the last five\n", all)
	}
	return text
}

// bodyText shows JSON indented, with its numbers as they are, text as it is, and anything else in hexadecimal.
func bodyText(body []byte) string {
	var indented bytes.Buffer
	if json.Indent(&indented, body, "", "  ") == nil {
		body = indented.Bytes()
	}
	if !utf8.Valid(body) {
		return hex.Dump(body[:min(len(body), maxShownHex)]) + more(len(body), maxShownHex)
	}
	return plainText(message.Text(string(body), maxShownBody)) + more(len(body), maxShownBody)
}

// more says that there is more.
func more(size, shown int) string {
	if size <= shown {
		return ""
	}
	return fmt.Sprintf("\n… %s bytes more: --raw --reveal prints all of it", grouped(size-shown))
}
