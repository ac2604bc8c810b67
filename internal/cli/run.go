package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/subprocess"
	"redrive.dev/redrive/internal/topology"
)

const (
	reapplyEvery   = 15 * time.Second
	refreshEvery   = time.Second
	redrawEvery    = 250 * time.Millisecond
	lineEvery      = 5 * time.Second
	quarantineStay = time.Minute
)

// runFlags are the flags of run.
type runFlags struct {
	from     string
	logFile  string
	logLevel slog.Level
	listen   listenFlag
	// program and its arguments come after --.
	program []string
}

func newRun(env Environment) *cobra.Command {
	var flags runFlags
	command := &cobra.Command{
		Use:   "run -f DIR|FILE|- [-- PROGRAM ARGS...]",
		Short: "Run Transports and their workers in this process, without Kubernetes",
		Long: `Run makes the topology of all Transports in the files, keeps it as it should be, and runs their workers in this process. A
table shows what happens: on a terminal it is redrawn in place, elsewhere a line is printed when something has changed.

Handlers are called as in a pod, but for their image, which is not used: an http handler is called at its URL, with headers and
certificates of the Secrets in the files; the commands of exec and process handlers are run, relative ones from the working
directory. Where the handler is inProcess, PROGRAM is the worker: a Go program that is made with redrive.dev/redrive/handler/run. It
is run as a process of its own for each such worker group, started again when it ends, and what it prints goes to the log.

When a file changes, everything takes over the change without a restart; a file that is not valid is refused with its
error, and the last good one stays in force. A Transport that is removed from the files stops, and its objects stay on the
broker. While an object on the broker is in conflict with the files, the workers stay as they are, and none is started. Lanes
that no policy needs any more are emptied and deleted as on Kubernetes, ten minutes later.

Messages that were with a worker when it ended are handled one by one in a process of its own for each worker group, which runs
only while there are some.

At --listen it serves /metrics, for Prometheus, with the metrics of all workers, /status, with what the table shows and more as JSON,
and /healthz. Where the flag is not given and something else has the address, it goes on without them, and the log says so.

Each worker group is one worker here, with the concurrency of one pod; replicas counts only where it is 0, which pauses the
group. Pod templates do not apply.

` + brokerHelp + `

Ctrl-C or SIGTERM drains: nothing new is received, handlers finish, and what was not begun goes back to its queue. A second
one, a second later or more, stops at once: what is not settled then is delivered again. Exit codes: 0 after everything was drained, else 1.`,
		Example: `  redrive run -f config/samples
  redrive run -f deploy/ -- go run ./cmd/orders
  AMQP_URL="amqp://$USERNAME:$PASSWORD@rabbitmq" redrive run -f deploy/ --log-file redrive.log`,
		Args: programOnly,
		RunE: func(command *cobra.Command, args []string) error {
			flags.program = args
			flags.listen.given = command.Flags().Changed("listen")
			return run(command.Context(), env, flags)
		},
	}
	fromFlag(command, &flags.from)
	command.Flags().StringVar(&flags.logFile, "log-file", "", "append the log to this `path`; left out, it goes to stderr, above the table")
	command.Flags().StringVar(&flags.listen.address, "listen", defaultListen, "`address` of /metrics, /status and /healthz; empty for none")
	command.Flags().TextVar(&flags.logLevel, "log-level", slog.LevelInfo, "`level` from which on is logged: debug, info, warn or error")
	return command
}

// programOnly allows arguments after -- only, and there the command line of a program that can be started.
func programOnly(command *cobra.Command, args []string) error {
	dash := command.ArgsLenAtDash()
	switch {
	case dash < 0:
		return cobra.NoArgs(command, args) //nolint:wrapcheck // it names the argument
	case dash > 0:
		return cobra.NoArgs(command, args[:dash]) //nolint:wrapcheck // it names the argument
	case len(args) == 0:
		return errors.New("there is no program after --")
	}
	if _, err := subprocess.Find(subprocess.Command{Args: args}); err != nil {
		return fmt.Errorf("the program after --: %w", err)
	}
	return nil
}

func run(ctx context.Context, env Environment, flags runFlags) error {
	source, err := newSource(env, flags.from)
	if err != nil {
		return err
	}
	loaded, err := source.load(ctx)
	if err != nil {
		return err
	}
	needs := needs{getenv: env.Getenv, program: flags.program}
	brokers, err := needs.of(loaded)
	if err != nil {
		return err
	}
	screen := terminal.NewScreen(env.Out)
	logTo, closeLog, err := logWriter(env, flags.logFile, screen)
	if err != nil {
		return err
	}
	defer closeLog()
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: flags.logLevel}))
	for _, ignored := range loaded.set.Ignored {
		log.Debug("ignored: not a Transport, RetryPolicy or Secret", "place", ignored.Place, "kind", ignored.Kind, "name", ignored.Name)
	}
	listener, err := flags.listen.open(ctx, log)
	if err != nil {
		return err
	}
	advise(log, loaded.units)
	defer local.LetHeapGrow()()
	runner := local.NewRunner(local.Options{
		Waits: topology.DefaultWaits(), Reapply: reapplyEvery, Refresh: refreshEvery, QuarantineStay: quarantineStay, Program: flags.program,
		Log: log, LogTo: logTo, LogLevel: flags.logLevel,
	})
	defer answer(listener, runner.Endpoints(), log)() //nolint:contextcheck // what is under way at the end is answered
	if err := runner.Take(loaded.units, brokers); err != nil {
		return err
	}
	return serve(ctx, env, &following{source: source, loaded: loaded, needs: needs, runner: runner, log: log}, screen)
}

// serve shows the table and follows the files until a signal comes, then drains.
func serve(ctx context.Context, env Environment, files *following, screen *terminal.Screen) error {
	shown, stopShowing := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		show(shown, env.Out, screen, files.runner)
	}()
	defer func() {
		stopShowing()
		<-done
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if files.source.path != manifest.Stdin {
		files.start(ctx)
	}
	select {
	case <-env.Signals:
	case <-ctx.Done():
	}
	stop()
	files.log.Info("draining; a second Ctrl-C stops at once")
	draining, atOnce := context.WithCancel(context.WithoutCancel(ctx))
	defer atOnce()
	go func() {
		if again(draining, env.Signals) {
			atOnce()
		}
	}()
	return files.runner.Drain(draining)
}

// oneCtrlC is for how long signals after the first are taken for the same one: a terminal gives Ctrl-C to every process in it, and some
// that start others, such as go run and npm, hand it on as well.
const oneCtrlC = time.Second

// again waits for another signal; it is false when ctx ended first.
func again(ctx context.Context, signals <-chan os.Signal) bool {
	first := time.Now()
	for {
		select {
		case <-signals:
			if time.Since(first) >= oneCtrlC {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// show keeps the table up to date until ctx ends, and shows it a last time.
func show(ctx context.Context, out io.Writer, screen *terminal.Screen, runner *local.Runner) {
	every := lineEvery
	last := map[string]string{}
	draw := func() { printLines(out, runner.Snapshots(), last) }
	if screen != nil {
		every = redrawEvery
		draw = func() { screen.Show(table(runner.Snapshots())) }
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			draw()
		case <-ctx.Done():
			draw()
			return
		}
	}
}

// printLines prints one line for each Transport that has changed since last.
func printLines(out io.Writer, snapshots []local.Snapshot, last map[string]string) {
	for _, s := range snapshots {
		if text := line(s); text != last[s.Transport] {
			last[s.Transport] = text
			_, _ = fmt.Fprintln(out, text)
		}
	}
}

// logWriter gives where the log goes: to a file, or above the table where both would share a terminal, or to stderr.
func logWriter(env Environment, path string, screen *terminal.Screen) (to io.Writer, closing func(), err error) {
	switch {
	case path != "":
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the user names it
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		return file, func() { _ = file.Close() }, nil
	case screen != nil && terminal.NewScreen(env.Err) != nil:
		return screen, func() {}, nil
	default:
		return env.Err, func() {}, nil
	}
}

func advise(log *slog.Logger, units []local.Unit) {
	for i := range units {
		if scoped := units[i].Transport.Spec.Broker.ScopedUser; scoped != nil && *scoped {
			log.Warn("spec.broker.scopedUser makes no user here: the workers log in as this command does", "transport", units[i].Name())
		}
		for _, advice := range units[i].Advice {
			log.Warn(advice.Message, "transport", units[i].Name(), string(advice.Object.Kind), advice.Object.Name)
		}
	}
}
