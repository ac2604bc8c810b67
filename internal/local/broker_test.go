package local

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/manifest"
)

func TestBrokers_ComeFromSecretsOrTheEnvironment(t *testing.T) {
	secret := map[string]string{"host": "rabbit.shop", "username": "u", "password": "s3cret", "vhost": "fromsecret"}
	tests := map[string]struct {
		secret     map[string]string
		namespace  string
		env        map[string]string
		vhost      string
		want       string
		management string
		problem    string
		cluster    bool
	}{
		"is that of its Secret": {
			secret: secret, env: map[string]string{EnvAMQP: "amqp://a:b@other"},
			want: "rabbit.shop:5672, vhost fromsecret", management: "http://rabbit.shop:15672",
		},
		"has the vhost of the spec before the Secret's": {
			secret: secret, vhost: "shop", want: "rabbit.shop:5672, vhost shop", management: "http://rabbit.shop:15672",
		},
		"is that of the environment where the files hold no Secret": {
			env:  map[string]string{EnvAMQP: "amqp://a:b@env:5700/v", EnvManagement: "http://c:d@man:1"},
			want: "env:5700, vhost v", management: "http://man:1",
		},
		"has the vhost of the spec before the environment's": {
			env: map[string]string{EnvAMQP: "amqp://a:b@env/v"}, vhost: "shop",
			want: "env:5672, vhost shop", management: "http://env:15672",
		},
		"has the vhost / where nobody names one": {
			env: map[string]string{EnvAMQP: "amqp://a:b@env"}, want: "env:5672, vhost /", management: "http://env:15672",
		},
		"is not that of a Secret in another namespace": {
			secret: secret, namespace: "elsewhere",
			problem: "Transport default/async: spec.broker.secretRef: Secret default/rabbitmq is not in the files, and AMQP_URL is not set",
		},
		"is named by a Secret that lacks a key": {
			secret:  map[string]string{"host": "rabbit.shop", "username": "u"},
			problem: "broker from Secret default/rabbitmq: key password: missing",
		},
		"is not that of a cluster, which files cannot tell": {
			cluster: true, secret: secret,
			problem: "Transport default/async: spec.broker.clusterRef: a RabbitmqCluster can be read in a cluster only, and AMQP_URL is not set: " +
				"set AMQP_URL and, if it is not on the same host, MANAGEMENT_URL",
		},
		"is that of the environment where the spec names a cluster": {
			cluster: true, env: map[string]string{EnvAMQP: "amqp://a:b@env/v"}, want: "env:5672, vhost v", management: "http://env:15672",
		},
		"is named by a URL that is none": {
			env: map[string]string{EnvAMQP: "rabbit:s3cret"}, problem: "broker from AMQP_URL and MANAGEMENT_URL",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set := setOf(tt.vhost)
			if tt.cluster {
				for _, transport := range set.Transports {
					transport.Spec.Broker.SecretRef, transport.Spec.Broker.ClusterRef = nil, &v1alpha1.LocalReference{Name: "rabbitmq"}
				}
			}
			if tt.secret != nil {
				namespace := cmp.Or(tt.namespace, "default")
				data := map[string][]byte{}
				for key, value := range tt.secret {
					data[key] = []byte(value)
				}
				set.Secrets[types.NamespacedName{Namespace: namespace, Name: "rabbitmq"}] = &corev1.Secret{Data: data}
			}
			brokers, err := Brokers(set, func(name string) string { return tt.env[name] })
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("error %v, want %q and no password", err, tt.problem)
				}
				return
			}
			got := brokers[types.NamespacedName{Namespace: "default", Name: "async"}]
			if err != nil || got.String() != tt.want || got.Management.URL != tt.management {
				t.Errorf("got %s, management %s, %v; want %s, %s", got, got.Management.URL, err, tt.want, tt.management)
			}
			source := "that of AMQP_URL and MANAGEMENT_URL"
			if tt.secret != nil {
				source = "that of Secret default/rabbitmq"
			}
			if text := explain(broker.ErrUnreachable, got).Error(); !strings.Contains(text, source) {
				t.Errorf("where it cannot be reached, it says %q", text)
			}
		})
	}
}

// setOf holds the Transport default/async.
func setOf(vhost string) *manifest.Set {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "async"}, Spec: v1alpha1.TransportSpec{
		Broker: v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
		Queues: []v1alpha1.Queue{{Name: "test"}},
	}}
	if vhost != "" {
		transport.Spec.Broker.VHost = &vhost
	}
	return &manifest.Set{
		RetryPolicies: map[types.NamespacedName]*v1alpha1.RetryPolicy{},
		Transports:    map[types.NamespacedName]*v1alpha1.Transport{{Namespace: "default", Name: "async"}: transport},
		Secrets:       map[types.NamespacedName]*corev1.Secret{},
	}
}
