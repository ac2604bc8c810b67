package workersecrets

import (
	"context"
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// metadataOf is an API server with Secrets, which gives out their metadata and nothing else, and fails for the Secret "broken".
type metadataOf struct {
	client.Reader

	versions map[string]string
	reads    *[]string
}

// Get implements client.Reader.
func (m metadataOf) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	*m.reads = append(*m.reads, key.String())
	secret, ok := object.(*metav1.PartialObjectMetadata)
	version, exists := m.versions[key.Name]
	switch {
	case !ok || secret.Kind != "Secret":
		return errors.New("this test lets nothing but metadata of Secrets be read")
	case key.Name == "broken":
		return errors.New("the API server is away")
	case !exists:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret.ResourceVersion = version
	return nil
}

func TestVersions_ReadSecretsOfHandlersByTheirMetadata(t *testing.T) {
	http := func(headers, ca string) v1alpha1.Handler {
		handler := v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "https://h/"}}
		if headers != "" {
			handler.HTTP.HeadersSecretRef = &v1alpha1.LocalReference{Name: headers}
		}
		if ca != "" {
			handler.HTTP.TLS = &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: ca}}
		}
		return handler
	}
	command := v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: []string{"a"}}}
	tests := map[string]struct {
		handler  v1alpha1.Handler
		version  string
		warnings []string
		fails    bool
	}{
		"none":                 {command, "", nil, false},
		"none of a URL":        {http("", ""), "", nil, false},
		"both are there":       {http("login", "ca"), "1.2", nil, false},
		"one is there":         {http("", "ca"), "2", nil, false},
		"one for both":         {http("ca", "ca"), "2.2", nil, false},
		"the headers are gone": {http("gone", "ca"), ".2", []string{`worker w: there is no Secret "gone" in namespace "shop", which handler.http.headersSecretRef names: workers that start take no messages until there is`}, false},
		"the authority is gone": {
			http("login", "gone"), "1.",
			[]string{`worker w: there is no Secret "gone" in namespace "shop", which handler.http.tls.caSecretRef names: workers that start take no messages until there is`},
			false,
		},
		"one cannot be read": {http("broken", "ca"), "2", nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var reads []string
			server := metadataOf{versions: map[string]string{"login": "1", "ca": "2"}, reads: &reads}
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
			transport.Spec.Workers = []v1alpha1.Worker{{Name: "w", Handler: tt.handler}, {Name: "v", Handler: http("", "ca")}}
			versions, missing, err := Versions(t.Context(), server, transport)
			if (err != nil) != tt.fails {
				t.Fatalf("the error is %v", err)
			}
			var warnings []string
			for _, finding := range missing {
				if finding.Reason != v1alpha1.ReasonSecretNotFound {
					t.Errorf("the reason is %s", finding.Reason)
				}
				warnings = append(warnings, finding.String())
			}
			if !slices.Equal(warnings, tt.warnings) {
				t.Errorf("the warnings are %q, want %q", warnings, tt.warnings)
			}
			if got := versions["w"]; got != tt.version {
				t.Errorf("the versions are %q, want %q", got, tt.version)
			}
			if got := versions["v"]; got != "2" {
				t.Errorf("the versions of the other worker are %q", got)
			}
			if slices.Sort(reads); len(slices.Compact(slices.Clone(reads))) != len(reads) {
				t.Errorf("read were %v, one of them twice", reads)
			}
		})
	}
}
