package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// bareRun is what the bare loop came to.
type bareRun struct {
	took time.Duration
	// requests, and the objects that stood in the end.
	requests counts
	objects  int
}

// bare declares the objects of all Transports in vhosts of their own, which are deleted afterwards. What is to be declared is known
// before it begins, nothing is looked at and nothing is reported. Where the broker needs longer than the limit, the Transports that it
// has declared by then are those that are measured.
func (s *settings) bare(ctx context.Context, b *rabbit, l *load) (run bareRun, err error) {
	const prefix = "bare"
	all, err := l.resources(ctx, prefix)
	if err != nil {
		return run, err
	}
	plans := make([][]topology.Step, len(all.transports))
	for i, t := range all.transports {
		if plans[i], err = steps(t, all.policies); err != nil {
			return run, err
		}
	}
	if err := b.makeVHosts(ctx, l, prefix); err != nil {
		return run, err
	}
	clients := make([]*broker.Client, l.vhosts)
	for i := range clients {
		if clients[i], err = b.client(l.vhost(prefix, i)); err != nil {
			return run, err
		}
		defer clients[i].Close()
	}
	tellf("bare loop: %d objects for each of %d Transports", len(plans[0]), len(plans))
	before, began := b.proxy.seen(), time.Now()
	declared, err := s.declare(ctx, clients, plans)
	run.took, run.requests = time.Since(began), b.proxy.seen().since(before)
	if err != nil {
		return run, err
	}
	if declared < len(plans) {
		tellf("the broker itself needs more than %s: the figures are of the %d Transports that it has declared", s.bareLimit, declared)
		if declared < leastTransports {
			return run, errors.New("these are too few: use more vhosts, or a higher -bare-limit")
		}
		s.transports, l.transports = declared, declared
	}
	tellf("bare loop: %.1f s, %v", run.took.Seconds(), run.requests)
	if run.objects, err = b.census(ctx, l, prefix); err != nil {
		return run, err
	}
	if puts := run.requests[http.MethodPut+" queues"]; puts == 0 {
		return run, fmt.Errorf("no queue was declared: the proxy saw %v", run.requests)
	}
	return run, b.deleteVHosts(ctx, l, prefix)
}

// declare is the loop. It returns how many of the plans, from the first on, were carried out in time.
func (s *settings) declare(ctx context.Context, clients []*broker.Client, plans [][]topology.Step) (int, error) {
	began := time.Now()
	var declared atomic.Int64
	err := each(len(plans), s.concurrency, func(i int) error {
		if time.Since(began) > s.bareLimit {
			return nil
		}
		for _, step := range plans[i] {
			if _, err := clients[i%len(clients)].Apply(ctx, step); err != nil {
				return err
			}
		}
		declared.Add(1)
		return nil
	})
	return int(declared.Load()), err
}
