package crdcheck

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

func TestCheck_TellsOfFieldsThatTheAPIServerWouldDrop(t *testing.T) {
	cluster := testcluster.Start(t)
	server, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	must(t, err)
	must(t, Check(t.Context(), server.OpenAPIV3()))

	change(t, cluster.Client, func(transport *apiextensionsv1.JSONSchemaProps) {
		status, spec := transport.Properties["status"], transport.Properties["spec"]
		delete(status.Properties, "deletions")
		delete(spec.Properties["queues"].Items.Schema.Properties, "limits")
	})
	waitFor(t, func() error { return check(t.Context(), server.OpenAPIV3(), 0) },
		"Transport.spec.queues.limits, Transport.status.deletions: apply the CustomResourceDefinitions of this version")
}

func TestCheck_TellsOfCRDsThatAreNotThere(t *testing.T) {
	err := check(t.Context(), paths{}, 0)
	if err == nil || !strings.Contains(err.Error(), "the cluster has no CustomResourceDefinitions of redrive.dev/v1alpha1") {
		t.Error(err)
	}
}

func TestCheck_DoesNotStopAnOperatorThatMayNotReadTheSchema(t *testing.T) {
	must(t, check(t.Context(), paths{err: errors.New("forbidden")}, 0))
}

// paths is an API server that serves nothing of Redrive, or answers with an error.
type paths struct{ err error }

// Paths implements openapi.Client.
func (p paths) Paths() (map[string]openapi.GroupVersion, error) { return nil, p.err }

func change(t *testing.T, c client.Client, edit func(*apiextensionsv1.JSONSchemaProps)) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "transports.redrive.dev"}, crd))
	edit(crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	must(t, c.Update(t.Context(), crd))
}

// waitFor waits until an error has a text; the API server publishes a new schema a moment after it has taken it.
func waitFor(t *testing.T, do func() error, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := do()
	for ; err == nil || !strings.Contains(err.Error(), text); err = do() {
		select {
		case <-ctx.Done():
			t.Fatalf("%v; want %q", err, text)
		case <-time.After(interval):
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
