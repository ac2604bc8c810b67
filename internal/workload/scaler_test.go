package workload_test

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/workload"
)

func TestScaledObject_MatchesItsGoldenFile(t *testing.T) {
	object := workload.ScaledObject(transport("async"), worker("default"), compile.Scaling{Min: 0, Max: 10, MessagesPerPod: 100}, "http://redrive:8082")
	compareScaler(t, "testdata/scaledobject.json", object)
}

func TestAutoscaler_MatchesItsGoldenFile(t *testing.T) {
	object, err := workload.Autoscaler(transport("async"), worker("default"), compile.Scaling{Min: 0, Max: 10, MessagesPerPod: 2000})
	if err != nil {
		t.Fatal(err)
	}
	compareScaler(t, "testdata/autoscaler.json", object)
}

func compareScaler(t *testing.T, file string, object *unstructured.Unstructured) {
	t.Helper()
	got, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, file, append(got, '\n'))
}

// KEDA puts the names of both objects into labels, and an autoscaler selects by labels.
func TestScaledObject_HasValidNamesAndLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr, w := transport(dnsName(253, true).Draw(t, "transport")), worker(dnsName(63, false).Draw(t, "worker"))
		object := workload.ScaledObject(tr, w, compile.Scaling{Max: 1, MessagesPerPod: 1}, "http://redrive")
		name, _, _ := unstructured.NestedString(object.Object, "spec", "advanced", "horizontalPodAutoscalerConfig", "name")
		for _, name := range []string{name, object.GetName()} {
			if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
				t.Errorf("name %q: %v", name, errs)
			}
		}
		if name == object.GetName() {
			t.Errorf("KEDA's autoscaler has the name %s of ours", name)
		}
		for label, value := range workload.MetricLabels(tr, w.Name) {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("label %s=%q: %v", label, value, errs)
			}
		}
	})
}

func TestReplicasForm_SetsOnlyReplicasOfTheVersionThatWasRead(t *testing.T) {
	live := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", ResourceVersion: "7", UID: "u"}}
	got, err := json.Marshal(workload.ReplicasForm(live, 5))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"resourceVersion":"7"`, `"uid":"u"`, `"spec":{"replicas":5}`} {
		if !strings.Contains(string(got), part) {
			t.Errorf("%s lacks %s", got, part)
		}
	}
}
