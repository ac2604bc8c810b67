package manifest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/testcluster"
)

// newServer returns a client that speaks to the API server in bytes.
func newServer(t *testing.T) *rest.RESTClient {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the API server")
	}
	config := rest.CopyConfig(testcluster.Start(t).Config)
	config.GroupVersion = &schema.GroupVersion{Group: "redrive.dev", Version: "v1alpha1"}
	config.APIPath = "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	server, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// submit sends a document as kubectl does, strictly, in a dry run.
func submit(t *testing.T, server *rest.RESTClient, document string) error {
	t.Helper()
	resource := "retrypolicies"
	if strings.Contains(document, "kind: Transport\n") {
		resource = "transports"
	}
	request := server.Post().Namespace("default").Resource(resource).Param("fieldValidation", "Strict").Param("dryRun", "All")
	result := request.SetHeader("Content-Type", "application/yaml").Body([]byte(document)).Do(t.Context())
	return result.Error()
}

// errorsIn splits an answer at its commas and sorts the parts: in which order errors stand is left to chance.
func errorsIn(answer string) []string {
	parts := strings.Split(strings.NewReplacer("[", "", "]", "").Replace(answer), ", ")
	slices.Sort(parts)
	return parts
}

// The point of this package: what it finds in an object is what the API server finds, word for word, before some of the words
// are put into shorter ones.
func TestVerbatimLoader_ReportsTheAPIServersOwnErrors(t *testing.T) {
	server := newServer(t)
	loader, err := manifest.NewVerbatimLoader()
	if err != nil {
		t.Fatal(err)
	}
	for title, tc := range refused {
		t.Run(title, func(t *testing.T) {
			want := submit(t, server, tc.yaml)
			if want == nil {
				t.Fatal("the API server accepted the object")
			}
			_, got := loader.Load(t.Context(), strings.NewReader(tc.yaml), manifest.Stdin)
			if got == nil || !slices.Equal(errorsIn(got.Error()), errorsIn(want.Error())) {
				t.Errorf("error is\n%v\nthe API server's is\n%v", got, want)
			}
		})
	}
}

func TestSamples_AreAcceptedByTheAPIServer(t *testing.T) {
	server := newServer(t)
	accepted := 0
	for _, pattern := range []string{samples + "/*.yaml", examples + "/*.yaml", examples + "/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for document := range strings.SplitSeq(string(data), "\n---\n") {
				if !strings.Contains(document, "apiVersion: redrive.dev/") {
					continue
				}
				accepted++
				if err := submit(t, server, document); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
	if accepted < 10 {
		t.Errorf("only %d samples were found", accepted)
	}
}
