package v1alpha1_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// server returns the API server that the tests of this package share.
func server(t *testing.T) *testcluster.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the API server")
	}
	return testcluster.Start(t)
}

// object is an object with a spec in YAML. Its name is made up by the server.
func object(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal([]byte(spec), &content); err != nil {
		t.Fatalf("the test's own YAML: %v\n%s", err, spec)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "redrive.dev/v1alpha1",
		"kind":       kind,
		"metadata":   map[string]any{"generateName": "subject-", "namespace": "default"},
		"spec":       content,
	}}
}

// submit asks the server what it says of an object, as kubectl does: strictly. Nothing is stored.
func submit(t *testing.T, cluster *testcluster.Cluster, o *unstructured.Unstructured) error {
	t.Helper()
	return cluster.Client.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict"))
}

// verdict is a spec and what the server says of it: nothing where it accepts, else a part of its answer.
type verdict struct {
	spec string
	want string
}

// The API server's own words.
const (
	atMost    = "should be less than or equal to"
	atLeast   = "should be greater than or equal to"
	enum      = "Unsupported value"
	tooLong   = "Too long"
	tooMany   = "Too many"
	tooShort  = "at least 1 chars"
	tooFew    = "at least 1 items"
	pattern   = "should match"
	required  = "Required value"
	duplicate = "Duplicate value"
)
