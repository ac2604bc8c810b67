//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"redrive.dev/redrive/internal/testbroker"
)

// rabbit is a RabbitMQ as both sides see it.
type rabbit struct {
	// host, port and management are where pods find it; without user and password.
	host       string
	port       string
	management string
	// amqpURL and managementURL are where the suite finds it, as an administrator.
	amqpURL, managementURL string
	// node can be ended and started; nil where the broker is somebody else's.
	node node
	// release ends what leads to it.
	release func(context.Context) error
}

// node is a broker that the suite started.
type node interface {
	// Kill ends it as a power cut does; Resume starts it again with its data.
	Kill(ctx context.Context) error
	Resume(ctx context.Context) error
	// Restart ends it in peace and starts it again.
	Restart(ctx context.Context) error
	Stop(ctx context.Context) error
}

// startBroker finds or starts the RabbitMQ that most scenarios share.
func (e *environment) startBroker(ctx context.Context) (err error) {
	given := testbroker.FromEnvironment()
	switch {
	case given != nil && e.hostIP == "":
		e.broker, err = directBroker(given)
	case given != nil:
		e.broker, err = e.relayBroker(ctx, "rabbitmq", given, nil)
	default:
		e.broker, err = e.ownBroker(ctx, "rabbitmq")
	}
	if err != nil {
		return err
	}
	return e.rememberAdministrator(e.broker)
}

// ownBroker starts a RabbitMQ that may be killed.
func (e *environment) ownBroker(ctx context.Context, name string) (*rabbit, error) {
	if e.hostIP == "" {
		return e.clusterBroker(ctx, name)
	}
	started, err := testbroker.Start(ctx, io.Discard)
	if err != nil {
		return nil, fmt.Errorf("start RabbitMQ: %w", err)
	}
	b, err := e.relayBroker(ctx, name, started, started)
	if err != nil {
		return nil, errors.Join(err, started.Stop(ctx))
	}
	return b, nil
}

// directBroker has the same address for pods and for the suite.
func directBroker(given *testbroker.Broker) (*rabbit, error) {
	amqp, err := url.Parse(given.AMQPURL)
	if err != nil {
		return nil, errors.New("AMQP_URL is not a URL") // the cause would show the password
	}
	management, err := url.Parse(given.ManagementURL)
	if err != nil {
		return nil, errors.New("MANAGEMENT_URL is not a URL")
	}
	management.User = nil
	return &rabbit{
		host: amqp.Hostname(), port: amqp.Port(), management: management.String(),
		amqpURL: given.AMQPURL, managementURL: given.ManagementURL, release: func(context.Context) error { return nil },
	}, nil
}

func (e *environment) rememberAdministrator(b *rabbit) error {
	u, err := url.Parse(b.managementURL)
	if err != nil {
		return errors.New("the URL of the management API is not a URL")
	}
	password, _ := u.User.Password()
	if len(password) >= minSecret { // "guest" would be found everywhere
		e.secrets.add("administrator of RabbitMQ", u.User.Username(), password, password)
	}
	return nil
}

func (b *rabbit) stop(ctx context.Context) error {
	err := b.release(ctx)
	if b.node != nil {
		err = errors.Join(err, b.node.Stop(ctx))
	}
	return err
}

// url for the suite's own AMQP connection to a vhost.
func (b *rabbit) url(vhost string) (string, error) {
	u, err := url.Parse(b.amqpURL)
	if err != nil {
		return "", errors.New("the AMQP URL is not a URL")
	}
	u.Path, u.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	return u.String(), nil
}

// manage makes one request to the management API as an administrator. path is escaped already.
func (b *rabbit) manage(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	content := []byte("{}")
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("management API: %s %s: %w", method, path, err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, b.managementURL+path, bytes.NewReader(content))
	if err != nil {
		return errors.New("the URL of the management API is not a URL")
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
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("management API: %s %s: %w", method, path, err)
	}
	return nil
}

// apiPath escapes each part.
func apiPath(parts ...string) string {
	var path strings.Builder
	path.WriteString("/api")
	for _, part := range parts {
		path.WriteString("/" + url.PathEscape(part))
	}
	return path.String()
}

// queue is what the management API says about one.
type queue struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Messages  int            `json:"messages"`
	Consumers int            `json:"consumers"`
}

func (b *rabbit) queues(ctx context.Context, vhost string) ([]queue, error) {
	var all []queue
	err := b.manage(ctx, http.MethodGet, apiPath("queues", vhost), nil, &all)
	return all, err
}

// connection of a client.
type connection struct {
	Name string `json:"name"`
	User string `json:"user"`
}

func (b *rabbit) connections(ctx context.Context, vhost string) ([]connection, error) {
	var all []connection
	err := b.manage(ctx, http.MethodGet, apiPath("vhosts", vhost, "connections"), nil, &all)
	return all, err
}
