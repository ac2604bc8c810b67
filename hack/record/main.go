// Command record runs the whole of Redrive for some minutes and writes down what Prometheus would scrape of it: a real RabbitMQ, a
// real API server, the operator's controllers, and worker processes in front of a partner that gets slow and goes down. The
// kubelet's part is played here: there are no nodes. hack/monitoring draws the dashboard from it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"redrive.dev/redrive/internal/testbroker"
)

func main() {
	out := flag.String("out", "bin/record.jsonl", "file to write, a scrape a line")
	lasts := flag.Duration("for", 4*time.Minute, "how long to play")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := record(ctx, *out, *lasts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, out string, lasts time.Duration) (err error) {
	broker, err := testbroker.Start(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Stop(context.WithoutCancel(ctx))) }()
	partner, err := startPartner()
	if err != nil {
		return err
	}
	defer partner.stop()
	cluster, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.stop()) }()
	if err := cluster.apply(ctx, broker, partner.url()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kubelet, err := startKubelet(ctx, cluster)
	if err != nil {
		return err
	}
	defer kubelet.stop()
	if err := kubelet.await(ctx); err != nil {
		return err
	}
	go kubelet.watch(ctx)
	fmt.Fprintln(os.Stderr, "All is ready; now", lasts, "of messages.")
	begin := time.Now()
	partner.begin(begin, lasts)
	scrapes, err := startScraper(ctx, out, append(kubelet.targets(), cluster.target()))
	if err != nil {
		return err
	}
	err = play(ctx, broker, cluster, begin, lasts)
	return errors.Join(err, scrapes.end())
}
