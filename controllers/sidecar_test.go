package controllers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokersource"
	"redrive.dev/redrive/internal/clusterinfo"
)

// Pods of the wrong shape would be made, and made anew when the version is known.
func TestWorkerOptions_MakeNoSidecarWithoutAVersion(t *testing.T) {
	for _, says := range []string{"", "the newest"} {
		var version atomic.Value
		var asked atomic.Int64
		version.Store(says)
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			_ = json.NewEncoder(rw).Encode(apiversion.Info{Major: "1", Minor: "0", GitVersion: version.Load().(string)})
		}))
		t.Cleanup(server.Close)
		client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		r := &TransportReconciler{sidecars: clusterinfo.KnowsSidecars(client)}
		run := &transportRun{transport: &v1alpha1.Transport{}, source: brokersource.Source{Secrets: []string{"rabbitmq"}}}
		sidecar := &v1alpha1.Worker{Handler: v1alpha1.Handler{Image: new("shop:v1"), HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1/"}}}
		if _, err := r.workerOptions(t.Context(), run, sidecar); err == nil {
			t.Errorf("version %q: there is no error", says)
		}
		before := asked.Load()
		for _, handler := range []v1alpha1.Handler{{HTTP: sidecar.Handler.HTTP}, {Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"a"}}}} {
			if _, err := r.workerOptions(t.Context(), run, &v1alpha1.Worker{Handler: handler}); err != nil || asked.Load() != before {
				t.Errorf("version %q: pods without a sidecar wait for it: %v", says, err)
			}
		}
		version.Store("v1.37.0")
		if options, err := r.workerOptions(t.Context(), run, sidecar); err != nil || !options.NativeSidecars {
			t.Errorf("the version is not asked for again: %+v, %v", options, err)
		}
	}
}
