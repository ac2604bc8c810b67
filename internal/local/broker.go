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

// logins are the variables that hold a login, which no other process is to have.
func logins() []string { return []string{EnvAMQP, EnvManagement} }

// Broker is where a Transport's objects are.
type Broker struct {
	Credentials credentials.Credentials
	Management  credentials.Management
	VHost       string
	// Source is where the login is from: a Secret in the files, or the environment.
	Source string
}

// String shows the address and the vhost.
func (b Broker) String() string { return fmt.Sprintf("%s, vhost %s", b.Credentials.Address(), b.VHost) }

// sameAs is true for the same place, whoever logs in there.
func (b Broker) sameAs(other Broker) bool {
	return b.Credentials.Address() == other.Credentials.Address() && b.Management.URL == other.Management.URL && b.VHost == other.VHost
}

// target of an AMQP session.
func (b Broker) target() (amqp.Target, error) {
	return amqp.TargetOf(b.Credentials, b.VHost)
}

// Brokers chooses the broker of each Transport of a set: by the Secret that it refers to, if that is in the set, else by
// AMQP_URL and MANAGEMENT_URL. spec.broker.vhost holds before either's vhost.
func Brokers(set *manifest.Set, getenv func(string) string) (map[types.NamespacedName]Broker, error) {
	brokers := make(map[types.NamespacedName]Broker, len(set.Transports))
	var problems []error
	for _, name := range sorted(set.Transports) {
		broker, err := chooseBroker(set.Transports[name], set.Secrets, getenv)
		if err != nil {
			problems = append(problems, set.Locate("Transport", name, err))
			continue
		}
		brokers[name] = broker
	}
	return brokers, errors.Join(problems...)
}

func chooseBroker(t *v1alpha1.Transport, secrets map[types.NamespacedName]*corev1.Secret, getenv func(string) string) (Broker, error) {
	source, from, err := findLogin(t, secrets, getenv)
	if source == "" {
		return Broker{}, err
	}
	if err != nil {
		return Broker{}, fmt.Errorf("broker from %s: %w", source, err)
	}
	management, err := from.Management()
	if err != nil {
		return Broker{}, fmt.Errorf("broker from %s: %w", source, err)
	}
	return Broker{Credentials: from, Management: management, VHost: from.VHostOr(t.Spec.Broker.VHost), Source: source}, nil
}

// findLogin returns where the login is from, and the login. Where there is none, source is empty.
func findLogin(
	t *v1alpha1.Transport, secrets map[types.NamespacedName]*corev1.Secret, getenv func(string) string,
) (source string, from credentials.Credentials, err error) {
	missing := "spec.broker.clusterRef: a RabbitmqCluster can be read in a cluster only"
	if ref := t.Spec.Broker.SecretRef; ref != nil {
		name := types.NamespacedName{Namespace: t.Namespace, Name: ref.Name}
		if secret, ok := secrets[name]; ok {
			from, err = credentials.FromSecret(secret.Data)
			return fmt.Sprintf("Secret %s", name), from, err
		}
		missing = fmt.Sprintf("spec.broker.secretRef: Secret %s is not in the files", name)
	}
	if getenv(EnvAMQP) != "" {
		from, err = credentials.FromURLs(getenv(EnvAMQP), getenv(EnvManagement))
		return EnvAMQP + " and " + EnvManagement, from, err
	}
	advice := "set"
	if t.Spec.Broker.SecretRef != nil {
		advice = "add the Secret, or set"
	}
	return "", credentials.Credentials{}, fmt.Errorf("%s, and %s is not set: %s %s and, if it is not on the same host, %s",
		missing, EnvAMQP, advice, EnvAMQP, EnvManagement)
}
