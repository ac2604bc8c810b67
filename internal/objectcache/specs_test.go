package objectcache

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/workload"
)

// largeTransport has so many keys at each of 64 queues.
func largeTransport(keys int) *v1alpha1.Transport {
	t := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", Generation: 1, Annotations: map[string]string{tooLarge: "1"}}}
	t.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: "login"}
	t.Spec.DeletionPolicy = v1alpha1.DeletionRetain
	t.Spec.Prefix = new("async")
	t.Spec.Workers = []v1alpha1.Worker{{Name: "default"}}
	for i := range 64 {
		queue := v1alpha1.Queue{Name: fmt.Sprint("q", i)}
		for j := range keys {
			if j%32 == 0 {
				queue.Bindings = append(queue.Bindings, v1alpha1.Binding{Exchange: fmt.Sprint("e", j)})
			}
			binding := &queue.Bindings[len(queue.Bindings)-1]
			binding.Keys = append(binding.Keys, fmt.Sprintf("%030d", j))
		}
		t.Spec.Queues = append(t.Spec.Queues, queue)
	}
	for i := range 256 {
		t.Spec.RetryPolicies = append(t.Spec.RetryPolicies, v1alpha1.PolicyRule{When: fmt.Sprintf("%0200d", i), RetryPolicyRef: v1alpha1.PolicyReference{Name: "p"}})
	}
	return t
}

// Strings of two bytes take ten times what they are in the text, so that one Transport could take megabytes of the operator's memory.
func TestCache_KeepsAPartOfASpecThatIsTooLarge(t *testing.T) {
	t.Parallel()
	for keys, refused := range map[int]bool{32: false, 512: true} {
		kept := largeTransport(keys)
		stripForCache(kept)
		if size := compile.SizeOf(&kept.Spec); size > compile.MaxSpec || refused && size > compile.MaxSpec/8 {
			t.Errorf("%d keys: %d bytes are kept", keys, size)
		}
		err := CheckSize(kept)
		if !refused {
			if whole := largeTransport(keys); err != nil || !reflect.DeepEqual(kept.Spec, whole.Spec) {
				t.Errorf("%d keys: %v", keys, err)
			}
			continue
		}
		if err == nil || outcome.Interpret(err).Kind != outcome.KindStalled || !strings.HasPrefix(err.Error(), "spec: takes ") {
			t.Errorf("%d keys: %v", keys, err)
		}
		s := kept.Spec
		if s.Broker.SecretRef == nil || s.DeletionPolicy != v1alpha1.DeletionRetain || *s.Prefix != "async" || len(s.Queues) != 64 || len(s.Workers) != 1 {
			t.Errorf("its deletion lacks something: %+v", s)
		}
	}
}

func TestCache_KeepsNoWorkersThatAreTooLarge(t *testing.T) {
	t.Parallel()
	kept := largeTransport(1)
	for i := range 16 {
		handler := v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: slices.Repeat([]string{strings.Repeat("x", 4000)}, 64)}}
		kept.Spec.Workers = append(kept.Spec.Workers, v1alpha1.Worker{Name: fmt.Sprint("w", i), Handler: handler})
	}
	stripForCache(kept)
	if size := compile.SizeOf(&kept.Spec); size > compile.MaxSpec/8 || kept.Annotations[tooLarge] == "" {
		t.Errorf("%d bytes are kept, with %v", size, kept.Annotations)
	}
}

// The cache may run what it is given twice on one object.
func TestCheckSize_RefusesAStrippedSpecEachTime(t *testing.T) {
	t.Parallel()
	kept := largeTransport(512)
	for range 3 {
		stripForCache(kept)
	}
	if err := CheckSize(kept); err == nil {
		t.Error("what is left is taken for all")
	}
}

// Labels of a megabyte on ConfigMaps, and annotations of thousands of pods, filled the memory of the operator.
func TestCache_KeepsOfMetadataWhatIsRead(t *testing.T) {
	long := strings.Repeat("x", 2*maxMetadata)
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "one", UID: "u", ResourceVersion: "7", Finalizers: []string{long},
		Labels:          map[string]string{workload.TransportLabel: "async", "long": long},
		Annotations:     map[string]string{workload.ConfigHashAnnotation: "h", workload.SecretVersionAnnotation: "s", "long": long},
		OwnerReferences: []metav1.OwnerReference{{Name: long}, {Kind: "Transport", Name: "async", UID: "t", Controller: new(true)}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: long}},
	}}
	kept, err := stripAll(object)
	if err != nil {
		t.Fatal(err)
	}
	want := metav1.ObjectMeta{
		Namespace: "shop", Name: "one", UID: "u", ResourceVersion: "7", Labels: map[string]string{workload.TransportLabel: "async"},
		Annotations:     map[string]string{workload.ConfigHashAnnotation: "h", workload.SecretVersionAnnotation: "s"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Transport", Name: "async", UID: "t", Controller: new(true)}},
	}
	if got := kept.(*metav1.PartialObjectMetadata).ObjectMeta; !reflect.DeepEqual(got, want) {
		t.Errorf("kept is %+v, want %+v", got, want)
	}
	if got := boundFinalizers([]string{"a", v1alpha1.Finalizer}); len(got) != 2 {
		t.Errorf("finalizers %v", got)
	}
	if got := boundFinalizers([]string{long, v1alpha1.Finalizer}); !slices.Equal(got, []string{v1alpha1.Finalizer}) {
		t.Errorf("%d finalizers are kept", len(got))
	}
}
