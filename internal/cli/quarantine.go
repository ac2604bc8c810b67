package cli

import (
	"context"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/local"
)

// newQuarantine is the process that run starts to handle messages that may have brought down a worker.
func newQuarantine(env Environment) *cobra.Command {
	return &cobra.Command{
		Use:    local.QuarantineArgument,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := context.WithCancel(command.Context())
			defer stop()
			go func() {
				// Ctrl-C in a terminal is for every process there.
				select {
				case <-env.Signals:
					stop()
				case <-ctx.Done():
				}
			}()
			return local.QuarantineWorker(ctx, env.In, env.Out, env.Err)
		},
	}
}
