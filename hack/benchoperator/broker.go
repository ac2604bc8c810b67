package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testbroker"
)

// rabbit is the RabbitMQ, behind a proxy that counts what is asked of its management API.
type rabbit struct {
	running *testbroker.Broker
	own     bool
	proxy   *proxy

	management         *url.URL
	username, password string
}

func startBroker(ctx context.Context) (*rabbit, error) {
	b := &rabbit{running: testbroker.FromEnvironment()}
	if b.running == nil {
		var err error
		if b.running, err = testbroker.Start(ctx, os.Stderr); err != nil {
			return nil, fmt.Errorf("start RabbitMQ: %w", err)
		}
		b.own = true
	}
	management, err := url.Parse(b.running.ManagementURL)
	if err != nil || management.User == nil {
		return nil, errors.Join(errors.New("the management URL is not a URL with a login"), b.stop(ctx)) // the cause would show the password
	}
	b.username = management.User.Username()
	b.password, _ = management.User.Password()
	management.User = nil
	b.management = management
	if b.proxy, err = startProxy(management); err != nil {
		return nil, errors.Join(err, b.stop(ctx))
	}
	return b, nil
}

func (b *rabbit) stop(ctx context.Context) error {
	if b.proxy != nil {
		_ = b.proxy.server.Close()
	}
	if !b.own {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return b.running.Stop(ctx)
}

// client speaks to the management API about one vhost, through the proxy.
func (b *rabbit) client(vhost string) (*broker.Client, error) {
	return broker.New(broker.Config{
		ManagementURL: b.proxy.url, Username: b.username, Password: b.password, VHost: vhost,
	})
}

// eachVHost does something with each of the vhosts of a prefix, a few at a time.
func (l *load) eachVHost(prefix string, do func(vhost string) error) error {
	return each(l.vhosts, 4, func(i int) error { return do(l.vhost(prefix, i)) })
}

// each calls a function with 0 to n-1, so many at a time, and returns its first error.
func each(n, atOnce int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait() //nolint:wrapcheck // they are those of the function
}

func (b *rabbit) makeVHosts(ctx context.Context, l *load, prefix string) error {
	return l.eachVHost(prefix, func(vhost string) error { return b.running.AddVhost(ctx, vhost) })
}

func (b *rabbit) deleteVHosts(ctx context.Context, l *load, prefix string) error {
	return l.eachVHost(prefix, func(vhost string) error { return b.running.RemoveVhost(ctx, vhost) })
}

// census counts the objects of all vhosts of a prefix, past the proxy.
func (b *rabbit) census(ctx context.Context, l *load, prefix string) (objects int, err error) {
	var mu sync.Mutex
	err = l.eachVHost(prefix, func(vhost string) error {
		client, err := broker.New(broker.Config{
			ManagementURL: b.management.String(), Username: b.username, Password: b.password, VHost: vhost,
		})
		if err != nil {
			return err
		}
		defer client.Close()
		seen, err := client.Observe(ctx)
		mu.Lock()
		defer mu.Unlock()
		objects += len(seen.Exchanges) + len(seen.Queues) + len(seen.Bindings) + len(seen.Policies)
		return err
	})
	return objects, err
}
