package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/retry"
)

const (
	// attemptTimeout replaces the sample's, so that nobody waits half a minute for a partner that hangs.
	attemptTimeout = time.Second
	// stuckAfter is how long nothing may happen.
	stuckAfter = 60 * time.Second
	lookEvery  = 200 * time.Millisecond
	// restFor is how long nothing must have happened once all is settled: a duplicate would show in that time.
	restFor = 3 * time.Second
)

// demonstration is one run of the demo.
type demonstration struct {
	out io.Writer
	// screen is nil where out is no terminal.
	screen    *terminal.Screen
	scenarios []scenario
	messages  []message
	partner   *partner
	place     *place
	stage     stage

	unit  *local.Unit
	began time.Time
}

// play runs the samples, publishes, waits until every message is settled, and reports.
func (d *demonstration) play(ctx context.Context, samples string) (sums, error) {
	url, err := d.partner.serve(ctx, d.stage.address())
	if err != nil {
		return sums{}, err
	}
	if err = d.start(ctx, samples, url); err == nil {
		err = d.await(ctx)
	}
	ended := d.stage.end(ctx)
	d.partner.stop(ctx)
	if err := errors.Join(err, ended); err != nil {
		return sums{}, err
	}
	return d.report()
}

// start loads the samples and runs them against the partner.
func (d *demonstration) start(ctx context.Context, samples, url string) error {
	loader, err := manifest.NewLoader()
	if err != nil {
		return fmt.Errorf("prepare the validation: %w", err)
	}
	set, err := loader.Load(ctx, os.Stdin, samples)
	if err != nil {
		return fmt.Errorf("load the samples: %w", err)
	}
	set.Secrets = nil // the samples' broker is another one
	for _, transport := range set.Transports {
		transport.Spec.Broker.VHost = &d.place.vhost
		for i := range transport.Spec.Workers {
			transport.Spec.Workers[i].Handler.HTTP = &v1alpha1.HTTPHandler{URL: url}
			transport.Spec.Workers[i].Timeout = v1alpha1.NewDuration(attemptTimeout)
		}
	}
	units, err := local.Prepare(set)
	if err != nil {
		return fmt.Errorf("the samples: %w", err)
	}
	if len(units) != 1 {
		return fmt.Errorf("the demo is made for one Transport; %s has %d", samples, len(units))
	}
	d.unit = &units[0]
	_, _ = fmt.Fprintf(d.out, "Running Transport %s on %s, vhost %s, against a partner at %s\n",
		d.unit.Transport.Name, d.place.credentials.Address(), d.place.vhost, url)
	return d.stage.run(ctx, set, d.unit)
}

// await publishes as soon as the topology stands, and returns when the broker has had nothing but failures for a while.
func (d *demonstration) await(ctx context.Context) error {
	show := d.progress()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	last, since, published := status{}, time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case <-tick.C:
		}
		snapshot := d.stage.look(ctx)
		if !published && snapshot.Problem == "" {
			d.began = time.Now()
			if err := d.place.publish(ctx, d.unit.Transport.Spec.Exchange.Name, d.scenarios, d.messages); err != nil {
				return err
			}
			published = true
		}
		now := d.status(snapshot, published)
		if now != last {
			last, since = now, time.Now()
		}
		show(fmt.Sprintf("%5.1f s  %s", d.elapsed().Seconds(), now))
		switch rested := time.Since(since); {
		case now.settled() && rested > restFor:
			return nil
		case rested > stuckAfter:
			return fmt.Errorf("no progress for %s: %s %s", stuckAfter, now, snapshot.Problem)
		}
	}
}

func (d *demonstration) elapsed() time.Duration {
	if d.began.IsZero() {
		return 0
	}
	return time.Since(d.began)
}

// status is how far the demo is: published is ours, requests and handled are the partner's, the rest is the broker's.
type status struct{ published, requests, handled, failed, waiting, ready int64 }

func (d *demonstration) status(snapshot local.Snapshot, published bool) status {
	requests, handled := d.partner.progress()
	s := status{
		requests: int64(requests), handled: int64(handled),
		failed: valueOf(snapshot.Failures), waiting: valueOf(snapshot.Waiting),
	}
	if published {
		s.published = total
	}
	for _, queue := range snapshot.Queues {
		s.ready += valueOf(queue.Ready)
	}
	return s
}

func (s status) settled() bool {
	return s.published > 0 && s.handled+s.failed >= s.published && s.waiting == 0 && s.ready == 0
}

func (s status) String() string {
	return fmt.Sprintf("published %d, requests %d, handled %d, in lanes %d, failed %d",
		s.published, s.requests, s.handled, s.waiting, s.failed)
}

func valueOf(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// progress shows a line in place on a terminal, and one each second elsewhere.
func (d *demonstration) progress() func(string) {
	if d.screen != nil {
		return func(line string) { d.screen.Show([]string{line}) }
	}
	var last time.Time
	return func(line string) {
		if time.Since(last) >= time.Second {
			last = time.Now()
			d.print(line)
		}
	}
}

// report takes stock of the partner and of the failure queue, now that nobody works any more, and prints all but the sums.
func (d *demonstration) report() (sums, error) {
	failures, err := d.place.takeFailures(compile.NamesOf(d.unit.Transport).FailureQueue())
	if err != nil {
		return sums{}, err
	}
	l := &ledger{scenarios: d.scenarios, messages: d.messages, failures: failures}
	l.attempts, l.strays = d.partner.seen()
	policies := d.unit.Compiled.Workers[0].Policies
	name := d.unit.Compiled.Workers[0].Queues[0].Policy
	policy, err := retry.Compile(name, policies[name])
	if err != nil {
		return sums{}, fmt.Errorf("RetryPolicy %s: %w", name, err)
	}
	d.print("", "What the partner saw:", "")
	d.print(l.table(policy)...)
	d.print("", "The delay seen is the median, from the end of an attempt to the next. It holds the wait behind other messages, too.")
	d.print("", "What is in the failure queue, as read from the broker:", "")
	d.print(l.failureTable()...)
	d.print("", fmt.Sprintf("%d messages by a key that nobody bound came through the queue %s.", l.via(lostQueue), lostQueue))
	d.print("", "On your own broker, `redrive failed groups -f config/samples` shows what failed alike, and `redrive failed replay` sends it back.")
	if l.strays > 0 {
		d.print(fmt.Sprintf("%d requests were about messages that nobody published.", l.strays))
	}
	return l.sums(), nil
}

func (d *demonstration) print(lines ...string) {
	for _, line := range lines {
		_, _ = fmt.Fprintln(d.out, line)
	}
}
