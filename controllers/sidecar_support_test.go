package controllers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"redrive.dev/redrive/api/v1alpha1"
)

// aged is an API server that says which version it is; nothing where that is empty.
type aged struct {
	says  atomic.Value
	asked atomic.Int64
}

func newAged(t *testing.T, says string) (*aged, *sidecarSupport) {
	t.Helper()
	server := &aged{}
	server.says.Store(says)
	http := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		server.asked.Add(1)
		says, _ := server.says.Load().(string)
		if r.URL.Path != "/version" || says == "" {
			http.Error(rw, "not now", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(rw).Encode(version.Info{Major: "1", Minor: "0", GitVersion: says})
	}))
	t.Cleanup(http.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: http.URL})
	if err != nil {
		t.Fatal(err)
	}
	return server, &sidecarSupport{server: client}
}

// A node may be three minor versions older than the API server, and one of 1.28 takes a sidecar for an init container that does
// not end.
func TestSidecarsAreNativeWhereEveryNodeKnowsThem(t *testing.T) {
	for says, want := range map[string]bool{
		"v1.28.9": false, "v1.29.0": false, "v1.31.14-eks-113cf36": false, "v1.32.0-alpha.1": true, "v1.32.4+k3s1": true, "v1.37.0": true, "v2.0.0": true,
		"1.33": true,
	} {
		_, s := newAged(t, says)
		if got, err := s.native(t.Context(), time.Now()); got != want || err != nil {
			t.Errorf("%s: native %v, %v, want %v", says, got, err, want)
		}
	}
}

func TestTheVersionOfTheClusterIsAskedForAgainUntilItKnowsSidecars(t *testing.T) {
	server, s := newAged(t, "v1.31.0")
	start := time.Now()
	native := func(after time.Duration) bool {
		t.Helper()
		native, err := s.native(t.Context(), start.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return native
	}
	if native(0) || native(versionAge-time.Second) || server.asked.Load() != 1 {
		t.Errorf("asked %d times", server.asked.Load())
	}
	server.says.Store("") // the API server is away for a moment
	if native(versionAge) || native(2*versionAge-time.Second) || server.asked.Load() != 2 {
		t.Errorf("asked %d times", server.asked.Load())
	}
	server.says.Store("v1.32.0")
	if !native(2 * versionAge) {
		t.Error("the new version is not seen")
	}
	// Another of its API servers is not up to date yet.
	server.says.Store("v1.31.0")
	if !native(10*versionAge) || server.asked.Load() != 3 {
		t.Errorf("asked %d times", server.asked.Load())
	}
}

// Pods of the wrong shape would be made, and made anew when the version is known.
func TestWithoutAVersionNoSidecarIsMade(t *testing.T) {
	for _, says := range []string{"", "the newest"} {
		server, s := newAged(t, says)
		r := &TransportReconciler{sidecars: s}
		run := &transportRun{transport: &v1alpha1.Transport{}, source: brokerSource{secrets: []string{"rabbitmq"}}}
		sidecar := &v1alpha1.Worker{Handler: v1alpha1.Handler{Image: new("shop:v1"), HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1/"}}}
		if _, err := r.workerOptions(t.Context(), run, sidecar); err == nil {
			t.Errorf("version %q: there is no error", says)
		}
		asked := server.asked.Load()
		for _, handler := range []v1alpha1.Handler{{HTTP: sidecar.Handler.HTTP}, {Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"a"}}}} {
			if _, err := r.workerOptions(t.Context(), run, &v1alpha1.Worker{Handler: handler}); err != nil || server.asked.Load() != asked {
				t.Errorf("version %q: pods without a sidecar wait for it: %v", says, err)
			}
		}
		server.says.Store("v1.37.0")
		if options, err := r.workerOptions(t.Context(), run, sidecar); err != nil || !options.NativeSidecars {
			t.Errorf("the version is not asked for again: %+v, %v", options, err)
		}
	}
}
