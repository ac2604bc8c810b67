package objectcache

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// The cache has each Transport and RetryPolicy of the cluster: what nobody reads of them is not in it, however much there is.
func TestCache_KeepsOfAnObjectWhatIsRead(t *testing.T) {
	options, err := CacheOptions(NewTally(1 << 20))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 200_000)
	metadata := metav1.ObjectMeta{
		Name: "async", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": long},
		Finalizers: []string{v1alpha1.Finalizer},
	}
	transport := &v1alpha1.Transport{ObjectMeta: *metadata.DeepCopy()}
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "default", Template: &runtime.RawExtension{Raw: []byte(`{"x":"` + long + `"}`)}}}
	for _, object := range []client.Object{transport, &v1alpha1.RetryPolicy{ObjectMeta: *metadata.DeepCopy()}} {
		for kind, by := range options.ByObject {
			if _, is := kind.(*v1alpha1.Transport); is != (object == transport) {
				continue
			}
			if _, is := kind.(*v1alpha1.RetryPolicy); is == (object == transport) {
				continue
			}
			kept, err := by.Transform(object)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(kept)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > 2000 || !strings.Contains(string(text), v1alpha1.Finalizer) {
				t.Errorf("%T: %d bytes are kept: %.500s", object, len(text), text)
			}
		}
	}
}
