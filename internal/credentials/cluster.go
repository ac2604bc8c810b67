package credentials

import (
	"errors"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Kind of the resource by which the RabbitMQ Cluster Operator runs a broker.
const (
	ClusterAPIVersion = "rabbitmq.com/v1beta1"
	ClusterKind       = "RabbitmqCluster"
)

// Cluster is what a RabbitmqCluster says about how to reach it.
type Cluster struct {
	// Login is the Secret of the default user, with host, port, username and password.
	Login string
	// CA is the Secret with the authority of the cluster's certificate as ca.crt; empty without TLS.
	CA string

	// prefix of the paths of the management API.
	prefix string
}

// FromCluster reads a RabbitmqCluster. It fails while the cluster names no Secret for its default user: at first, and for
// good where Vault keeps that user.
func FromCluster(object map[string]any) (Cluster, error) {
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(object, path...)
		return value
	}
	login := text("status", "binding", "name")
	if login == "" {
		login = text("status", "defaultUser", "secretReference", "name")
	}
	if login == "" {
		return Cluster{}, errors.New("its status names no Secret of a default user yet; " +
			"if Vault keeps that user, write a Secret and refer to it by secretRef instead")
	}
	cluster := Cluster{Login: login, CA: text("spec", "tls", "secretName")}
	// Without a certificate of its own the cluster does not listen for TLS, whatever else is set.
	if ca := text("spec", "tls", "caSecretName"); cluster.CA != "" && ca != "" {
		cluster.CA = ca
	}
	cluster.prefix = managementPrefix(text("spec", "rabbitmq", "additionalConfig"))
	return cluster, nil
}

// managementPrefix finds management.path_prefix in a rabbitmq.conf.
func managementPrefix(config string) string {
	for line := range strings.Lines(config) {
		if key, value, found := strings.Cut(line, "="); found && strings.TrimSpace(key) == "management.path_prefix" {
			return "/" + strings.Trim(strings.TrimSpace(value), "/")
		}
	}
	return ""
}

// Credentials joins the data of the Secrets of Login and CA. ca is nil where the cluster has none, or its Secret no ca.crt:
// then the system's authorities are trusted.
func (c Cluster) Credentials(login, ca map[string][]byte) (Credentials, error) {
	if c.CA == "" {
		ca = login
	}
	data := maps.Clone(login)
	delete(data, KeyCA)
	if certificate := ca[KeyCA]; len(certificate) > 0 {
		data[KeyCA] = certificate
	}
	credentials, err := FromSecret(data)
	if err != nil {
		return Credentials{}, err
	}
	credentials.managementPrefix = strings.TrimRight(c.prefix, "/")
	return credentials, nil
}
