package controllers

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/topology"
)

// listedTransports is a cache with some Transports.
type listedTransports struct {
	client.Client

	all []v1alpha1.Transport
}

// List implements client.Reader.
func (l listedTransports) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.TransportList).Items = l.all
	return nil
}

// Behind a gateway each team has a path of its own, and one whose server claims to be the broker of another team had a warning put at the other's
// Transports, with a name of its choice.
func TestAServerBehindAnotherPathIsNotTakenForTheSameBroker(t *testing.T) {
	for path, want := range map[string]int{"": 1, "/theirs": 0} {
		b := newBrokers(time.Hour, 8, nil)
		of := func(namespace, path string) v1alpha1.Transport {
			transport := v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async", UID: types.UID(namespace)}}
			transport.Spec.Exchange = &v1alpha1.Exchange{Name: "async"}
			transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@shop", VHost: "v"}
			login, err := credentials.FromSecret(map[string][]byte{
				"host": []byte("gateway.example"), "username": []byte("u"), "password": []byte("p"), "management_uri": []byte("http://gateway.example" + path),
			})
			if err != nil {
				t.Fatal(err)
			}
			port, err := b.port(client.ObjectKeyFromObject(&transport), login, "v")
			if err != nil {
				t.Fatal(err)
			}
			port.identity = topology.Identity{Cluster: "rabbit@shop", VHost: "v"}
			return transport
		}
		ours, theirs := of("shop", ""), of("hostile", path)
		r := &TransportReconciler{brokers: b, Client: listedTransports{all: []v1alpha1.Transport{ours, theirs}}}
		run := &transportRun{transport: &ours}
		if err := r.warnOfSharing(t.Context(), run); err != nil || len(run.warnings) != want {
			t.Errorf("path %q: %v, %+v", path, err, run.warnings)
		}
	}
}
