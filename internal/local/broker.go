package local

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/manifest"
)

// Environment variables that name a broker where the files hold no Secret for it.
const (
	EnvAMQP       = "AMQP_URL"
	EnvManagement = "MANAGEMENT_URL"
)

// Broker is where a Transport's objects are.
type Broker struct {
	Credentials credentials.Credentials
	Management  credentials.Management
	VHost       string
}

// String shows the address and the vhost.
func (b Broker) String() string { return fmt.Sprintf("%s, vhost %s", b.Credentials.Address(), b.VHost) }

// sameAs is true for the same place, whoever logs in there.
func (b Broker) sameAs(other Broker) bool {
	return b.Credentials.Address() == other.Credentials.Address() && b.Management.URL == other.Management.URL && b.VHost == other.VHost
}

// target of an AMQP session.
func (b Broker) target() (amqp.Target, error) {
	return amqp.TargetOf(b.Credentials, b.VHost) //nolint:wrapcheck // it names the key
}

// Brokers chooses the broker of each Transport of a set: by the Secret that it refers to, if that is in the set, else by
// AMQP_URL and MANAGEMENT_URL. spec.broker.vhost holds before either's vhost.
func Brokers(set *manifest.Set, getenv func(string) string) (map[types.NamespacedName]Broker, error) {
	brokers := make(map[types.NamespacedName]Broker, len(set.Transports))
	var problems []error
	for _, name := range sorted(set.Transports) {
		broker, err := chooseBroker(set.Transports[name], set.Secrets, getenv)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", Describe(set, "Transport", name), err))
			continue
		}
		brokers[name] = broker
	}
	return brokers, errors.Join(problems...)
}

func chooseBroker(t *v1alpha1.Transport, secrets map[types.NamespacedName]*corev1.Secret, getenv func(string) string) (Broker, error) {
	name := types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.Broker.SecretRef.Name}
	var from credentials.Credentials
	var source string
	var err error
	switch secret, ok := secrets[name]; {
	case ok:
		source = fmt.Sprintf("Secret %s", name)
		from, err = credentials.FromSecret(secret.Data)
	case getenv(EnvAMQP) != "":
		source = EnvAMQP + " and " + EnvManagement
		from, err = credentials.FromURLs(getenv(EnvAMQP), getenv(EnvManagement))
	default:
		return Broker{}, fmt.Errorf("spec.broker.secretRef: Secret %s is not in the files, and %s is not set: "+
			"add the Secret, or set %s and, if it is not on the same host, %s", name, EnvAMQP, EnvAMQP, EnvManagement)
	}
	if err != nil {
		return Broker{}, fmt.Errorf("broker from %s: %w", source, err)
	}
	management, err := from.Management()
	if err != nil {
		return Broker{}, fmt.Errorf("broker from %s: %w", source, err)
	}
	return Broker{Credentials: from, Management: management, VHost: from.VHostOr(t.Spec.Broker.VHost)}, nil
}
