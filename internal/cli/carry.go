package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/replayer"
)

// errUnfinished is the end of a replay that did not reach its aim for all messages. It is no failure, and is not printed.
var errUnfinished = errors.New("not all messages were handled")

// carrier carries out replays of a Transport in this process.
type carrier struct {
	env   Environment
	flags *failedFlags
	look  *look
	// action is what it carries out.
	action replay.Action
	// transport is where its replays are, once that is found.
	transport replayer.Transport
}

// find asks the broker whose objects these are: queues of replays get the same mark.
func (c *carrier) find(ctx context.Context) error {
	reading, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	l := c.look
	observed, err := l.port.Observe(reading)
	if err != nil {
		return fmt.Errorf("ask the management API about exchanges: %w", err)
	}
	back, exists := observed.Exchanges[l.names.Return()]
	if !exists {
		return fmt.Errorf("there is no exchange %q in vhost %q: Transport %s has no topology there", l.names.Return(), l.target.VHost, l.transport.Name)
	}
	owner := back.Arguments.Owner()
	if owner == "" {
		return fmt.Errorf("the exchange %q in vhost %q was not made by Redrive: it has no owner mark", l.names.Return(), l.target.VHost)
	}
	c.transport = replayer.Transport{
		Names: l.names, Exchange: l.exchange(), Owner: owner, Target: l.target, Dial: l.dial, Broker: l.port, Check: l.pinned,
		Holder: holder("redrive failed replay", l.now), Log: slog.New(slog.NewTextHandler(c.env.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return nil
}

// run carries a replay out until it has ended, or the context has. plan is what was planned; nil where that was another process.
func (c *carrier) run(ctx context.Context, options replayer.Options, plan *replayPlan) error {
	if c.transport.Broker == nil {
		if err := c.find(ctx); err != nil {
			return err
		}
	}
	options.Transport = c.transport
	shown := c.show(ctx, &options)
	began := time.Now()
	result, err := replayer.Run(ctx, options)
	shown()
	unfinished := &replayer.Unfinished{ID: options.ID, Result: result}
	switch {
	case err != nil && result.Phase == "":
		return c.look.explained(context.WithoutCancel(ctx), err)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		err = write(c.env.Out, []byte("interrupted  "+countsText(&result.Counts)+"\n"+c.next(unfinished)))
		return errors.Join(err, errUnfinished)
	case err != nil:
		return errors.Join(c.look.explained(context.WithoutCancel(ctx), err), write(c.env.Out, []byte(c.next(unfinished))))
	}
	text := resultText(&result, time.Since(began)) + againText(result.Causes, c.command("failed", "ls", c.look.transport.Name)) + c.next(unfinished)
	if plan != nil && int(result.Counts.Selected) != plan.chosen {
		text += fmt.Sprintf("The plan had %s: the failure queue has changed since.\n", messages(plan.chosen))
	}
	if err := write(c.env.Out, []byte(text)); err != nil {
		return err
	}
	if n := &result.Counts; result.Phase == replay.Stopped || n.FailedAgain+n.Unknown > 0 {
		return errUnfinished
	}
	return nil
}

// command is a command line for the same Transport, as a person can copy it.
func (c *carrier) command(words ...string) string {
	line := []string{"redrive"}
	if filepath.Base(c.env.Program) == pluginName {
		line = []string{"kubectl", "redrive"}
	}
	line = append(line, words...)
	f := c.flags
	for _, flag := range []struct{ name, value string }{
		{"-f", f.from},
		{"--kubeconfig", f.kubeconfig},
		{"--context", f.context},
		{"-n", f.namespace},
		{"--login-secret", f.loginSecret},
		{"--management-url", withoutLogin(f.managementURL)},
	} {
		if flag.value != "" {
			line = append(line, flag.name, quoted(flag.value))
		}
	}
	return strings.Join(line, " ")
}

// withoutLogin is a URL that may be printed.
func withoutLogin(text string) string {
	parsed, err := url.Parse(text)
	if err != nil || parsed.User == nil {
		return text
	}
	parsed.User = nil
	return parsed.String()
}

// quoted is a word as a shell reads it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r < 0x80 && (r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("_-./:@%+=,", r))
	}
	if strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// progress is how far a replay is, as this process last heard.
type progress struct {
	mu     sync.Mutex
	phase  replay.Phase
	counts replay.Counts
}

func (p *progress) take(phase replay.Phase, counts replay.Counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.counts = phase, counts
}

func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.phase {
	case "", replay.Selecting:
		return "selecting"
	default:
		return fmt.Sprintf("%-10s %s", strings.ToLower(string(p.phase)), countsText(&p.counts))
	}
}

// show tells how far the replay is until the returned function is called: on a terminal in place, elsewhere in a line each few seconds.
func (c *carrier) show(ctx context.Context, options *replayer.Options) (stop func()) {
	var p progress
	options.Progress = p.take
	screen := terminal.NewScreen(c.env.Out)
	every, last, leaving := lineEvery, "", ctx.Done()
	logTo := c.env.Err
	draw := func() {
		if line := p.line(); screen != nil {
			screen.Show([]string{line})
		} else if line != last {
			last = line
			_, _ = fmt.Fprintln(c.env.Out, line)
		}
	}
	if screen != nil {
		every, logTo = redrawEvery, screen
	}
	options.Log = slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: slog.LevelWarn}))
	_, _ = fmt.Fprintf(c.env.Out, "%s %s\n", strings.ToLower(cmp.Or(string(c.action), "replay")), options.ID)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				draw()
			case <-leaving:
				leaving = nil
				_, _ = fmt.Fprintln(logTo, "redrive: interrupted: what is on its way is finished first")
			case <-ended:
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		if screen != nil {
			screen.Show(nil)
		}
	}
}

// canAsk is an error where no person can be asked.
func canAsk(env Environment) error {
	if file, ok := env.In.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return errors.New("there is no terminal to ask on: --yes goes on without asking")
	}
	return nil
}

// confirm asks a person. Whatever is no yes is errUnfinished.
func confirm(ctx context.Context, env Environment, question string) error {
	if err := canAsk(env); err != nil {
		return err
	}
	if err := write(env.Err, []byte(question+" [y/N] ")); err != nil {
		return err
	}
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(env.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
	case <-ctx.Done():
		_ = write(env.Err, []byte("\n"))
	}
	return errors.Join(write(env.Err, []byte("Nothing was done.\n")), errUnfinished)
}
