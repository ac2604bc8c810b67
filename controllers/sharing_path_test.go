package controllers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/credentials"
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
func TestWarnOfSharing_TakesNoOtherPathForTheSameBroker(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/api/cluster-name"):
			_, _ = w.Write([]byte(`{"name":"rabbit@shop"}`))
		case strings.Contains(r.URL.Path, "/api/exchanges/"):
			_, _ = w.Write([]byte(`[{"name":"amq.direct","type":"direct"}]`))
		default:
			_, _ = w.Write([]byte("[]"))
		}
	}))
	defer gateway.Close()
	for path, want := range map[string]int{"": 1, "/theirs": 0} {
		b := brokerpool.NewPool(time.Hour, 8, nil)
		of := func(namespace, path string) v1alpha1.Transport {
			transport := v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async", UID: types.UID(namespace)}}
			transport.Spec.Exchange = &v1alpha1.Exchange{Name: "async"}
			transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@shop", VHost: "v"}
			login, err := credentials.FromSecret(map[string][]byte{
				"host": []byte("127.0.0.1"), "username": []byte("u"), "password": []byte("p"), "management_uri": []byte(gateway.URL + path),
			})
			if err != nil {
				t.Fatal(err)
			}
			port, err := b.Port(client.ObjectKeyFromObject(&transport), login, "v")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := port.View("x", 0).Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
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
