// Command bench measures Redrive's worker beside what a team would write for itself, on a real RabbitMQ: each row runs a bare program and
// the worker in turn, several times over, and compares their medians. It prints a table, writes it to bin/bench.json, and ends with
// 1 where a ratio is below what it has to be:
//
//	go run ./hack/bench -run http -rounds 7
//
// The broker is the one of AMQP_URL and MANAGEMENT_URL, else one of its own. It runs from the root of the repository. Rows that need
// PHP or Python say so where these are missing; those that compare with another worker run with PEERS=1 only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"redrive.dev/redrive/hack/report"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
)

// bench is one run of the command.
type bench struct {
	broker *broker
	// rounds of each row that count.
	rounds int
	// messages of a round of the fastest rows; others take a share of them.
	messages int
	// verbose tells of each run.
	verbose bool
	// profiles is a folder for CPU profiles of our side; empty for none.
	profiles string
	// folder for what is built and written on the way.
	folder string
}

type options struct {
	only   *regexp.Regexp
	output string
	peers  bool
	bench  bench
}

func main() {
	o, err := parse()
	if err != nil {
		report.Fail("bench", err)
	}
	report.Main("bench", o.run)
}

func parse() (*options, error) {
	o := &options{peers: os.Getenv("PEERS") == "1"}
	only := flag.String("run", "", "regular expression; only rows whose names match are measured")
	flag.IntVar(&o.bench.rounds, "rounds", 5, "rounds of each row that count; one more comes first and is thrown away")
	flag.IntVar(&o.bench.messages, "messages", 40_000, "messages of a round of the fastest rows; slower ones take a share of them")
	flag.StringVar(&o.output, "output", "bin/bench.json", "file for the results")
	flag.StringVar(&o.bench.profiles, "profiles", "", "folder for CPU profiles of our side; none are made without it")
	flag.BoolVar(&o.bench.verbose, "v", false, "tell of each run")
	flag.Parse()
	if o.bench.rounds < 1 || o.bench.messages < 1000 {
		return nil, errors.New("-rounds has to be at least 1, and -messages at least 1000")
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	return o, nil
}

// run measures the rows, and tells whether all holds that has to.
func (o *options) run(ctx context.Context) (held bool, err error) {
	b := &o.bench
	if b.folder, err = os.MkdirTemp("", "redrive-bench-"); err != nil {
		return false, fmt.Errorf("a folder to work in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	stop, err := b.connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	results, failed := o.measure(ctx)
	if err := errors.Join(show(os.Stdout, results), report.Save(o.output, results), failed); err != nil {
		return false, err
	}
	return !slices.ContainsFunc(results, func(r result) bool { return !r.holds() }), nil
}

// measure returns what was measured, also where a row fails.
func (o *options) measure(ctx context.Context) ([]result, error) {
	results := []result{}
	for _, r := range rows() {
		if !o.only.MatchString(r.name) {
			continue
		}
		if r.peers && !o.peers {
			fmt.Fprintf(os.Stderr, "%s: left out, for it installs and runs another worker; PEERS=1 has it measured\n", r.name)
			continue
		}
		fmt.Fprintf(os.Stderr, "%s…\n", r.name)
		measured, err := r.measure(ctx, &o.bench)
		if err != nil {
			return results, fmt.Errorf("%s: %w", r.name, err)
		}
		results = append(results, measured...)
	}
	return results, nil
}

// connect finds or starts the broker, and returns what ends it.
func (b *bench) connect(ctx context.Context) (stop func() error, err error) {
	running := testbroker.FromEnvironment()
	stop = func() error { return nil }
	if running == nil {
		if running, err = testbroker.Start(ctx, os.Stderr); err != nil {
			return nil, fmt.Errorf("start RabbitMQ: %w", err)
		}
		stop = func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return running.Stop(ctx)
		}
	}
	login, err := credentials.FromURLs(running.AMQPURL, running.ManagementURL)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the broker's URLs: %w", err), stop())
	}
	b.broker = &broker{Broker: running, credentials: login}
	return stop, nil
}

// tellf tells of one run.
func (b *bench) tellf(format string, arguments ...any) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, "  "+format+"\n", arguments...)
	}
}
