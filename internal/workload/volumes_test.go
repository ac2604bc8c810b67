package workload_test

import (
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// mounted are the keys that a pod sees of each Secret, in order.
func mounted(t *testing.T, broker v1alpha1.Broker, secrets workload.Secrets) []string {
	t.Helper()
	tr := transport("async")
	tr.Spec.Broker = broker
	with := options
	with.Secrets = secrets
	d, err := workload.Deployment(tr, worker("default"), with)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, volume := range d.Spec.Template.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret.Optional == nil || !*source.Secret.Optional {
				t.Errorf("a pod does not start where Secret %s lacks one of the keys", source.Secret.Name)
			}
			keys := make([]string, len(source.Secret.Items))
			for i, item := range source.Secret.Items {
				keys[i] = item.Key
				if item.Path != item.Key {
					t.Errorf("key %s is the file %s", item.Key, item.Path)
				}
			}
			found = append(found, source.Secret.Name+": "+strings.Join(keys, " "))
		}
	}
	return found
}

func TestDeployment_ShowsOnlyTheKeysThatAWorkerReads(t *testing.T) {
	byCluster := v1alpha1.Broker{ClusterRef: &v1alpha1.LocalReference{Name: "rabbit"}}
	tests := map[string]struct {
		broker  v1alpha1.Broker
		secrets workload.Secrets
		want    []string
	}{
		"of the Secret that the spec names": {
			broker: v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
			want:   []string{"rabbitmq: host port username password uri vhost ca.crt tls.crt tls.key"},
		},
		"of the default user of a cluster": {
			broker: byCluster, secrets: workload.Secrets{Login: "rabbit-default-user"},
			want: []string{"rabbit-default-user: host port username password uri vhost ca.crt tls.crt tls.key"},
		},
		"and of the cluster's authority": {
			broker: byCluster, secrets: workload.Secrets{Login: "rabbit-default-user", CA: "ca"},
			want: []string{"rabbit-default-user: host port username password uri vhost tls.crt tls.key", "ca: ca.crt"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := mounted(t, tt.broker, tt.secrets); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDeployment_NeedsTheSecretsOfItsCluster(t *testing.T) {
	tr := transport("async")
	tr.Spec.Broker = v1alpha1.Broker{ClusterRef: &v1alpha1.LocalReference{Name: "rabbit"}}
	if _, err := workload.Deployment(tr, worker("default"), options); err == nil {
		t.Error("pods without a login were made")
	}
}
