package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/portforward"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

// readWithin bounds the reading of one vhost, with the way to it.
const readWithin = 30 * time.Second

// remoteCluster is the cluster of the kubeconfig, and the brokers of its Transports.
type remoteCluster struct {
	config *rest.Config
	client client.Client
	// namespace to look in; empty for all.
	namespace string
	// inside is true in a pod, where the cluster's names can be used as they are.
	inside        bool
	managementURL string
	// loginSecret is the Secret with the login for failure queues; empty for the Transport's.
	loginSecret string
	// standsFor is the broker that managementURL leads to, by its own URL: that of the first Transport that was read.
	standsFor string

	// vhosts were read already: many Transports may share one.
	vhosts  map[vhostKey]vhost
	closers []io.Closer
}

// vhostKey is by whom a vhost was read, and by which way.
type vhostKey struct{ namespace, url, username, name string }

type vhost struct {
	observed topology.Observed
	err      error
}

func connectCluster(env Environment, flags statusFlags) (*remoteCluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = flags.kubeconfig
	chosen := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: flags.context})
	config, err := chosen.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	namespace := flags.namespace
	if namespace == "" && !flags.allNamespaces {
		if namespace, _, err = chosen.Namespace(); err != nil {
			return nil, fmt.Errorf("read the kubeconfig: %w", err)
		}
	}
	if flags.allNamespaces {
		namespace = ""
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &remoteCluster{
		config: config, client: reader, namespace: namespace, inside: env.Getenv("KUBERNETES_SERVICE_HOST") != "",
		managementURL: flags.managementURL, vhosts: map[vhostKey]vhost{},
	}, nil
}

func (c *remoteCluster) close() {
	for _, closer := range c.closers {
		_ = closer.Close()
	}
}

// where names what was looked through.
func (c *remoteCluster) where() string {
	if c.namespace == "" {
		return "the cluster"
	}
	return "namespace " + c.namespace
}

// transports returns those with the names, or all.
func (c *remoteCluster) transports(ctx context.Context, names []string) ([]v1alpha1.Transport, error) {
	if len(names) == 0 {
		var list v1alpha1.TransportList
		if err := c.client.List(ctx, &list, client.InNamespace(c.namespace)); err != nil {
			return nil, clusterError("list the Transports", err)
		}
		return list.Items, nil
	}
	found := make([]v1alpha1.Transport, len(names))
	for i, name := range names {
		err := c.client.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: name}, &found[i])
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no Transport %q in %s", name, c.where())
		}
		if err != nil {
			return nil, clusterError("read Transport "+name, err)
		}
	}
	return found, nil
}

func clusterError(what string, err error) error {
	if meta.IsNoMatchError(err) {
		return errors.New("the cluster knows no Transports: its CustomResourceDefinitions are not installed")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// report says all that can be said about a Transport, with the reason for what cannot.
func (c *remoteCluster) report(ctx context.Context, t *v1alpha1.Transport) status.Report {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	login, err := c.login(ctx, t)
	if err != nil {
		return status.FromStatus(t, err.Error())
	}
	read := c.read(ctx, t, login)
	switch {
	case read.err != nil:
		return status.FromStatus(t, read.err.Error())
	case status.Elsewhere(t, read.observed):
		return status.FromStatus(t, fmt.Sprintf("what answers is cluster %q, vhost %q, and not the one on which the objects stand",
			read.observed.Cluster, read.observed.VHost))
	default:
		return status.FromBroker(t, read.observed)
	}
}

// login reads how the operator logs in.
func (c *remoteCluster) login(ctx context.Context, t *v1alpha1.Transport) (credentials.Credentials, error) {
	if t.Spec.Broker.ClusterRef != nil {
		return c.clusterLogin(ctx, t.Namespace, t.Spec.Broker.ClusterRef.Name)
	}
	if t.Spec.Broker.SecretRef == nil {
		return credentials.Credentials{}, errors.New("spec.broker names neither a Secret nor a RabbitmqCluster")
	}
	data, err := c.secret(ctx, t.Namespace, t.Spec.Broker.SecretRef.Name)
	if err != nil {
		return credentials.Credentials{}, err
	}
	login, err := credentials.FromSecret(data)
	if err != nil {
		return credentials.Credentials{}, fmt.Errorf("the Secret %q: %w", t.Spec.Broker.SecretRef.Name, err)
	}
	return login, nil
}

// clusterLogin reads what the RabbitMQ Cluster Operator keeps for a broker.
func (c *remoteCluster) clusterLogin(ctx context.Context, namespace, name string) (credentials.Credentials, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(credentials.ClusterAPIVersion)
	object.SetKind(credentials.ClusterKind)
	if err := c.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, object); err != nil {
		return credentials.Credentials{}, fmt.Errorf("read RabbitmqCluster %q: %w", name, err)
	}
	cluster, err := credentials.FromCluster(object.Object)
	if err != nil {
		return credentials.Credentials{}, fmt.Errorf("RabbitmqCluster %q: %w", name, err)
	}
	login, err := c.secret(ctx, namespace, cluster.Login)
	if err != nil {
		return credentials.Credentials{}, err
	}
	var authority map[string][]byte
	if cluster.CA != "" {
		if authority, err = c.secret(ctx, namespace, cluster.CA); err != nil {
			return credentials.Credentials{}, err
		}
	}
	found, err := cluster.Credentials(login, authority)
	if err != nil {
		return credentials.Credentials{}, fmt.Errorf("the Secret %q: %w", cluster.Login, err)
	}
	return found, nil
}

func (c *remoteCluster) secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	err := c.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &secret)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("you may not read the Secret %q, which has the login", name)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no Secret %q in namespace %q", name, namespace)
	case err != nil:
		return nil, fmt.Errorf("read the Secret %q: %w", name, err)
	}
	return secret.Data, nil
}

// read observes the Transport's vhost, once for all that share it.
func (c *remoteCluster) read(ctx context.Context, t *v1alpha1.Transport, login credentials.Credentials) vhost {
	end, err := c.management(login, t.Namespace)
	if err != nil {
		return vhost{err: err}
	}
	key := vhostKey{t.Namespace, end.URL, end.Username, login.VHostOr(t.Spec.Broker.VHost)}
	if known, ok := c.vhosts[key]; ok {
		return known
	}
	var read vhost
	read.observed, read.err = c.observe(ctx, end, key)
	c.vhosts[key] = read
	return read
}

// management is the end that the login names, or the one of --management-url with the same user. That one stands for a
// single broker: the logins of others must not go there.
func (c *remoteCluster) management(login credentials.Credentials, namespace string) (credentials.Management, error) {
	end, err := login.Management()
	if err != nil || c.managementURL == "" {
		return end, err
	}
	given, err := url.Parse(c.managementURL)
	if err != nil || given.User != nil {
		// The error of url.Parse repeats the URL, which may hold a password.
		return end, errors.New("--management-url is an http or https URL without user: the login is that of the Secret")
	}
	own := end.URL
	if parsed, err := url.Parse(own); err != nil || !strings.Contains(parsed.Hostname(), ".") {
		own = namespace + " " + own // a bare name is another Service in each namespace
	}
	if c.standsFor == "" {
		c.standsFor = own
	}
	if c.standsFor != own {
		return end, errors.New("--management-url stands for the broker of another Transport: name the Transports of one broker")
	}
	end.URL = c.managementURL
	if given.Scheme != "https" {
		return end, nil
	}
	if end.TLS == nil {
		if end.TLS, err = login.TLS(); err != nil || end.TLS == nil {
			return end, err
		}
	}
	end.TLS = end.TLS.Clone()
	if host := given.Hostname(); host != "localhost" && !net.ParseIP(host).IsLoopback() {
		// At the near end of a tunnel answers the broker itself, whose certificate has the name that the Secret uses.
		end.TLS.ServerName = host
	}
	return end, nil
}

func (c *remoteCluster) observe(ctx context.Context, end credentials.Management, key vhostKey) (topology.Observed, error) {
	port, err := c.api(ctx, end, key)
	if err != nil {
		return topology.Observed{}, err
	}
	defer port.Close()
	return port.Observe(ctx)
}

// api is the management API of a vhost. It leads through the API server where it is a Service of the cluster.
func (c *remoteCluster) api(ctx context.Context, end credentials.Management, key vhostKey) (*broker.Client, error) {
	var options []broker.Option
	if c.managementURL == "" {
		host, port, err := hostPort(end.URL)
		if err != nil {
			return nil, err
		}
		dial, err := c.way(ctx, host, port, key.namespace)
		if err != nil {
			return nil, fmt.Errorf("no way to the management API from here: %w; name one with --management-url", err)
		}
		if dial != nil {
			transport := &http.Transport{DialContext: dial, TLSClientConfig: end.TLS.Clone(), TLSHandshakeTimeout: readWithin / 3}
			options = append(options, broker.WithTransport(func(http.RoundTripper) http.RoundTripper { return transport }))
		}
	}
	port, err := broker.New(broker.Config{
		ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: key.name, TLS: end.TLS,
	}, options...)
	if err != nil {
		return nil, fmt.Errorf("the management API: %w", err)
	}
	return port, nil
}

// way leads through the API server where something is a Service of the cluster; nil where it is reached as it is.
func (c *remoteCluster) way(ctx context.Context, host string, port int, namespace string) (portforward.Dial, error) {
	if c.inside {
		return nil, nil //nolint:nilnil // nil is a way of its own
	}
	route, err := portforward.Find(ctx, c.client, host, port, namespace)
	if errors.Is(err, portforward.ErrOutside) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, err
	}
	dial, closer, err := portforward.Open(c.config, route)
	if err != nil {
		return nil, err
	}
	c.closers = append(c.closers, closer)
	return dial, nil
}

func hostPort(text string) (string, int, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return "", 0, errors.New("the address of the management API is no URL")
	}
	if parsed.Port() == "" {
		if parsed.Scheme == "https" {
			return parsed.Hostname(), 443, nil
		}
		return parsed.Hostname(), 80, nil
	}
	port, err := strconv.Atoi(parsed.Port())
	if err != nil {
		return "", 0, fmt.Errorf("the port of the management API: %w", err)
	}
	return parsed.Hostname(), port, nil
}
