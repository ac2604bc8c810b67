package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/deadletter"
)

func newFailedExport(env Environment) *cobra.Command {
	var flags failedFlags
	var redacted bool
	command := &cobra.Command{
		Use:   "export [TRANSPORT]",
		Short: "Write the messages that were given up into a file, a line of JSON each",
		Long: `Export writes messages whole, the oldest first: a line of JSON for each, with its properties, its headers with their types, and its body as text,
or in base64 where it is no UTF-8. They stay in the failure queue. A file is written beside its name first, and gets it when all is there.

Bodies and headers are in it as they are, unless --redacted masks them as redrive failed show does, and leaves out bodies without fields.
` + failedHelp,
		Example: `  redrive failed export async -n shop -o failed.ndjson
  redrive failed export -f config/samples --redacted -o - | jq -r .error.message`,
		Args: oneTransport,
	}
	command.RunE = failedRun(env, func(ctx context.Context, name string) error {
		if flags.format == "" {
			return errors.New("-o: name a file, or - for stdout")
		}
		var found looked
		err := into(flags.format, env.Out, func(to io.Writer) (err error) {
			buffered := bufio.NewWriter(to)
			found, err = flags.run(ctx, env, name, func(l *deadletter.Letter) error {
				var masks *deadletter.Redactor
				if redacted {
					masks = &flags.redactor
				}
				line, err := l.Export(masks)
				if err != nil {
					return err
				}
				_, err = buffered.Write(append(line, '\n'))
				return err //nolint:wrapcheck // into wraps it
			})
			return errors.Join(err, buffered.Flush())
		})
		if err != nil {
			return err
		}
		return write(env.Err, fmt.Appendf(nil, "%s of %s failed messages in %s are written\n", grouped(found.chosen), grouped(found.all), found.names.FailureQueue()))
	})
	flags.define(command, true)
	command.Flags().StringVarP(&flags.format, "output", "o", "", "`file` to write, or - for stdout")
	command.Flags().BoolVar(&redacted, "redacted", false, "mask values as redrive failed show does")
	return command
}

// into writes a file whole or not at all; "-" is out.
func into(path string, out io.Writer, writes func(io.Writer) error) error {
	if path == "-" {
		return writes(out)
	}
	part := path + ".part"
	file, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // the user names it; bodies are for no other user
	if err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	err = errors.Join(writes(file), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("write the export: %w", err)
	}
	return nil
}
