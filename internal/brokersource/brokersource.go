// Package brokersource reads where a Transport's broker is, and how one logs in there: from the Secret that the Transport names, or from what the RabbitMQ
// Cluster Operator keeps of a RabbitmqCluster.
package brokersource

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

// ErrNone is in the error of Find where nothing names the broker any more: the Secret or the RabbitmqCluster is gone.
var ErrNone = errors.New("nothing names the broker")

// Source is where the broker's address and login were found. The zero value is for where they were not.
type Source struct {
	Login credentials.Credentials
	// Secrets by name, the first of them with the login.
	Secrets []string
	// Versions of the Secrets, in the same order.
	Versions []string
	// cluster is the name of the RabbitmqCluster; empty for a Secret.
	cluster string
}

// String names the Secrets for a message.
func (s Source) String() string {
	text := fmt.Sprintf("Secret %q", s.Secrets[0])
	if len(s.Secrets) > 1 {
		text += fmt.Sprintf(" (key ca.crt: Secret %q)", s.Secrets[1])
	}
	if s.cluster != "" {
		text += fmt.Sprintf(" of RabbitmqCluster %q", s.cluster)
	}
	return text
}

// Version changes with the content of the Secrets and tells nothing of it.
func (s Source) Version() string { return strings.Join(s.Versions, ".") }

// ForWorkers are the Secrets of the worker pods.
func (s Source) ForWorkers() workload.Secrets {
	secrets := workload.Secrets{Login: s.Secrets[0]}
	if len(s.Secrets) > 1 {
		secrets.CA = s.Secrets[1]
	}
	return secrets
}

// Invalid is the error of a Secret that cannot be used: Stalled with SecretInvalid.
func (s Source) Invalid(err error) error {
	return outcome.Stalled(v1alpha1.ReasonSecretInvalid, fmt.Errorf("the %s: %w", s, err))
}

// Explain adds to the error of a certificate, of a login, or of a host that is not found, where that is from.
func (s Source) Explain(namespace string, err error) error {
	var why *outcome.StepError
	if len(s.Secrets) == 0 || !errors.As(err, &why) {
		return err
	}
	told := *why
	_, certificate := errors.AsType[*credentials.CertificateError](err)
	host, unknown := errors.AsType[*net.DNSError](err)
	switch {
	case certificate, errors.Is(err, broker.ErrUnauthorized), errors.Is(err, broker.ErrForbidden):
		told.Err = fmt.Errorf("%w (the login and the certificates are those of %s)", why.Err, s)
	case unknown && !strings.Contains(host.Name, "."):
		told.Err = fmt.Errorf("%w (the operator runs in another namespace: for a Service of this one, the host in %s has to be %s.%s)",
			why.Err, s, host.Name, namespace)
	default:
		return err
	}
	return &told
}

// Finder reads sources from the API server. Nothing of them is kept: each look reads them again.
type Finder struct {
	Live  client.Reader
	Reads *tenancy.Reader
}

// Find fails with Reconciling and SecretNotFound or BrokerNotFound where there is no Secret or no RabbitmqCluster, since those are often made by another
// tool and a little later; and with Stalled and SecretInvalid where a Secret cannot be used.
func (f *Finder) Find(ctx context.Context, t *v1alpha1.Transport) (Source, error) {
	if t.Spec.Broker.ClusterRef != nil {
		return f.fromCluster(ctx, t)
	}
	return f.fromSecret(ctx, t)
}

func (f *Finder) fromSecret(ctx context.Context, t *v1alpha1.Transport) (Source, error) {
	if t.Spec.Broker.SecretRef == nil {
		return Source{}, outcome.Stalled(v1alpha1.ReasonInvalid, errors.New("spec.broker names neither a Secret nor a RabbitmqCluster"))
	}
	var source Source
	data, err := f.readSecret(ctx, &source, t.Namespace, t.Spec.Broker.SecretRef.Name, ErrNone)
	if err != nil {
		return source, err
	}
	if source.Login, err = credentials.FromSecret(data); err != nil {
		return source, source.Invalid(err)
	}
	return source, nil
}

// fromCluster reads what the RabbitMQ Cluster Operator keeps: the cluster's own resource, the Secret of its default user, and
// with TLS the Secret of its authority.
func (f *Finder) fromCluster(ctx context.Context, t *v1alpha1.Transport) (Source, error) {
	name := t.Spec.Broker.ClusterRef.Name
	source := Source{cluster: name}
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(credentials.ClusterAPIVersion)
	object.SetKind(credentials.ClusterKind)
	err := f.Live.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: name}, object)
	switch {
	case meta.IsNoMatchError(err):
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, newDisplayError(ErrNone,
			"spec.broker.clusterRef: this cluster knows no RabbitmqClusters: install the RabbitMQ Cluster Operator, or use secretRef"))
	case apierrors.IsNotFound(err):
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, newDisplayError(ErrNone,
			"there is no RabbitmqCluster %q in namespace %q", name, t.Namespace))
	case err != nil:
		return source, fmt.Errorf("read RabbitmqCluster %s: %w", name, err)
	}
	cluster, err := credentials.FromCluster(object.Object)
	if err != nil {
		return source, outcome.Transient(v1alpha1.ReasonBrokerNotFound, fmt.Errorf("RabbitmqCluster %q: %w", name, err))
	}
	err = f.readCluster(ctx, &source, t.Namespace, cluster)
	return source, err
}

// readCluster reads the Secrets that a cluster names. A missing one is on its way: its operator makes it anew.
func (f *Finder) readCluster(ctx context.Context, source *Source, namespace string, cluster credentials.Cluster) error {
	login, err := f.readSecret(ctx, source, namespace, cluster.Login, nil)
	if err != nil {
		return err
	}
	var ca map[string][]byte
	if cluster.CA != "" {
		if ca, err = f.readSecret(ctx, source, namespace, cluster.CA, nil); err != nil {
			return err
		}
	}
	if source.Login, err = cluster.Credentials(login, ca); err != nil {
		return source.Invalid(err)
	}
	return nil
}

// readSecret returns the data of a Secret and notes its name and version. Where it does not exist the error is SecretNotFound,
// and wraps what that means, if anything.
func (f *Finder) readSecret(ctx context.Context, source *Source, namespace, name string, means error) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := f.Reads.Get(ctx, f.Live, types.NamespacedName{Namespace: namespace, Name: name}, secret)
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
	source.Secrets = append(source.Secrets, name)
	source.Versions = append(source.Versions, secret.ResourceVersion)
	return secret.Data, nil
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
