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
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	user = "redrive"

	// A machine that is busy with other tests starts a node in minutes, and makes a vhost in many seconds.
	readyWithin   = 5 * time.Minute
	answersWithin = 2 * time.Minute
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

	// Name of the node.
	Name string

	runner   runner
	settings settings
	log      io.Writer
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
	// freeze lets the node stand still, with its connections open, or go on.
	freeze(frozen bool) error
	// alive reports whether the node is still coming up.
	alive() bool
}

// settings of a node.
type settings struct {
	*ports
	password string
	// lines of rabbitmq.conf that are not as tests want them.
	lines []string
	// members and cookie of the cluster that the node belongs to; empty where it is alone.
	members []string
	cookie  string
	// tls is nil without TLS.
	tls *certificates
}

// Start runs a private broker and waits until it answers. Progress goes to log. Lines are those of rabbitmq.conf; they stand before
// those that tests have, such as frequent statistics.
func Start(ctx context.Context, log io.Writer, lines ...string) (*Broker, error) {
	return start(ctx, log, settings{lines: lines}, reservePorts)
}

// start runs a broker of settings that lack ports and password.
func start(ctx context.Context, log io.Writer, s settings, reserve func() (*ports, error)) (b *Broker, err error) {
	err = onPorts(log, 1, reserve, func(reserved []*ports) error {
		s.ports, s.password = reserved[0], rand.Text()
		run, err := chooseRunner(ctx, s, log)
		if err != nil {
			return errors.Join(err, s.release())
		}
		b = newBroker(s, run, log)
		if err := b.Resume(ctx); err != nil {
			return errors.Join(err, b.Stop(context.WithoutCancel(ctx)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func newBroker(s settings, run runner, log io.Writer) *Broker {
	login := url.UserPassword(user, s.password)
	b := &Broker{
		AMQPURL:       (&url.URL{Scheme: "amqp", User: login, Host: loopback(s.amqp), Path: "/"}).String(),
		ManagementURL: (&url.URL{Scheme: "http", User: login, Host: loopback(s.management)}).String(),
		Name:          s.name(),
		runner:        run,
		settings:      s,
		log:           log,
	}
	if s.tls != nil {
		b.SecureAMQP, b.SecureManagement = loopback(s.secureAMQP), "https://"+loopback(s.secureManagement)
	}
	return b
}

func chooseRunner(ctx context.Context, s settings, log io.Writer) (runner, error) {
	if on := systemOfEnvironment(); on != "" {
		server := on.server()
		if server == "" {
			return nil, fmt.Errorf("%s: no rabbitmq-server in %s", RootVariable, on)
		}
		return newProcess(server, on, s)
	}
	if dockerAnswers(ctx) {
		if len(s.members) > 0 {
			return nil, fmt.Errorf("several nodes do not run in Docker: run where there is none, with an installed rabbitmq-server, or set %s", RootVariable)
		}
		return &docker{settings: s, log: log}, nil
	}
	server, err := installedServer(ctx, log)
	if err != nil {
		return nil, err
	}
	return newProcess(server, "", s)
}

// Stop ends the broker and removes its state. As nothing of it is kept, the node gets no time for a graceful end.
func (b *Broker) Stop(ctx context.Context) error {
	return errors.Join(b.runner.stop(ctx, false), b.runner.remove(ctx), b.settings.release())
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

// Freeze lets the broker stand still, as a machine does that swaps or a virtual one that is moved: its connections stay open, and
// nothing answers. Thaw lets it go on.
func (b *Broker) Freeze() error { return b.runner.freeze(true) }

// Thaw undoes Freeze.
func (b *Broker) Thaw() error { return b.runner.freeze(false) }

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
	// It is a session, as another program may listen on the port.
	conn, err := amqp091.DialConfig(b.AMQPURL, amqp091.Config{Dial: amqp091.DefaultDial(10 * time.Second)})
	if err != nil {
		return fmt.Errorf("AMQP: %w", err)
	}
	_ = conn.CloseDeadline(time.Now().Add(time.Second))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return b.manage(ctx, http.MethodGet, "/api/overview", nil)
}

// manage makes one request to the management API.
func (b *Broker) manage(ctx context.Context, method, path string, body io.Reader) error {
	_, err := b.ask(ctx, method, path, body)
	return err
}

// Client makes requests to management APIs. Each server of httptest that ends closes what idles of http.DefaultClient's connections, and a request that
// was about to use one fails.
var Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}} //nolint:gochecknoglobals // all share it

// ask makes one request to the management API, and returns the answer.
func (b *Broker) ask(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, b.ManagementURL+path, body)
	if err != nil {
		return nil, errors.New("the management URL is not a URL") // the cause would show the password
	}
	request.Header.Set("Content-Type", "application/json")
	// An empty key is not sent. It has the client repeat a request for which the broker has just closed a kept connection.
	request.Header["Idempotency-Key"] = nil
	response, err := Client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("management API: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return nil, fmt.Errorf("management API: %s %s: %s: %s", method, path, response.Status, text)
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("management API: %s %s: %w", method, path, err)
	}
	return answer, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
