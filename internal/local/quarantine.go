package local

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/quarantine"
)

// QuarantineArgument is the one argument of the process that a Runner starts for the quarantine of a worker group: the Runner's own
// program, which then has to call QuarantineWorker.
const QuarantineArgument = "quarantine-worker"

// quarantineChild is the quarantine process of a group whose worker is in this one.
type quarantineChild struct {
	options *Options
	log     *slog.Logger

	mu      sync.Mutex
	orders  orders
	changed chan struct{} // closed when orders changes
	told    record
}

func newQuarantineChild(options *Options, log *slog.Logger) *quarantineChild {
	return &quarantineChild{
		options: options, log: log, orders: orders{LogLevel: options.LogLevel}, changed: make(chan struct{}), told: record{before: tallies{}},
	}
}

// command of the process. It learns what it must know from its standard input, so the variables that hold logins are kept
// from it.
func (c *quarantineChild) command(ctx context.Context) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	command := exec.CommandContext(ctx, program, QuarantineArgument) //nolint:gosec // it is this program
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(logins(), name)
	})
	command.Stderr = c.options.LogTo
	command.Stdout = &reportReader{tell: c.tell}
	return command
}

// take puts a configuration, credentials and the folder of the handler's files in force, for the process that runs and for those
// to come.
func (c *quarantineChild) take(config compile.Config, on Broker, files string) error {
	encoded, err := compile.Encode(config)
	if err != nil {
		return err
	}
	c.order(encoded, on, files)
	return nil
}

// takeLogin is take for credentials alone.
func (c *quarantineChild) takeLogin(on Broker) {
	c.mu.Lock()
	config, files := c.orders.Config, c.orders.Files
	c.mu.Unlock()
	c.order(config, on, files)
}

// order changes the orders.
func (c *quarantineChild) order(config json.RawMessage, on Broker, files string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.orders
	next.Config, next.Broker, next.Files = config, secretOf(on), files
	if reflect.DeepEqual(next, c.orders) {
		return
	}
	c.orders = next
	close(c.changed)
	c.changed = make(chan struct{})
}

// run keeps the process running until ctx ends.
func (c *quarantineChild) run(ctx context.Context) {
	journal, err := c.journal()
	if err != nil {
		c.log.Error("quarantined messages wait: their worker cannot be started", "error", err)
		return
	}
	supervisor := quarantine.Supervisor{Command: c.command, Journal: journal, Input: c.feed, OnEnd: c.ended, Log: c.log}
	supervisor.Run(ctx)
}

// journal is its folder, which is made for the first process.
func (c *quarantineChild) journal() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders.Journal == "" {
		path, err := os.MkdirTemp("", "redrive-journal-")
		if err != nil {
			return "", err //nolint:wrapcheck // it names the folder
		}
		c.orders.Journal = path
	}
	return c.orders.Journal, nil
}

// feed writes the orders, and again when they change.
func (c *quarantineChild) feed(ctx context.Context, to io.Writer) {
	encoder := json.NewEncoder(to)
	for {
		c.mu.Lock()
		current, changed := c.orders, c.changed
		c.mu.Unlock()
		if err := encoder.Encode(current); err != nil {
			return // it has ended
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// forget removes the journal, when the process has ended, or is about to with this one.
func (c *quarantineChild) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders.Journal != "" {
		_ = os.RemoveAll(c.orders.Journal) // else it is left to the system
	}
}

// tell takes what the process that runs tells of itself.
func (c *quarantineChild) tell(now answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told.now = now
}

func (c *quarantineChild) ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told.ended()
}

// member is what the process that runs has told last. known is false where there is none, or it has told nothing yet.
func (c *quarantineChild) member() (_ member, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.member(processQuarantine, ""), c.told.now.families != nil
}

// addTo counts what all processes have done.
func (c *quarantineChild) addTo(all tallies) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told.addTo(all)
}
