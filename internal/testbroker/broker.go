// Package testbroker runs a real RabbitMQ for tests, benchmarks and the demo: in the system that RootVariable names, else in
// Docker where an engine answers, else from an installed rabbitmq-server, else from the system's packages. Each broker is
// private: free ports on loopback, a name and a state folder of its own, and stopped by its process id.
package testbroker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	user = "redrive"

	readyWithin = 90 * time.Second
	// A machine that is busy with other tests makes a vhost in many seconds.
	answersWithin = time.Minute
)

// Broker is a running RabbitMQ.
type Broker struct {
	// AMQPURL of the vhost "/", with user and password.
	AMQPURL string
	// ManagementURL with user and password.
	ManagementURL string
	// SecureAMQP is host:port of AMQP with TLS, SecureManagement the URL of the management API with TLS, without user and
	// password; empty but for a broker of PrivateTLS.
	SecureAMQP, SecureManagement string

	runner runner
	tls    *tlsPorts
	log    io.Writer
}

// runner is one way to run a node.
type runner interface {
	// start starts the node, with what it stored before if it ran before.
	start(ctx context.Context) error
	// stop ends the node; gracefully, or like a power cut.
	stop(ctx context.Context, graceful bool) error
	// remove frees what the stopped node leaves.
	remove(ctx context.Context) error
	// problem explains why the node does not answer.
	problem(ctx context.Context) string
	// control runs rabbitmqctl against the node.
	control(ctx context.Context, arguments ...string) error
	// alive reports whether the node is still coming up.
	alive() bool
}

// ports and password of a node.
type settings struct {
	amqp, management int
	password         string
	// tls is nil without TLS.
	tls *tlsPorts
}

// Start runs a private broker and waits until it answers. Progress goes to log.
func Start(ctx context.Context, log io.Writer) (*Broker, error) {
	free, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	return startWith(ctx, log, settings{amqp: free[0], management: free[1], password: rand.Text()}, free[2], free[3])
}

func startWith(ctx context.Context, log io.Writer, s settings, distribution, epmd int) (*Broker, error) {
	run, err := chooseRunner(ctx, s, distribution, epmd, log)
	if err != nil {
		return nil, err
	}
	login := url.UserPassword(user, s.password)
	b := &Broker{
		AMQPURL:       (&url.URL{Scheme: "amqp", User: login, Host: loopback(s.amqp), Path: "/"}).String(),
		ManagementURL: (&url.URL{Scheme: "http", User: login, Host: loopback(s.management)}).String(),
		runner:        run,
		tls:           s.tls,
		log:           log,
	}
	if err := b.Resume(ctx); err != nil {
		return nil, errors.Join(err, b.Stop(context.WithoutCancel(ctx)))
	}
	return b, nil
}

func chooseRunner(ctx context.Context, s settings, distribution, epmd int, log io.Writer) (runner, error) {
	if on := systemOfEnvironment(); on != "" {
		server := on.server()
		if server == "" {
			return nil, fmt.Errorf("%s: no rabbitmq-server in %s", RootVariable, on)
		}
		return newProcess(server, on, s, distribution, epmd)
	}
	if dockerAnswers(ctx) {
		return &docker{settings: s, log: log}, nil
	}
	server, err := installedServer(ctx, log)
	if err != nil {
		return nil, err
	}
	return newProcess(server, "", s, distribution, epmd)
}

// Stop ends the broker and removes its state.
func (b *Broker) Stop(ctx context.Context) error {
	return errors.Join(b.runner.stop(ctx, true), b.runner.remove(ctx))
}

// Restart ends the broker gracefully and starts it again, on the same ports and with the same data.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Halt(ctx); err != nil {
		return err
	}
	return b.Resume(ctx)
}

// Halt ends the broker gracefully. Resume starts it again.
func (b *Broker) Halt(ctx context.Context) error {
	return b.runner.stop(ctx, true)
}

// Kill ends the broker as a power cut does.
func (b *Broker) Kill(ctx context.Context) error {
	return b.runner.stop(ctx, false)
}

// Resume starts a broker that was halted or killed, with its data.
func (b *Broker) Resume(ctx context.Context) error {
	if err := b.runner.start(ctx); err != nil {
		return err
	}
	return b.wait(ctx)
}

// Control runs rabbitmqctl against the broker.
func (b *Broker) Control(ctx context.Context, arguments ...string) error {
	return b.runner.control(ctx, arguments...)
}

// URL is the AMQP URL of a vhost.
func (b *Broker) URL(vhost string) string {
	u, err := url.Parse(b.AMQPURL)
	if err != nil {
		return b.AMQPURL
	}
	u.Path, u.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	return u.String()
}

// wait returns when the broker answers on both ports.
func (b *Broker) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := b.answers(ctx)
		if err == nil {
			return nil
		}
		if !b.runner.alive() {
			return fmt.Errorf("RabbitMQ ended while starting: %s", b.runner.problem(ctx))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("RabbitMQ did not answer within %s: %w; %s", readyWithin, err, b.runner.problem(context.WithoutCancel(ctx)))
		case <-tick.C:
		}
	}
}

func (b *Broker) answers(ctx context.Context) error {
	u, err := url.Parse(b.AMQPURL)
	if err != nil {
		return fmt.Errorf("AMQP URL: %w", err)
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return fmt.Errorf("AMQP port: %w", err)
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return b.manage(ctx, http.MethodGet, "/api/overview", nil)
}

// manage makes one request to the management API.
func (b *Broker) manage(ctx context.Context, method, path string, body io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, b.ManagementURL+path, body)
	if err != nil {
		return errors.New("the management URL is not a URL") // the cause would show the password
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return fmt.Errorf("management API: %s %s: %s: %s", method, path, response.Status, text)
	}
	return nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// The ports of a broker are below those that systems give to outgoing connections, which come and go in the seconds until it listens.
const firstPort, lastPort = 15_000, 29_999

// freePorts finds ports that nobody listens on. Someone may take one before the broker does; then it fails to start.
func freePorts(n int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		port := firstPort + mathrand.IntN(lastPort-firstPort+1) //nolint:gosec // it guards nothing
		listener, err := net.Listen("tcp", loopback(port))      //nolint:noctx // closed at once
		if err != nil {
			if tries >= 1000 {
				return nil, fmt.Errorf("find a free port: %w", err)
			}
			continue
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, port)
	}
	return ports, nil
}
