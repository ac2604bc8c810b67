package brokersource

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testcert"
)

// stored is an API server with RabbitmqClusters and Secrets in it. Without clusters it does not know the kind.
type stored struct {
	client.Reader
	clusters map[string]map[string]any
	secrets  map[string]map[string]string
}

// Get implements client.Reader.
func (s stored) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "any"}, key.Name)
	switch o := object.(type) {
	case *unstructured.Unstructured:
		if s.clusters == nil {
			return &meta.NoKindMatchError{GroupKind: o.GroupVersionKind().GroupKind()}
		}
		content, ok := s.clusters[key.Namespace+"/"+key.Name]
		if !ok {
			return missing
		}
		o.Object = content
	case *corev1.Secret:
		data, ok := s.secrets[key.Namespace+"/"+key.Name]
		if !ok {
			return missing
		}
		o.ResourceVersion, o.Data = "v-"+key.Name, map[string][]byte{}
		for name, value := range data {
			o.Data[name] = []byte(value)
		}
	}
	return nil
}

func (s stored) find(t *testing.T, transport *v1alpha1.Transport) (Source, error) {
	t.Helper()
	finder := Finder{Live: s, Reads: &tenancy.Reader{}}
	return finder.Find(t.Context(), transport)
}

// cluster is a RabbitmqCluster as the RabbitMQ Cluster Operator keeps it.
func cluster(tls map[string]any) map[string]any {
	return map[string]any{
		"spec": map[string]any{"tls": tls, "rabbitmq": map[string]any{"additionalConfig": "# shown below\nmanagement.path_prefix = /rabbit/\n"}},
		"status": map[string]any{
			"binding":     map[string]any{"name": "rabbit-default-user"},
			"defaultUser": map[string]any{"secretReference": map[string]any{"name": "rabbit-default-user", "namespace": "shop"}},
		},
	}
}

func defaultUser(port string) map[string]string {
	return map[string]string{
		"host": "rabbit.shop.svc", "port": port, "username": "default_user_x", "password": "p", "provider": "rabbitmq", "type": "rabbitmq",
		"connection_string": "amqp://default_user_x:p@rabbit.shop.svc:" + port, "default_user.conf": "default_user = default_user_x",
	}
}

func clusters(object map[string]any) map[string]map[string]any {
	return map[string]map[string]any{"shop/rabbit": object}
}

func TestFinder_FindsABrokerByItsRabbitmqCluster(t *testing.T) {
	ca := authority(t)
	tests := map[string]struct {
		stored                    stored
		amqp, management, version string
		secure                    bool
	}{
		"without TLS": {
			stored: stored{clusters: clusters(cluster(nil)), secrets: map[string]map[string]string{"shop/rabbit-default-user": defaultUser("5672")}},
			amqp:   "rabbit.shop.svc:5672", management: "http://rabbit.shop.svc:15672/rabbit", version: "v-rabbit-default-user",
		},
		"with TLS and an authority of its own": {
			stored: stored{
				clusters: clusters(cluster(map[string]any{"secretName": "tls", "caSecretName": "ca", "disableNonTLSListeners": true})),
				secrets:  map[string]map[string]string{"shop/rabbit-default-user": defaultUser("5671"), "shop/ca": {"ca.crt": ca}},
			},
			amqp: "rabbit.shop.svc:5671", management: "https://rabbit.shop.svc:15671/rabbit", version: "v-rabbit-default-user.v-ca", secure: true,
		},
		"with TLS and the authority beside the certificate": {
			stored: stored{
				clusters: clusters(cluster(map[string]any{"secretName": "tls"})),
				secrets:  map[string]map[string]string{"shop/rabbit-default-user": defaultUser("5671"), "shop/tls": {"ca.crt": ca, "tls.crt": "x", "tls.key": "y"}},
			},
			amqp: "rabbit.shop.svc:5671", management: "https://rabbit.shop.svc:15671/rabbit", version: "v-rabbit-default-user.v-tls", secure: true,
		},
		"with TLS and an authority that everybody knows": {
			stored: stored{
				clusters: clusters(cluster(map[string]any{"secretName": "tls"})),
				secrets:  map[string]map[string]string{"shop/rabbit-default-user": defaultUser("5671"), "shop/tls": {"tls.crt": "x", "tls.key": "y"}},
			},
			amqp: "rabbit.shop.svc:5671", management: "https://rabbit.shop.svc:15671/rabbit", version: "v-rabbit-default-user.v-tls", secure: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			source, err := tt.stored.find(t, clustered("rabbit"))
			if err != nil {
				t.Fatal(err)
			}
			end, err := source.Login.Management()
			if err != nil || source.Login.Address() != tt.amqp || end.URL != tt.management || source.Login.Secure != tt.secure || source.Version() != tt.version {
				t.Errorf("got %s, %s, secure %v, version %s, %v", source.Login.Address(), end.URL, source.Login.Secure, source.Version(), err)
			}
		})
	}
}

func TestFinder_SaysWhyARabbitmqClusterLeadsNowhere(t *testing.T) {
	tests := map[string]struct {
		stored       stored
		name         string
		reason, part string
		// gone is true where nothing names a broker any more.
		gone bool
	}{
		"its kind is not known": {
			stored: stored{}, reason: v1alpha1.ReasonBrokerNotFound, part: "install the RabbitMQ Cluster Operator", gone: true,
		},
		"it does not exist": {
			stored: stored{clusters: clusters(nil)}, name: "other", reason: v1alpha1.ReasonBrokerNotFound, part: `there is no RabbitmqCluster "other"`, gone: true,
		},
		"it has no default user yet": {
			stored: stored{clusters: clusters(map[string]any{"spec": map[string]any{}})}, reason: v1alpha1.ReasonBrokerNotFound, part: "no Secret of a default user yet",
		},
		"the Secret of its user is missing": {
			stored: stored{clusters: clusters(cluster(nil))}, reason: v1alpha1.ReasonSecretNotFound, part: `"rabbit-default-user" in namespace "shop", which RabbitmqCluster "rabbit" names`,
		},
		"the Secret of its authority is missing": {
			stored: stored{
				clusters: clusters(cluster(map[string]any{"secretName": "tls", "caSecretName": "ca"})),
				secrets:  map[string]map[string]string{"shop/rabbit-default-user": defaultUser("5671")},
			},
			reason: v1alpha1.ReasonSecretNotFound, part: `no Secret "ca"`,
		},
		"its Secret lacks the host": {
			stored: stored{
				clusters: clusters(cluster(nil)),
				secrets:  map[string]map[string]string{"shop/rabbit-default-user": {"username": "u", "password": "p"}},
			},
			reason: v1alpha1.ReasonSecretInvalid, part: `Secret "rabbit-default-user" of RabbitmqCluster "rabbit": key host (or uri): missing`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := tt.stored.find(t, clustered(cmp.Or(tt.name, "rabbit")))
			if err == nil {
				t.Fatal("it leads somewhere")
			}
			if why := outcome.Interpret(err); why.Reason != tt.reason || !strings.Contains(why.Error(), tt.part) || errors.Is(err, ErrNone) != tt.gone {
				t.Errorf("got %v, want %s with %q", err, tt.reason, tt.part)
			}
		})
	}
}

// clustered is a Transport whose broker is a RabbitmqCluster.
func clustered(name string) *v1alpha1.Transport {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	transport.Spec.Broker.ClusterRef = &v1alpha1.LocalReference{Name: name}
	return transport
}

func TestFinder_FindsNoBrokerWithoutItsSecret(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	transport.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: "rabbitmq"}
	_, err := stored{}.find(t, transport)
	if !errors.Is(err, ErrNone) || outcome.Interpret(err).Reason != v1alpha1.ReasonSecretNotFound {
		t.Errorf("got %v", err)
	}
	data := maps.Clone(defaultUser("5672"))
	source, err := stored{secrets: map[string]map[string]string{"shop/rabbitmq": data}}.find(t, transport)
	if err != nil || source.Version() != "v-rabbitmq" || source.String() != `Secret "rabbitmq"` {
		t.Errorf("got %s, %v", source, err)
	}
}

// authority is a certificate that could be any.
func authority(t *testing.T) string {
	t.Helper()
	return string(testcert.NewAuthority(t, "shop").PEM)
}

func TestExplain_NamesTheHostAsOtherNamespacesKnowIt(t *testing.T) {
	source := Source{Secrets: []string{"rabbitmq"}}
	for host, told := range map[string]bool{strings.Repeat("a", 64): true, strings.Repeat("a", 64) + ".test": false} { // too long for any name server
		port, err := broker.New(broker.Config{ManagementURL: "http://" + host + ":15672", VHost: "/"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = port.Queue(t.Context(), "test")
		hint := `the host in Secret "rabbitmq" has to be ` + host + ".shop"
		if got := source.Explain("shop", outcome.Transient(v1alpha1.ReasonBrokerUnreachable, err)); outcome.Interpret(got).Reason != v1alpha1.ReasonBrokerUnreachable || strings.Contains(got.Error(), hint) != told {
			t.Errorf("got %v", got)
		}
	}
}
