package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/replayer"
)

// usualInFlight is how many messages of a replay may be without an outcome, where no flag says so, and usualCanary how long a canary may take.
const (
	usualInFlight = 1000
	usualCanary   = 10 * time.Minute
)

// settingsFlags are those that say how fast a replay is, and when it stops.
type settingsFlags struct{ given replay.Settings }

func (f *settingsFlags) define(set *pflag.FlagSet) {
	set.Float64Var(&f.given.Rate, "rate", 0, "most messages a second; 0 is no limit")
	set.Int64Var(&f.given.MaxInFlight, "max-in-flight", usualInFlight, "most messages that went back and have no outcome yet, those that wait in lanes included")
	set.Int64Var(&f.given.Canary, "canary", 0, "send so many first, and wait for their outcomes")
	set.Int64Var(&f.given.MaxFailed, "max-failed", 0, "stop if more of the --canary have failed again")
	set.DurationVar(&f.given.CanaryWithin, "canary-within", usualCanary, "`duration` after which a --canary without all outcomes stops; 0 is no limit")
	set.Var(stopWhen{&f.given}, "stop-when", "stop if that share of the outcomes are failures, retries included; after 20 outcomes, or as in 20%:50 after 50")
}

// settingNames are the names of these flags.
func settingNames() []string {
	return []string{"rate", "max-in-flight", "canary", "max-failed", "canary-within", "stop-when"}
}

// check refuses flags that change nothing.
func (f *settingsFlags) check(changed func(flag string) bool) error {
	for _, flag := range []string{"max-failed", "canary-within"} {
		if changed(flag) && f.given.Canary == 0 {
			return fmt.Errorf("--%s needs --canary", flag)
		}
	}
	return nil
}

// over are the settings with those that changed says were given.
func (f *settingsFlags) over(settings replay.Settings, changed func(flag string) bool) (replay.Settings, error) {
	given := f.given
	if given.Canary == 0 && changed("canary") {
		given.MaxFailed, given.CanaryWithin = 0, 0
	}
	for flag, take := range map[string]func(){
		"rate":          func() { settings.Rate = given.Rate },
		"max-in-flight": func() { settings.MaxInFlight = given.MaxInFlight },
		"canary":        func() { settings.Canary = given.Canary },
		"max-failed":    func() { settings.MaxFailed = given.MaxFailed },
		"canary-within": func() { settings.CanaryWithin = given.CanaryWithin },
		"stop-when":     func() { settings.FailingPercent, settings.FailingAfter = given.FailingPercent, given.FailingAfter },
	} {
		if changed(flag) {
			take()
		}
	}
	return settings, settings.Check()
}

func newReplay(env Environment) *cobra.Command {
	command := &cobra.Command{
		Use:   "replay",
		Short: "List, resume and cancel replays of messages that were given up",
		Long: `Replay shows the replays and discards of a Transport that have not ended, carries them on, and takes them back. redrive failed replay and
redrive failed discard begin them.
` + failedHelp,
	}
	command.AddCommand(newReplayList(env), newReplayShow(env), newReplayResume(env), newReplayCancel(env))
	return command
}

func newReplayList(env Environment) *cobra.Command {
	var flags failedFlags
	command := &cobra.Command{
		Use:     "ls [TRANSPORT]",
		Aliases: []string{"list"},
		Short:   "List the replays that have not ended",
		Long: `Ls shows the replays and discards of a Transport that have not ended. One that has ended leaves nothing behind. Of one that another process carries out
now it shows what is staged: the messages that have not gone back yet.`,
		Example: `  redrive replay ls async -n shop
  redrive replay ls -f config/samples -o json`,
		Args: oneTransport,
	}
	command.RunE = failedRun(env, func(ctx context.Context, name string) error {
		if !slices.Contains([]string{formatTable, formatJSON}, flags.format) {
			return fmt.Errorf("-o %s: the formats are table and json", flags.format)
		}
		return flags.withReplays(ctx, env, name, func(c *carrier) error {
			found, err := replayer.List(ctx, c.transport)
			if err != nil {
				return err
			}
			if flags.format == formatJSON {
				return printReplays(env, c.look, found)
			}
			return write(env.Out, []byte(replaysText(found, c.look)))
		})
	})
	flags.define(command, false)
	command.Flags().StringVarP(&flags.format, "output", "o", formatTable, "`format`: table or json")
	return command
}

func newReplayShow(env Environment) *cobra.Command {
	var flags failedFlags
	command := replayCommand(env, &flags, &cobra.Command{
		Use:   "show [TRANSPORT] ID",
		Short: "Show a replay that has not ended",
		Long:  `Show prints how far a replay or a discard has come, which messages it has selected by which flags, and what can be done next. It changes nothing.`,
		Example: `  redrive replay show async r-7f3a91c0 -n shop
  redrive replay show r-7f3a91c0 -f config/samples -o json`,
	}, func(_ context.Context, c *carrier, found *replayer.Unfinished) error {
		if flags.format == formatJSON {
			return printJSON(env, entryOf(found))
		}
		return write(env.Out, []byte(replayText(found)+c.next(found)))
	})
	check := command.PreRunE
	command.PreRunE = func(command *cobra.Command, args []string) error {
		if !slices.Contains([]string{formatText, formatJSON}, flags.format) {
			return &statusError{fmt.Errorf("-o %s: the formats are text and json", flags.format)}
		}
		return check(command, args)
	}
	command.Flags().StringVarP(&flags.format, "output", "o", formatText, "`format`: text or json")
	return command
}

func newReplayResume(env Environment) *cobra.Command {
	var flags failedFlags
	var settings settingsFlags
	var accept, final, yes bool
	var command *cobra.Command
	command = replayCommand(env, &flags, &cobra.Command{
		Use:   "resume [TRANSPORT] ID",
		Short: "Go on with a replay that was interrupted or stopped, or delete what was discarded",
		Long: `Resume goes on with a replay where it was, with the messages that it had selected. The flags of its settings replace those that it was begun with. One
that was stopped because of failures goes on with --accept-failures, without a canary and --stop-when, or with higher values of these.

It deletes the messages of a discard whose --undo-for is over, and with --final also before.
` + exitHelp,
		Example: `  redrive replay resume async r-7f3a91c0 -n shop
  redrive replay resume async r-7f3a91c0 --accept-failures --rate 10
  redrive replay resume r-7f3a91c0 -f config/samples --final`,
	}, func(ctx context.Context, c *carrier, found *replayer.Unfinished) error {
		changed := command.Flags().Changed
		options := replayer.Options{ID: found.ID, Final: final}
		if err := refuseFlags(found, changed); err != nil {
			return err
		}
		if found.Order.Action == replay.ActionReplay {
			next, err := settings.over(found.Settings, changed)
			if err != nil {
				return err
			}
			if accept {
				next.Canary, next.MaxFailed, next.CanaryWithin, next.FailingPercent, next.FailingAfter = 0, 0, 0, 0, 0
			}
			if next != found.Settings {
				options.Settings = &next
			}
		}
		if final && !yes {
			if err := confirm(ctx, env, "Delete "+messages(int(found.Counts.Staged))+" for good?"); err != nil {
				return err
			}
		}
		return c.run(ctx, options, nil)
	})
	settings.define(command.Flags())
	command.Flags().BoolVar(&accept, "accept-failures", false, "go on whatever has failed: without canary and --stop-when")
	command.Flags().BoolVar(&final, "final", false, "delete the messages of a discard now")
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before --final")
	return command
}

// refuseFlags refuses what means nothing for that replay or discard.
func refuseFlags(found *replayer.Unfinished, changed func(flag string) bool) error {
	meaningless, what := []string{"final", "yes"}, "a replay"
	if found.Order.Action == replay.ActionDiscard {
		meaningless, what = append([]string{"accept-failures"}, settingNames()...), "a discard"
	}
	for _, flag := range meaningless {
		if changed(flag) {
			return fmt.Errorf("--%s changes nothing: %s is %s", flag, found.ID, what)
		}
	}
	return nil
}

func newReplayCancel(env Environment) *cobra.Command {
	var flags failedFlags
	return replayCommand(env, &flags, &cobra.Command{
		Use:   "cancel [TRANSPORT] ID",
		Short: "Take back what a replay has not sent yet, or what was discarded",
		Long: `Cancel returns messages to the failure queue as they were: those that a replay has not sent back to their work queues yet, and those of a discard. What
went back is handled by the workers; cancel waits for its outcomes. Ctrl-C ends that wait, and keeps the counts.`,
		Example: `  redrive replay cancel async r-7f3a91c0 -n shop`,
	}, func(ctx context.Context, c *carrier, found *replayer.Unfinished) error {
		return c.run(ctx, replayer.Options{ID: found.ID, Cancel: true}, nil)
	})
}

// replayCommand is a command for one replay that no other process carries out; show is for the others, too.
func replayCommand(
	env Environment, flags *failedFlags, command *cobra.Command, run func(ctx context.Context, c *carrier, found *replayer.Unfinished) error,
) *cobra.Command {
	command.Args = cobra.RangeArgs(1, 2)
	command.PreRunE = func(_ *cobra.Command, args []string) error {
		if id := args[len(args)-1]; !message.IsReplayID(id) {
			return &statusError{fmt.Errorf("%q is no ID of a replay, such as r-7f3a91c0: redrive replay ls shows them", id)}
		}
		return nil
	}
	command.RunE = func(command *cobra.Command, args []string) error {
		id := args[len(args)-1]
		return failedRun(env, func(ctx context.Context, name string) error {
			return flags.withReplays(ctx, env, name, func(c *carrier) error {
				found, err := replayer.Show(ctx, c.transport, id)
				switch {
				case errors.Is(err, replayer.ErrNoReplay):
					return fmt.Errorf("there is no replay %s of Transport %s that has not ended: redrive replay ls shows them", id, c.look.transport.Name)
				case err != nil:
					return err
				case found.Running && command.Name() != "show":
					return fmt.Errorf("another process carries %s out now: end that one first, with Ctrl-C", id)
				}
				c.action = found.Order.Action
				return run(ctx, c, &found)
			})
		})(command, args[:len(args)-1])
	}
	flags.define(command, false)
	return command
}

// withReplays finds the Transport, and the ways to its broker.
func (f *failedFlags) withReplays(ctx context.Context, env Environment, name string, do func(*carrier) error) error {
	l, err := f.open(ctx, env, name)
	if err != nil {
		return err
	}
	defer l.close()
	c := &carrier{env: env, flags: f, look: l}
	if err := c.find(ctx); err != nil {
		return err
	}
	return do(c)
}

// replayEntry is a replay as JSON.
type replayEntry struct {
	ID        string           `json:"id"`
	Running   bool             `json:"running"`
	Order     *replay.Order    `json:"order,omitempty"`
	Phase     replay.Phase     `json:"phase,omitempty"`
	Problem   string           `json:"problem,omitempty"`
	Settings  *replay.Settings `json:"settings,omitempty"`
	Counts    *replay.Counts   `json:"counts,omitempty"`
	Staged    int64            `json:"staged"`
	Causes    map[string]int64 `json:"causes,omitempty"`
	Began     time.Time        `json:"began,omitzero"`
	UndoUntil time.Time        `json:"undoUntil,omitzero"`
}

func entryOf(u *replayer.Unfinished) replayEntry {
	e := replayEntry{ID: u.ID, Running: u.Running, Staged: u.Staged}
	if u.Phase != "" {
		e.Order, e.Phase, e.Problem, e.Settings, e.Counts, e.Causes = &u.Order, u.Phase, u.Problem, &u.Settings, &u.Counts, u.Causes
		e.Began, e.UndoUntil = u.Began, u.UndoUntil
	}
	return e
}

func printReplays(env Environment, l *look, found []replayer.Unfinished) error {
	entries := make([]replayEntry, len(found))
	for i := range found {
		entries[i] = entryOf(&found[i])
	}
	return printJSON(env, map[string]any{"transport": l.transport.Name, "namespace": l.transport.Namespace, "replays": entries})
}

func printJSON(env Environment, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	return write(env.Out, append(text, '\n'))
}
