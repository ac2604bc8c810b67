// Package broker is the port to RabbitMQ's management API: it observes one vhost, applies single steps, and deletes. It
// decides nothing. A user with the tag policymaker and rights on the vhost suffices.
package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"redrive.dev/redrive/internal/topology"
)

const (
	// requestTimeout bounds one request with its answer. Reading 10,000 queues takes a broker up to 5 s.
	requestTimeout = 30 * time.Second
	// pingTimeout bounds a question that a broker answers at once.
	pingTimeout = 5 * time.Second
	// maxResponseHeaders is the size of the headers of an answer, in bytes; RabbitMQ sends less than 1 kB. They take sixteen times that where they are short.
	maxResponseHeaders = 8 << 10
	// maxResponse bounds an answer: 10,000 queues take 3 MB.
	maxResponse = 32 << 20
	// maxNodes bounds what is remembered of a cluster's nodes, as the API does, and maxName is the length of a name in bytes: AMQP and the API have
	// no longer ones.
	maxNodes = 64
	maxName  = 255
)

// Config says where the management API is, and as whom to speak to it.
type Config struct {
	// ManagementURL is an http or https URL without user; it may have a path.
	ManagementURL string
	Username      string
	Password      string
	VHost         string
	// TLS of https; nil takes the system's certificates.
	TLS *tls.Config
	// Deny are networks in which nobody is asked.
	Deny []netip.Prefix
}

// Format prints no password, whatever the verb.
func (c Config) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "vhost %q", c.VHost)
}

// LogValue shows no password.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON shows no password.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(fmt.Sprint(c)) //nolint:wrapcheck // A string always marshals.
}

// Option changes how a Client is built.
type Option func(*Client)

// WithTransport wraps the client's transport, so that requests can be seen on their way.
func WithTransport(wrap func(http.RoundTripper) http.RoundTripper) Option {
	return func(c *Client) { c.transport = wrap(c.transport) }
}

// Client speaks to the management API about one vhost. It is safe for concurrent use.
type Client struct {
	config    Config
	base      byMethod
	transport http.RoundTripper
	// nodesRefused is true once the broker has refused the names of its nodes: it logs each refusal.
	nodesRefused atomic.Bool
}

// New returns a client. It makes no connection yet.
func New(config Config, options ...Option) (*Client, error) {
	parsed, err := url.Parse(config.ManagementURL)
	// The error of url.Parse repeats the URL, which may hold a password.
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, errors.New("the management URL is not an http or https URL")
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" {
		return nil, errors.New("the management URL must have no user, no query and no fragment")
	}
	if config.VHost == "" || config.VHost == "." || config.VHost == ".." {
		return nil, fmt.Errorf("the management API cannot address the vhost %q", config.VHost)
	}
	config.ManagementURL = strings.TrimRight(config.ManagementURL, "/")
	base := newByMethod(&http.Transport{
		Proxy:                 networks(config.Deny).proxy,
		DialContext:           named(networks(config.Deny).dialer(), new(net.Dialer).DialContext),
		TLSClientConfig:       config.TLS.Clone(),
		TLSHandshakeTimeout:   handshakeTimeout, // by a proxy
		ResponseHeaderTimeout: requestTimeout,
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true, // the bounds of an answer hold for what is on the wire
		MaxIdleConnsPerHost:   2,
		// Go takes 10 MB of them, from each server.
		MaxResponseHeaderBytes: maxResponseHeaders,
	})
	client := &Client{config: config, base: base, transport: base}
	for _, option := range options {
		option(client)
	}
	return client, nil
}

// Close drops idle connections. Requests under way go on.
func (c *Client) Close() { c.base.others.CloseIdleConnections() }

// Ping finds out whether the management API answers, by a question without a login: the answer is a refusal, and costs the broker next to
// nothing. The error is an ErrUnreachable.
func (c *Client) Ping(ctx context.Context) error {
	const what = "ask whether the management API answers"
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.ManagementURL+"/api/whoami", http.NoBody)
	if err != nil {
		return fmt.Errorf("%s: the management URL cannot be used", what)
	}
	var response *http.Response
	Await(ctx, func() { response, err = c.transport.RoundTrip(request) }) //nolint:bodyclose // below
	if err != nil {
		return describe(what, err)
	}
	defer func() { _ = response.Body.Close() }()
	Await(ctx, func() { _, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxReason)) })
	if response.StatusCode >= http.StatusInternalServerError { // as a proxy says it before a broker that is down
		return &Error{Operation: what, Status: response.StatusCode, kind: ErrUnreachable}
	}
	return nil
}

// Identity returns which broker and vhost the client speaks to.
func (c *Client) Identity(ctx context.Context) (topology.Identity, error) {
	var cluster struct {
		Name string `json:"name"`
	}
	if err := c.get(ctx, "read the cluster's name", "cluster-name", &cluster); err != nil {
		return topology.Identity{}, err
	}
	if cluster.Name == "" {
		return topology.Identity{}, implausible("read the cluster's name", "it holds no name")
	}
	if len(cluster.Name) > maxName {
		return topology.Identity{}, implausible("read the cluster's name", errLong)
	}
	id, err := c.clusterID(ctx)
	return topology.Identity{Cluster: cluster.Name, ClusterID: id, VHost: c.config.VHost}, err
}

// clusterID is what the cluster has been called since its first start; empty where the user may not read it, or RabbitMQ has none.
func (c *Client) clusterID(ctx context.Context) (string, error) {
	var parameters []struct {
		Name  string
		Value text
	}
	err := c.get(ctx, "read the cluster's ID", "global-parameters", &parameters)
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused) {
		return "", nil
	}
	for _, parameter := range parameters {
		if parameter.Value != "" && len(parameter.Value) <= maxName && parameter.Name == "internal_cluster_id" {
			return string(parameter.Value), nil
		}
	}
	return "", err
}

// nodes are the names of the cluster's nodes, whether they run or not, sorted; none where the user may not read them, which takes the tag
// monitoring.
func (c *Client) nodes(ctx context.Context) ([]string, error) {
	if c.nodesRefused.Load() {
		return nil, nil
	}
	var rows []struct{ Name text }
	err := c.get(ctx, "read the names of the cluster's nodes", "nodes?columns=name", &rows)
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused) {
		c.nodesRefused.Store(errors.Is(err, ErrForbidden))
		return nil, nil
	}
	var names []string
	for _, row := range rows {
		if row.Name != "" && len(row.Name) <= maxName {
			names = append(names, string(row.Name))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxNodes)], err
}

// Apply carries out one step. existed is true where an exchange or a queue to be created was there already, equal in
// what the broker compares; the owner mark is not among that. Deleting what is not there succeeds. Queues and exchanges
// are not deleted here, but by DeleteQueue and DeleteExchange.
func (c *Client) Apply(ctx context.Context, step topology.Step) (existed bool, err error) {
	what := string(step.Action) + " " + string(step.Ref().Kind) + " " + step.Ref().Name
	vhost := c.config.VHost
	if step.Action == topology.ActionDelete {
		switch {
		case step.Binding != nil && cannotBeNamed(step.Binding.PropertiesKey):
			return false, &Error{Operation: what, kind: ErrRefused, Reason: "the management API cannot name a binding by this key: unbind it by AMQP"}
		case step.Binding != nil && step.Binding.PropertiesKey != "":
			_, err = c.call(ctx, what, func(api *rabbithole.Client) (*http.Response, error) {
				return api.DeleteBinding(vhost, bindingInfo(*step.Binding))
			})
			return false, unlessGone(err)
		case step.Policy != nil:
			_, err = c.call(ctx, what, func(api *rabbithole.Client) (*http.Response, error) {
				return api.DeletePolicy(vhost, step.Policy.Name)
			})
			return false, unlessGone(err)
		default:
			return false, fmt.Errorf("%s: is not a step by itself", what)
		}
	}
	status, err := c.call(ctx, what, func(api *rabbithole.Client) (*http.Response, error) {
		switch {
		case step.Exchange != nil:
			return api.DeclareExchange(vhost, step.Exchange.Name, exchangeSettings(*step.Exchange))
		case step.Queue != nil:
			return api.DeclareQueue(vhost, step.Queue.Name, queueSettings(*step.Queue))
		case step.Binding != nil:
			return api.DeclareBinding(vhost, bindingInfo(*step.Binding))
		case step.Policy != nil:
			return api.PutPolicy(vhost, step.Policy.Name, policyInfo(*step.Policy))
		default:
			return nil, errors.New("the step has no object")
		}
	})
	return status == http.StatusNoContent, err
}

// cannotBeNamed is true for a binding that the management API lists and does not find: by "." and ".." it understands steps of a path, and by null none.
func cannotBeNamed(propertiesKey string) bool {
	return propertiesKey == "." || propertiesKey == ".." || propertiesKey == "null" || strings.HasPrefix(propertiesKey, "null~")
}

// DeleteQueue deletes a queue. With ifEmpty the broker refuses with ErrConflict where messages are in it, and always on
// quorum queues; with ifUnused where it has consumers. A queue that is not there is success.
func (c *Client) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	_, err := c.call(ctx, "delete queue "+name, func(api *rabbithole.Client) (*http.Response, error) {
		return api.DeleteQueue(c.config.VHost, name, rabbithole.QueueDeleteOptions{IfEmpty: ifEmpty, IfUnused: ifUnused})
	})
	return unlessGone(err)
}

// DeleteExchange deletes an exchange that nothing is bound to. Where something is, the error is ErrConflict; an exchange
// that is not there is success.
func (c *Client) DeleteExchange(ctx context.Context, name string) error {
	what := "delete exchange " + name
	path := "exchanges/" + url.PathEscape(c.config.VHost) + "/" + url.PathEscape(name)
	// RabbitMQ 4 refuses some names that are in use with an internal error, which says nothing. So the question comes
	// first, and if-unused covers the moment in between. RabbitMQ takes no notice of what leads into an exchange.
	for _, end := range []struct{ is, leads string }{{"source", "lead out of it"}, {"destination", "lead into it from other exchanges"}} {
		var bound []bindingRow
		if err := c.get(ctx, what, path+"/bindings/"+end.is, &bound); err != nil {
			return unlessGone(err)
		}
		if len(bound) > 0 {
			return &Error{Operation: what, Reason: fmt.Sprintf("%d bindings %s", len(bound), end.leads), kind: ErrConflict}
		}
	}
	return unlessGone(c.request(ctx, what, http.MethodDelete, path+"?if-unused=true", nil))
}

// unlessGone takes it for success that what is to be deleted is not there.
func unlessGone(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// call lets rabbit-hole make one request. It knows neither contexts nor deadlines nor keep-alive: the transport that it
// gets for this one call adds them.
func (c *Client) call(
	ctx context.Context, what string, do func(*rabbithole.Client) (*http.Response, error),
) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api, err := rabbithole.NewTLSClient(c.config.ManagementURL, c.config.Username, c.config.Password,
		&carrier{ctx: ctx, next: c.transport})
	if err != nil {
		return 0, fmt.Errorf("%s: the management URL cannot be used", what)
	}
	response, err := do(api)
	if err != nil {
		return 0, describe(what, err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, nil
}

// get reads a path below /api/ into a value.
func (c *Client) get(ctx context.Context, what, path string, into any) error {
	return c.request(ctx, what, http.MethodGet, path, into)
}

func (c *Client) request(ctx context.Context, what, method, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.config.ManagementURL+"/api/"+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("%s: the management URL cannot be used", what)
	}
	request.SetBasicAuth(c.config.Username, c.config.Password)
	response, err := (&carrier{ctx: ctx, next: c.transport}).RoundTrip(request)
	if err != nil {
		return describe(what, err)
	}
	defer func() { _ = response.Body.Close() }()
	return describe(what, decode(ctx, response, into))
}
