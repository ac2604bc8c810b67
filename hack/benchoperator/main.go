// Command benchoperator measures the operator with many Transports: a real API server with controller manager and scheduler, nodes of
// KWOK that say of pods that they run, a real RabbitMQ, and bin/manager as a process of its own. It prints a table, writes it to
// bin/bench-operator.json, and ends with 1 where a ratio is above its limit:
//
//	go run ./hack/benchoperator -transports 100 -polls 10
//
// The broker is the one of AMQP_URL and MANAGEMENT_URL, else one of its own; it must have nothing else to do. It runs from the root of
// the repository, on Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"redrive.dev/redrive/hack/report"
)

// leastTransports are so many that one uses the first policy, and others another.
const leastTransports = usersOfFirst

// settings of a run.
type settings struct {
	// transports, the vhosts that they are spread over, and the RetryPolicies that they share.
	transports, vhosts, policies int
	// concurrency of the manager and of the bare loop.
	concurrency int
	// polls of the steady state, and the time between two of them.
	polls int
	poll  time.Duration
	// output is the file for the results, and profiles a folder for profiles of the manager; empty for none.
	output, profiles string
	// bareLimit is how long the baseline may take: what takes the broker itself longer says nothing about the operator.
	bareLimit time.Duration
	// bareOnly ends the run after the baseline.
	bareOnly bool
}

func main() {
	s, err := parse()
	if err != nil {
		report.Fail("bench-operator", err)
	}
	report.Main("bench-operator", s.run)
}

func parse() (*settings, error) {
	s := &settings{}
	flag.IntVar(&s.transports, "transports", 1000, "number of Transports, each with four work queues and one worker")
	flag.IntVar(&s.vhosts, "vhosts", 0, "vhosts that they are spread over; 0 makes one for each 25")
	flag.IntVar(&s.policies, "policies", 20, "RetryPolicies; the first is used by a fifth of the Transports, the others by the rest")
	flag.IntVar(&s.concurrency, "concurrency", 8, "reconciles, and requests of the bare loop, at a time")
	flag.IntVar(&s.polls, "polls", 60, "polls of the steady state; an hour has 60 at the default interval")
	flag.DurationVar(&s.poll, "poll", 20*time.Second, "time between two polls of the steady state")
	flag.StringVar(&s.output, "output", "bin/bench-operator.json", "file for the results")
	flag.StringVar(&s.profiles, "profiles", "", "folder for profiles of the manager; none are made without it")
	flag.DurationVar(&s.bareLimit, "bare-limit", 15*time.Minute, "longest time for the bare loop; what it has declared by then is measured")
	flag.BoolVar(&s.bareOnly, "bare", false, "measure the bare loop only")
	flag.Parse()
	if s.transports < leastTransports || s.policies < 2 || s.concurrency < 1 || s.polls < 1 || s.poll < time.Second {
		return nil, errors.New("-transports has to be at least 5, -policies 2, -concurrency and -polls 1, and -poll 1s")
	}
	if s.vhosts == 0 {
		s.vhosts = (s.transports + 24) / 25
	}
	return s, nil
}

// run measures, and tells whether all holds that has to.
func (s *settings) run(ctx context.Context) (held bool, err error) {
	go watchForStops(ctx)
	b, err := startBroker(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx))) }()
	results, failed := s.measure(ctx, b)
	if err := errors.Join(show(os.Stdout, results), report.Save(s.output, results), failed); err != nil {
		return false, err
	}
	return !slices.ContainsFunc(results, func(r result) bool { return !r.holds() }), nil
}

// measure returns what was measured, also where a part fails.
func (s *settings) measure(ctx context.Context, b *rabbit) (results []result, err error) {
	load := newLoad(s)
	bare, err := s.bare(ctx, b, load)
	if err != nil {
		return nil, fmt.Errorf("the bare loop: %w", err)
	}
	if s.bareOnly {
		return []result{shown(load.title("bare loop (s)"), 0, bare.took.Seconds())}, nil
	}
	c, err := startCluster(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	run := &operatorRun{settings: s, broker: b, cluster: c, load: load}
	for _, figure := range []func(context.Context, *bareRun) ([]result, error){run.apply, run.restart, run.steady, run.policy} {
		more, err := figure(ctx, &bare)
		results = append(results, more...)
		if err != nil {
			return results, errors.Join(err, run.manager.stop())
		}
	}
	return results, run.manager.stop()
}

// tellf tells how far it is.
func tellf(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", arguments...)
}
