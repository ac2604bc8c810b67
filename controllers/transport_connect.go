package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/workload"
)

// brokerSource is where the broker's address and login were found.
type brokerSource struct {
	login credentials.Credentials
	// secrets by name, the first of them with the login.
	secrets []string
	// versions of the secrets, in the same order.
	versions []string
	// cluster is the name of the RabbitmqCluster; empty for a Secret.
	cluster string
}

// String names the Secrets for a message.
func (s brokerSource) String() string {
	text := fmt.Sprintf("Secret %q", s.secrets[0])
	if len(s.secrets) > 1 {
		text += fmt.Sprintf(" (key ca.crt: Secret %q)", s.secrets[1])
	}
	if s.cluster != "" {
		text += fmt.Sprintf(" of RabbitmqCluster %q", s.cluster)
	}
	return text
}

// version changes with the content of the Secrets and tells nothing of it.
func (s brokerSource) version() string { return strings.Join(s.versions, ".") }

// forWorkers are the Secrets of the worker pods.
func (s brokerSource) forWorkers() workload.Secrets {
	secrets := workload.Secrets{Login: s.secrets[0]}
	if len(s.secrets) > 1 {
		secrets.CA = s.secrets[1]
	}
	return secrets
}

// errNoBroker is in the error of find where nothing names the broker any more: the Secret or the RabbitmqCluster is gone.
var errNoBroker = errors.New("nothing names the broker")

// brokerEndpoint is what leads to a Transport's broker, or why nothing does.
type brokerEndpoint struct {
	source brokerSource
	port   *brokerpool.Port
	err    error
}

// findBroker looks for the broker's address and login and for a client for it: Reconciling with SecretNotFound or BrokerNotFound where
// there is no Secret or no RabbitmqCluster, since those are often made by somebody else and a little later; Stalled with
// SecretInvalid where a Secret cannot be used. Nothing of it is kept: each look reads it anew.
func (r *TransportReconciler) findBroker(ctx context.Context, t *v1alpha1.Transport) (f brokerEndpoint) {
	find := r.fromSecret
	if t.Spec.Broker.ClusterRef != nil {
		find = r.fromCluster
	}
	if f.source, f.err = find(ctx, t); f.err != nil {
		return brokerEndpoint{err: f.err}
	}
	if f.port, f.err = r.brokers.Port(client.ObjectKeyFromObject(t), f.source.login, f.source.login.VHostOr(t.Spec.Broker.VHost)); f.err != nil {
		f.err = invalidSecret(f.source, f.err)
	}
	return f
}

// connect is the first step that needs the broker, and fails with what find could not do.
func (r *TransportReconciler) connect(_ context.Context, run *transportRun) error {
	name := client.ObjectKeyFromObject(run.transport)
	run.source = run.endpoint.source
	if run.endpoint.err != nil {
		return run.endpoint.err
	}
	age := brokerpool.SnapshotAge
	run.restarted = r.restarts.Of(name, run.endpoint.port)
	_, restarted := apply.LookAfterRestart(run.restarted, time.Now())
	if restarted || len(run.live.Rolling()) > 0 {
		// Workers that are not available may have lost their login, and lanes may stand still: what the broker said before that does not count.
		age = brokerpool.FreshAge
	}
	run.port = run.endpoint.port.View(name.String(), age)
	return nil
}

func (r *TransportReconciler) fromSecret(ctx context.Context, t *v1alpha1.Transport) (brokerSource, error) {
	if t.Spec.Broker.SecretRef == nil {
		return brokerSource{}, outcome.Stalled(v1alpha1.ReasonInvalid, errors.New("spec.broker names neither a Secret nor a RabbitmqCluster"))
	}
	var source brokerSource
	data, err := r.readSecret(ctx, &source, t.Namespace, t.Spec.Broker.SecretRef.Name, errNoBroker)
	if err != nil {
		return source, err
	}
	if source.login, err = credentials.FromSecret(data); err != nil {
		return source, invalidSecret(source, err)
	}
	return source, nil
}

// fromCluster reads what the RabbitMQ Cluster Operator keeps: the cluster's own resource, the Secret of its default user, and
// with TLS the Secret of its authority.
func (r *TransportReconciler) fromCluster(ctx context.Context, t *v1alpha1.Transport) (brokerSource, error) {
	name := t.Spec.Broker.ClusterRef.Name
	source := brokerSource{cluster: name}
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(credentials.ClusterAPIVersion)
	object.SetKind(credentials.ClusterKind)
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: name}, object)
	switch {
	case meta.IsNoMatchError(err):
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, newDisplayError(errNoBroker,
			"spec.broker.clusterRef: this cluster knows no RabbitmqClusters: install the RabbitMQ Cluster Operator, or use secretRef"))
	case apierrors.IsNotFound(err):
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, newDisplayError(errNoBroker,
			"there is no RabbitmqCluster %q in namespace %q", name, t.Namespace))
	case err != nil:
		return source, fmt.Errorf("read RabbitmqCluster %s: %w", name, err)
	}
	cluster, err := credentials.FromCluster(object.Object)
	if err != nil {
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, fmt.Errorf("RabbitmqCluster %q: %w", name, err))
	}
	err = r.readCluster(ctx, &source, t.Namespace, cluster)
	return source, err
}

// readCluster reads the Secrets that a cluster names. A missing one is on its way: its operator makes it anew.
func (r *TransportReconciler) readCluster(ctx context.Context, source *brokerSource, namespace string, cluster credentials.Cluster) error {
	login, err := r.readSecret(ctx, source, namespace, cluster.Login, nil)
	if err != nil {
		return err
	}
	var ca map[string][]byte
	if cluster.CA != "" {
		if ca, err = r.readSecret(ctx, source, namespace, cluster.CA, nil); err != nil {
			return err
		}
	}
	if source.login, err = cluster.Credentials(login, ca); err != nil {
		return invalidSecret(*source, err)
	}
	return nil
}

// readSecret returns the data of a Secret and notes its name and version. Where it does not exist the error is SecretNotFound,
// and wraps what that means, if anything.
func (r *TransportReconciler) readSecret(ctx context.Context, source *brokerSource, namespace, name string, means error) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := r.reads.Get(ctx, r.Live, types.NamespacedName{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		text := fmt.Sprintf("there is no Secret %q in namespace %q", name, namespace)
		if source.cluster != "" {
			text += fmt.Sprintf(", which RabbitmqCluster %q names", source.cluster)
		}
		return nil, outcome.Transient(v1alpha1.ReasonSecretNotFound, newDisplayError(means, "%s", text))
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	}
	source.secrets = append(source.secrets, name)
	source.versions = append(source.versions, secret.ResourceVersion)
	return secret.Data, nil
}

func invalidSecret(source brokerSource, err error) error {
	return outcome.Stalled(v1alpha1.ReasonSecretInvalid, fmt.Errorf("the %s: %w", source, err))
}

// displayError is an error with a text of its own that is another one for errors.Is.
type displayError struct {
	text string
	is   error
}

func (w *displayError) Error() string { return w.text }
func (w *displayError) Unwrap() error { return w.is }

func newDisplayError(is error, format string, args ...any) error {
	return &displayError{text: fmt.Sprintf(format, args...), is: is}
}

// withSecretContext adds to the error of a certificate, of a login, or of a host that is not found, where that is from.
func (run *transportRun) withSecretContext(err error) error {
	var why *outcome.StepError
	if len(run.source.secrets) == 0 || !errors.As(err, &why) {
		return err
	}
	told := *why
	_, certificate := errors.AsType[*credentials.CertificateError](err)
	host, unknown := errors.AsType[*net.DNSError](err)
	switch {
	case certificate, errors.Is(err, broker.ErrUnauthorized), errors.Is(err, broker.ErrForbidden):
		told.Err = fmt.Errorf("%w (the login and the certificates are those of %s)", why.Err, run.source)
	case unknown && !strings.Contains(host.Name, "."):
		told.Err = fmt.Errorf("%w (the operator runs in another namespace: for a Service of this one, the host in %s has to be %s.%s)",
			why.Err, run.source, host.Name, run.transport.Namespace)
	default:
		return err
	}
	return &told
}
