package v1alpha1_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/testbroker"
)

// What the command line says of a file is what the API server says of it: of odd objects too, which nobody thought of.
func TestLoader_SaysOfOddObjectsWhatTheServerSays(t *testing.T) {
	api := newRawAPI(t, server(t))
	loader, err := manifest.NewVerbatimLoader()
	if err != nil {
		t.Fatal(err)
	}
	const count = 500
	// The words are those of the version that the command line is built with.
	older := os.Getenv(testbroker.TargetVariable) == "test-kubernetes"
	accepted, refused := 0, 0
	for number := range uint64(count) {
		odd := oddObject(rand.New(rand.NewPCG(*fuzzSeed, number)))
		want := api.client.Post().Namespace(metav1.NamespaceDefault).Resource(resources[odd.kind]).
			Param("dryRun", "All").Param("fieldValidation", "Strict").
			SetHeader("Content-Type", "application/yaml").Body(odd.body).Do(t.Context()).Error()
		_, got := loader.Load(t.Context(), bytes.NewReader(odd.body), manifest.Stdin)
		switch {
		case want == nil && got == nil:
			accepted++
		case want == nil || got == nil || !older && !sameWords(want, got):
			t.Errorf("%s\nthe server says %v\nand we say      %v", odd.body, want, got)
		default:
			refused++
		}
	}
	t.Logf("seed %d: %d accepted, %d refused", *fuzzSeed, accepted, refused)
	if accepted < count/10 || refused < count/10 {
		t.Errorf("of %d objects %d were accepted and %d refused: the test does not reach both sides", count, accepted, refused)
	}
}

// sameWords compares what server and command line say. The server gives its causes in a random order, and puts words of
// its own around the parser's.
func sameWords(server, commandLine error) bool {
	var theirs, ours apierrors.APIStatus
	if !errors.As(server, &theirs) {
		return false
	}
	if !errors.As(commandLine, &ours) {
		parser := regexp.MustCompile(`^stdin:\d+: (this is no YAML: )?`).ReplaceAllString(commandLine.Error(), "")
		return theirs.Status().Reason == metav1.StatusReasonBadRequest && strings.Contains(server.Error(), parser)
	}
	if theirs.Status().Details == nil || ours.Status().Details == nil {
		return theirs.Status().Message == ours.Status().Message
	}
	return theirs.Status().Code == ours.Status().Code && slices.Equal(causes(theirs), causes(ours))
}

func causes(status apierrors.APIStatus) []string {
	var texts []string
	for _, cause := range status.Status().Details.Causes {
		texts = append(texts, cause.Field+": "+cause.Message)
	}
	slices.Sort(texts)
	return texts
}
