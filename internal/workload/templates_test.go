package workload

import (
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestTemplates_MergesOnceForEachPodAndImage(t *testing.T) {
	templates := NewTemplates()
	own := func(image string) *corev1.PodTemplateSpec {
		template := &corev1.PodTemplateSpec{}
		template.Spec.Containers = []corev1.Container{{Name: Container, Image: image}}
		return template
	}
	merge := func(image, label string) string {
		worker := &v1alpha1.Worker{Name: "default", Template: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"metadata":{"labels":{"a":%q}}}`, label)}}
		merged, err := templates.customise(own(image), worker, Options{})
		if err == nil {
			merged.Labels["a"] = "changed by the caller"
			return label
		}
		return err.Error()
	}
	first := merge("v1", "b")
	for range 3 {
		if again := merge("v1", "b"); again != first {
			t.Errorf("%q, and %q before", again, first)
		}
	}
	if templates.merges != 1 {
		t.Errorf("%d merges of one template", templates.merges)
	}
	merge("v2", "b")
	merge("v2", "c")
	if templates.merges != 3 {
		t.Errorf("%d merges of three", templates.merges)
	}
	for i := range maxTemplates / 4096 {
		merge("v1", strconv.Itoa(i))
	}
	if templates.size > maxTemplates || len(templates.all) != len(templates.order) {
		t.Errorf("%d of %d bytes are kept", len(templates.all), templates.size)
	}
}
