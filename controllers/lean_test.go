package controllers

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// The cache has each Transport and RetryPolicy of the cluster: what nobody reads of them is not in it, however much there is.
func TestTheCacheKeepsOfAnObjectWhatIsRead(t *testing.T) {
	options, err := CacheOptions()
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

// A patch is of the metadata and the status, whatever becomes of the spec in memory.
func TestNoSpecIsWritten(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Name: "async", ResourceVersion: "1"}}
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "default"}}
	s := ofTransport(transport, events.NewFakeRecorder(1))
	if len(s.written.(*v1alpha1.Transport).Spec.Workers) > 0 {
		t.Error("the spec is kept twice")
	}
	transport.Spec = v1alpha1.TransportSpec{}
	if err := s.writeStatus(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
