package v1alpha1_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/internal/testcluster"
)

// upgrade is the CustomResourceDefinition of one kind on its way from one release to the next. It has an API group of its own, so that the
// tests beside it keep theirs.
type upgrade struct {
	*testing.T
	cluster   *testcluster.Cluster
	namespace string
	group     string
	kind      string
}

func newUpgrade(t *testing.T, group, kind string) *upgrade {
	cluster := server(t)
	return &upgrade{T: t, cluster: cluster, namespace: cluster.Namespace(t), group: group, kind: kind}
}

// install applies a definition as `kubectl apply --server-side` does, and waits until the server goes by it. Only a field that no
// earlier definition had tells that.
func (u *upgrade) install(definition *apiextensionsv1.CustomResourceDefinition, marker string) {
	u.Helper()
	definition = definition.DeepCopy()
	definition.Spec.Group = u.group
	definition.Name = definition.Spec.Names.Plural + "." + u.group
	definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties[marker] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	data, err := runtime.DefaultUnstructuredConverter.ToUnstructured(definition)
	if err != nil {
		u.Fatal(err)
	}
	if err := u.apply(&unstructured.Unstructured{Object: data}); err != nil {
		u.Fatal(err)
	}
	var answer error
	for range 600 {
		probe := u.object("probe-"+marker, map[string]any{marker: "x"})
		answer = u.cluster.Client.Create(u.Context(), probe, client.DryRunAll, client.FieldValidation("Strict"))
		if answer == nil || strings.Contains(answer.Error(), "is invalid") && !strings.Contains(answer.Error(), "unknown field") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	u.Fatalf("the server does not take up the definition with the field %s: %v", marker, answer)
}

// apply is a server-side apply by one and the same user.
func (u *upgrade) apply(o *unstructured.Unstructured) error {
	unstructured.RemoveNestedField(o.Object, "status")
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return u.cluster.Client.Apply(u.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kubectl"), client.ForceOwnership)
}

func (u *upgrade) object(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": u.group + "/v1alpha1", "kind": u.kind,
		"metadata": map[string]any{"name": name, "namespace": u.namespace}, "spec": spec,
	}}
}

// kept is an object on the server, as it was sent.
type kept struct {
	*unstructured.Unstructured
	// applied tells that it was, and can be again. Other objects have fields that the server takes out.
	applied bool
}

// store makes an object as kubectl would; false where the server does not take it.
func (u *upgrade) store(name string, spec map[string]any) (kept, bool) {
	sent := u.object(name, spec)
	if u.apply(sent.DeepCopy()) == nil {
		return kept{sent, true}, true
	}
	return kept{sent, false}, u.cluster.Client.Create(u.Context(), sent.DeepCopy(), client.FieldOwner("kubectl")) == nil
}

// edits are what users and the operator do to an object without a thought of the fields that a rule is about.
func (u *upgrade) edits(sent kept) map[string]error {
	u.Helper()
	key := client.ObjectKeyFromObject(sent)
	stored := sent.DeepCopy()
	merge := func(patch string) client.Patch { return client.RawPatch("application/merge-patch+json", []byte(patch)) }
	answers := map[string]error{
		"a label":     u.cluster.Client.Patch(u.Context(), stored.DeepCopy(), merge(`{"metadata":{"labels":{"team":"shop"}}}`)),
		"a finalizer": u.cluster.Client.Patch(u.Context(), stored.DeepCopy(), merge(`{"metadata":{"finalizers":["redrive.dev/topology"]}}`)),
		"the status":  u.cluster.Client.Status().Patch(u.Context(), stored.DeepCopy(), merge(`{"status":{"observedGeneration":1}}`)),
	}
	if err := u.cluster.Client.Get(u.Context(), key, stored); err != nil {
		u.Fatal(err)
	}
	if changeUnrelated(stored) {
		answers["replicas or maxAge"] = u.cluster.Client.Update(u.Context(), stored)
	}
	if sent.applied {
		again := sent.DeepCopy()
		again.SetLabels(map[string]string{"team": "shop", "applied": "again"})
		answers["kubectl apply"] = u.apply(again)
	}
	answers["the end of the finalizer"] = u.cluster.Client.Patch(u.Context(), sent.DeepCopy(), merge(`{"metadata":{"finalizers":null}}`))
	return answers
}

// changeUnrelated gives the first worker another number of pods, and a policy another age; false where there is none to give.
func changeUnrelated(o *unstructured.Unstructured) bool {
	spec := o.Object["spec"].(map[string]any)
	if o.GetKind() == "RetryPolicy" {
		spec["maxAge"] = "721h"
		return true
	}
	workers, _ := spec["workers"].([]any)
	if len(workers) == 0 {
		return false
	}
	worker := workers[0].(map[string]any)
	if worker["autoscaling"] != nil {
		return false
	}
	worker["replicas"] = int64(7)
	return true
}

// previous is the definition of a kind in the release before this one. At a release, config/crd/bases is copied to testdata/previous.
func previous(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files := map[string]string{"RetryPolicy": "redrive.dev_retrypolicies.yaml", "Transport": "redrive.dev_transports.yaml"}
	data, err := os.ReadFile(filepath.Join("testdata", "previous", files[kind]))
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, definition); err != nil {
		t.Fatal(err)
	}
	return definition
}

// What the previous release let in can be edited under the rules of this one, in all that nobody objects to: also where the server
// judges unchanged fields anew, as those before 1.30 do.
func TestUpgrade_KeepsObjectsOfThePreviousReleaseEditable(t *testing.T) {
	const count = 300
	for _, kind := range []string{"RetryPolicy", "Transport"} {
		t.Run(kind, func(t *testing.T) {
			u := newUpgrade(t, "previous.redrive.test", kind)
			u.install(previous(t, kind), "markerOfThePrevious")
			specs := specsToKeep(t, kind, count)
			var stored []kept
			for i, spec := range specs {
				if sent, is := u.store("o"+strconv.Itoa(i), spec); is {
					stored = append(stored, sent)
				}
			}
			u.install(definitions(t)[kind], "markerOfThePresent")
			for _, sent := range stored {
				for edit, err := range u.edits(sent) {
					if err != nil {
						t.Errorf("%s of what the previous release let in is refused: %v\nsent %v", edit, err, sent.Object["spec"])
					}
				}
			}
			t.Logf("%d of %d specs were stored", len(stored), len(specs))
			if len(stored) < len(specs)/8 {
				t.Error("the test hardly stores anything")
			}
		})
	}
}

// specsToKeep are the seeds of the odd objects, odd ones made of them, and what only the previous release had in this form.
func specsToKeep(t *testing.T, kind string, count uint64) []map[string]any {
	t.Helper()
	var bodies []string
	for _, seed := range seeds[kind] {
		bodies = append(bodies, `{"spec":`+seed+`}`, `{"spec":`+strings.ReplaceAll(seed, `{"preset":"HTTP"}`, `{"name":"b"}`)+`}`)
	}
	for number := range count {
		if odd := oddObject(rand.New(rand.NewPCG(*fuzzSeed, number))); odd.kind == kind {
			bodies = append(bodies, string(odd.body))
		}
	}
	var specs []map[string]any
	for _, body := range bodies {
		var o unstructured.Unstructured
		// What Go does not read, and what has no spec, is for TestCRD_AcceptsOnlyObjectsThatDecode.
		if json.Unmarshal([]byte(body), &o.Object) != nil {
			continue
		}
		if spec, is := o.Object["spec"].(map[string]any); is {
			specs = append(specs, spec)
		}
	}
	return specs
}

// Where the server ratchets, which is from 1.30 on, a tighter rule lets unchanged fields be. Before, it bites them at each edit, the
// operator's included: this is what the test above would find.
func TestUpgrade_RefusesUnchangedFieldsOnlyBefore130(t *testing.T) {
	u := newUpgrade(t, "tighter.redrive.test", "Transport")
	present := definitions(t)["Transport"]
	u.install(present, "markerOfThePresent")
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(minimal+"prefix: long\nworkers: [{name: w, handler: {http: {url: 'http://h/'}}}]"), &spec); err != nil {
		t.Fatal(err)
	}
	sent, is := u.store("transport", spec)
	if !is {
		t.Fatal("the object is not stored")
	}
	tighter := present.DeepCopy()
	properties := tighter.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	prefix := properties["prefix"]
	prefix.MaxLength = new(int64(1))
	properties["prefix"] = prefix
	u.install(tighter, "markerOfTheTighter")
	ratchets := u.minor() >= 30
	for edit, err := range u.edits(sent) {
		switch {
		case ratchets && err != nil:
			t.Errorf("%s: %v", edit, err)
		case !ratchets && edit == "the status": // Some of these versions look at the status alone.
		case !ratchets && (err == nil || !strings.Contains(err.Error(), "spec.prefix: Too long")):
			t.Errorf("%s: error is %v, want spec.prefix: Too long", edit, err)
		}
	}
}

func (u *upgrade) minor() uint {
	u.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(u.cluster.Config)
	if err != nil {
		u.Fatal(err)
	}
	answer, err := d.ServerVersion()
	if err != nil {
		u.Fatal(err)
	}
	u.Logf("the server is %s", answer.GitVersion)
	return version.MustParseSemantic(answer.GitVersion).Minor()
}
