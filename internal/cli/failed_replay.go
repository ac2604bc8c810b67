package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/replayer"
)

// replayHelp is what replay and discard have in common.
const replayHelp = `
Before it changes anything it shows the plan, counted in the failure queue, and asks. Without a terminal it needs --yes. --plan shows the plan alone.
What fails after the plan was counted is not part of it.

The login needs more rights than to look: see "Rights" in docs/failed-messages.md. On the broker, a replay has two queues and a RabbitMQ policy, which
are deleted when it has ended. A Transport has at most 8 replays that have not ended; redrive replay ls shows them.`

const (
	exitHelp = `
Exit codes: 0 done; 1 it was stopped or interrupted, or messages have failed again or ended in a way that nobody knows; 2 an error.`
	planExitHelp = ` With --plan,
as redrive plan: 0 nothing to do, 2 something to do, 1 an error.`
)

// orderFlags are those of replay and discard.
type orderFlags struct {
	failedFlags

	planOnly, yes bool
}

func (f *orderFlags) define(command *cobra.Command) {
	f.failedFlags.define(command, true)
	set := command.Flags()
	set.Int64Var(&f.selection.Limit, "limit", 0, "most messages to take, the oldest of them; 0 is no limit")
	set.BoolVar(&f.planOnly, "plan", false, "show what would be done, and do nothing")
	set.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
}

func newFailedReplay(env Environment) *cobra.Command {
	var flags orderFlags
	var settings settingsFlags
	command := &cobra.Command{
		Use:   "replay [TRANSPORT]",
		Short: "Send messages that were given up back to their work queues",
		Long: `Replay sends failed messages back to the work queues in which they failed, the oldest first, and tells what becomes of each: workers report to the
replay when a message is handled, retried or fails again. A message begins anew: with all its attempts, the same ID and the same idempotency key.

First the chosen messages move into a queue of the replay. From there --rate bounds how many go back in a second, and --max-in-flight how many have
no outcome yet. With --canary, a few go first, and the others only when these were handled.

This process carries the replay out. Ctrl-C keeps its state on the broker, and the end of the output says how to go on or to take the rest back. The
same holds if it is killed; redrive replay ls shows the replay.
` + replayHelp + "\n" + exitHelp + planExitHelp + "\n" + failedHelp,
		Example: `  redrive failed replay async -n shop --cause f3a91c02 --canary 10 --rate 50
  redrive failed replay -f config/samples --where 'error.status == 503' --plan
  redrive failed replay async --queue orders --before 10m --stop-when 20% --yes`,
		Args: oneTransport,
	}
	command.RunE = flags.runE(env, func(ctx context.Context, name string) error {
		if err := settings.check(command.Flags().Changed); err != nil {
			return err
		}
		chosen, err := settings.over(replay.Settings{}, func(string) bool { return true })
		if err != nil {
			return err
		}
		return flags.carryOut(ctx, env, name, replay.Order{Action: replay.ActionReplay}, &chosen)
	})
	flags.define(command)
	settings.define(command.Flags())
	return command
}

func newFailedDiscard(env Environment) *cobra.Command {
	var flags orderFlags
	var undoFor time.Duration
	command := &cobra.Command{
		Use:   "discard [TRANSPORT]",
		Short: "Delete messages that were given up, at first so that they can be taken back",
		Long: `Discard takes messages out of the failure queue. For as long as --undo-for they stay in a queue of their own, and redrive replay cancel takes them
back as they were. No process deletes them after that: redrive replay resume does, and with --final also before. With --undo-for 0 they are deleted at once.
` + replayHelp + "\n" + exitHelp + planExitHelp + "\n" + failedHelp,
		Example: `  redrive failed discard async -n shop --cause 91d02e5f
  redrive failed discard -f config/samples --where "failure.age > duration('720h')" --undo-for 0 --yes`,
		Args: oneTransport,
	}
	command.RunE = flags.runE(env, func(ctx context.Context, name string) error {
		return flags.carryOut(ctx, env, name, replay.Order{Action: replay.ActionDiscard, UndoFor: undoFor}, nil)
	})
	flags.define(command)
	command.Flags().DurationVar(&undoFor, "undo-for", 24*time.Hour, "`duration` in which the messages can be taken back; 0 deletes them at once")
	return command
}

// runE is failedRun, but for the errors of a plan: 2 is one that has something to do.
func (f *orderFlags) runE(env Environment, run func(ctx context.Context, name string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		err := failedRun(env, run)(command, args)
		if refused, is := errors.AsType[*statusError](err); is && f.planOnly {
			return refused.err
		}
		return err
	}
}

// carryOut shows the plan of an order, asks, and carries it out.
func (f *orderFlags) carryOut(ctx context.Context, env Environment, name string, order replay.Order, settings *replay.Settings) error {
	if err := order.Check(); err != nil {
		return err
	}
	if _, err := f.chosen(time.Now()).Chooser(time.Now()); err != nil {
		return err
	}
	if !f.planOnly && !f.yes {
		if err := canAsk(env); err != nil {
			return err
		}
	}
	l, err := f.open(ctx, env, name)
	if err != nil {
		return err
	}
	defer l.close()
	p, err := f.plan(ctx, env, l, &order)
	if err != nil {
		return err
	}
	if err := write(env.Out, []byte(p.text(settings))); err != nil {
		return err
	}
	switch {
	case p.chosen == 0:
		return nil
	case f.planOnly:
		return errChanges
	case !f.yes:
		if err := confirm(ctx, env, p.question()); err != nil {
			return err
		}
	}
	c := carrier{env: env, flags: &f.failedFlags, look: l, action: order.Action}
	return c.run(ctx, replayer.Options{ID: replayer.NewID(), Order: &order, Settings: settings}, p)
}

// plan counts what an order would do, and bounds the order to that.
func (f *orderFlags) plan(ctx context.Context, env Environment, l *look, order *replay.Order) (*replayPlan, error) {
	reading, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	observed, err := l.port.Observe(reading)
	if err != nil {
		return nil, fmt.Errorf("ask the management API about queues: %w", err)
	}
	p := &replayPlan{order: order, observed: observed, queues: map[string]int{}, left: map[string]int{}}
	order.Selection = f.chosen(l.now)
	chooser, err := order.Selection.Chooser(l.now)
	if err != nil {
		return nil, err
	}
	unbounded := order.Selection
	unbounded.Limit = 0
	leaves, err := unbounded.Chooser(l.now)
	if err != nil {
		return nil, err
	}
	latest, chosen := l.now, 0
	p.looked, err = l.scan(ctx, func(letter *deadletter.Letter) error {
		queue := letter.Message.Queue
		if order.Action == replay.ActionReplay && len(wayInto(observed, l.names, queue)) == 0 {
			if leaves.Chooses(letter) {
				p.left[queue]++
			}
			return nil
		}
		if !chooser.Chooses(letter) {
			return nil
		}
		if letter.Given.At.After(latest) {
			latest = letter.Given.At // by the clock of its worker
		}
		chosen++
		p.queues[queue]++
		p.causes.Add(letter.Entry())
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.chosen = chosen
	if order.Selection.Before.IsZero() {
		order.Selection.Before = latest.Add(time.Millisecond).Truncate(time.Millisecond)
	}
	if len(p.left) > 0 {
		order.Selection.Queues = p.names()
	}
	return p, leftOut(env, chooser)
}

// stopWhen is the flag of that name, such as 20%:50.
type stopWhen struct{ settings *replay.Settings }

// usualAfter is after how many outcomes --stop-when looks at their share, where it does not say.
const usualAfter = 20

func (w stopWhen) Type() string { return "PERCENT[:AFTER]" }

func (w stopWhen) String() string {
	if w.settings == nil || w.settings.FailingPercent == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%:%d", w.settings.FailingPercent, w.settings.FailingAfter)
}

func (w stopWhen) Set(text string) error {
	percent, after, has := strings.Cut(text, ":")
	share, err := wholeNumber(strings.TrimSuffix(percent, "%"))
	if err != nil || share < 1 || share > 100 {
		return errors.New("a share from 1% to 100%, and after how many outcomes, such as 20%:50")
	}
	least := int64(usualAfter)
	if has {
		if least, err = wholeNumber(after); err != nil || least < 1 {
			return errors.New("after at least 1 outcome, such as 20%:50")
		}
	}
	w.settings.FailingPercent, w.settings.FailingAfter = share, least
	return nil
}

func wholeNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no whole number", text)
	}
	return n, nil
}
