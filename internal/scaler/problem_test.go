package scaler

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"redrive.dev/redrive/internal/workload"
)

func TestProblem_IsWhatTheScalerSays(t *testing.T) {
	tests := map[string]struct {
		kind                 schema.GroupVersionKind
		condition, is, cause string
		want                 string
	}{
		"KEDA cannot follow it":            {workload.ScaledObjectKind(), "Ready", "False", "ScaledObjectCheckFailed", "ScaledObjectCheckFailed"},
		"KEDA does not know yet":           {workload.ScaledObjectKind(), "Ready", "Unknown", "", ""},
		"KEDA has nothing to do":           {workload.ScaledObjectKind(), "Active", "False", "ScalerNotActive", ""},
		"there is no metric":               {workload.AutoscalerKind(), "ScalingActive", "False", "FailedGetExternalMetric", "FailedGetExternalMetric"},
		"there are no pods":                {workload.AutoscalerKind(), "ScalingActive", "False", "ScalingDisabled", ""},
		"no reason is given":               {workload.AutoscalerKind(), "AbleToScale", "False", "", "AbleToScale is False"},
		"the number is at its upper limit": {workload.AutoscalerKind(), "ScalingLimited", "True", "TooManyReplicas", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
				map[string]any{"type": tt.condition, "status": tt.is, "reason": tt.cause},
			}}}}
			object.SetGroupVersionKind(tt.kind)
			if got := problem(object); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
