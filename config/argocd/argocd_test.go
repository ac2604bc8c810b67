package argocd_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/config/argocd"
	"redrive.dev/redrive/internal/testhealth"
)

func TestHealthScript_AgreesWithFluxOnEveryFixture(t *testing.T) {
	for _, fixture := range testhealth.Fixtures(t) {
		t.Run(fixture.Name, func(t *testing.T) {
			result, _ := testhealth.Flux(t, fixture.Object)
			got, message := testhealth.Argo(t, fixture.Object)
			if got != testhealth.Agrees(result) {
				t.Errorf("kstatus says %s, and the script %s: %s", result, got, message)
			}
			if message == "" {
				t.Error("the script says nothing to people")
			}
		})
	}
}

func TestHealthScript_SaysWhy(t *testing.T) {
	cases := []struct{ fixture, want string }{
		{"Current/transport-ready", "the broker and the workers are as the spec asks"},
		{"Current/transport-ready-degraded", "Degraded: queue/test: no worker group consumes this queue"},
		{"InProgress/transport-edited", "the operator has not looked at the latest change yet"},
		{"InProgress/transport-without-its-secret", `SecretNotFound: there is no Secret "rabbitmq" in namespace "shop"`},
		{"Failed/transport-conflict", "Conflict: queue/test: x-message-ttl is 60000 and not none"},
		{"Terminating/transport-deletion-blocked", "is being deleted"},
	}
	for _, c := range cases {
		object := testhealth.Decode(t, testhealth.Read(t, "testdata/"+c.fixture+".yaml"))
		if _, message := testhealth.Argo(t, object); message != c.want {
			t.Errorf("%s: got %q, want %q", c.fixture, message, c.want)
		}
	}
}

// Nothing of the operator's making looks so, but Argo CD may show anything.
func TestHealthScript_BearsObjectsWithoutStatus(t *testing.T) {
	for _, text := range []string{
		"metadata: {generation: 1}", "metadata: {generation: 1}\nstatus: {}", "metadata: {}",
		"metadata: {generation: 1}\nstatus: {observedGeneration: 1, conditions: []}",
		"metadata: {generation: 1}\nstatus: {observedGeneration: 1, conditions: [{type: Ready, status: Unknown, reason: New}]}",
	} {
		object := testhealth.Decode(t, []byte("apiVersion: redrive.dev/v1alpha1\nkind: Transport\n"+text))
		if got, message := testhealth.Argo(t, object); got != "Progressing" || message == "" {
			t.Errorf("%s: got %s, %q", text, got, message)
		}
	}
}

func TestConfigMapPatch_HoldsTheScriptForEachKind(t *testing.T) {
	var patch corev1.ConfigMap
	if err := yaml.UnmarshalStrict(argocd.ConfigMapPatch, &patch); err != nil {
		t.Fatal(err)
	}
	if patch.Name != "argocd-cm" {
		t.Errorf("the patch is for %q", patch.Name)
	}
	kinds := []string{"Transport", "RetryPolicy"}
	if len(patch.Data) != len(kinds) {
		t.Errorf("%d keys, want %d", len(patch.Data), len(kinds))
	}
	for _, kind := range kinds {
		key := "resource.customizations.health." + v1alpha1.GroupVersion.Group + "_" + kind
		if strings.TrimSpace(patch.Data[key]) != strings.TrimSpace(argocd.HealthScript) {
			t.Errorf("%s is not health.lua", key)
		}
	}
}
