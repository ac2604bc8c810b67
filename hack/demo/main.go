// Command demo shows Redrive at work, on a machine with nothing but Go: it starts a RabbitMQ, runs the samples as
// `redrive run` does, publishes 1,000 messages to a partner that fails in every way, and accounts for each of them, from
// what the partner and the broker say. With -cluster the operator and the workers run in the cluster of kubectl's current
// context, as `make demo CLUSTER=1` has it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/local"
)

func main() {
	samples := flag.String("samples", "config/samples", "folder with the Transport and the RetryPolicy to run")
	inCluster := flag.Bool("cluster", false, "run the samples in the cluster of kubectl's current context; "+hostVariable+" is this machine's address there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if flag.Arg(0) == local.QuarantineArgument {
		err = local.QuarantineWorker(ctx, os.Stdin, os.Stdout, os.Stderr)
	} else {
		err = demo(ctx, *samples, *inCluster)
	}
	stop()
	if err != nil {
		if !errors.Is(err, errUnsettled) {
			_, _ = fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		}
		os.Exit(1)
	}
}

func demo(ctx context.Context, samples string, inCluster bool) error {
	d := &demonstration{out: os.Stdout, screen: terminal.NewScreen(os.Stdout), scenarios: scenarios()}
	d.messages = shuffled(d.scenarios)
	d.partner = newPartner(d.scenarios, d.messages)
	_, _ = fmt.Fprintln(d.out, "Looking for a RabbitMQ ...")
	place, err := findPlace(ctx, os.Stderr)
	if err != nil {
		return err
	}
	d.place = place
	result, err := d.perform(ctx, samples, inCluster)
	// The sums are the very last line: whatever else is to be said comes before them.
	left := place.leave(context.WithoutCancel(ctx))
	if err != nil {
		return errors.Join(err, left)
	}
	if left != nil {
		_, _ = fmt.Fprintf(os.Stderr, "demo: clean up: %v\n", left)
	}
	_, _ = fmt.Fprintln(d.out, result)
	if !result.good() {
		return errUnsettled
	}
	return nil
}

// perform plays on the stage that was asked for.
func (d *demonstration) perform(ctx context.Context, samples string, inCluster bool) (sums, error) {
	var log io.Writer = os.Stderr
	if d.screen != nil {
		log = d.screen
	}
	if !inCluster {
		d.stage = newProcess(d.place, log)
		return d.play(ctx, samples)
	}
	var err error
	if d.stage, err = newCluster(d.place, log); err != nil {
		return sums{}, err
	}
	return d.play(ctx, samples)
}

// errUnsettled says that messages were lost or duplicated, as the last line of the output tells.
var errUnsettled = errors.New("messages were lost or duplicated")
