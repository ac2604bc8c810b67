package controllers

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/internal/workload"
)

// Fifty Transports may have hundreds of Deployments by templates of a quarter of a megabyte each.
func TestTheCacheKeepsNoLargeTemplateOfADeployment(t *testing.T) {
	for name, variables := range map[string]int{"small": 10, "large": 1000} {
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "u", ResourceVersion: "7", Labels: map[string]string{workload.WorkerLabel: "w", "more": "x"},
			Annotations: map[string]string{stampAnnotation: "s", "other": "x"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{
					Manager: fieldOwner, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "apps/v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{},"f:paused":{}}}`),
				},
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
			},
		}}
		deployment.Spec.Replicas = new(int32(3))
		container := corev1.Container{Name: "c"}
		for i := range variables {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", i)})
		}
		deployment.Spec.Template.Spec.Containers = []corev1.Container{container}
		if _, err := stripDeploymentForCache(deployment); err != nil {
			t.Fatal(err)
		}
		if whole := len(deployment.Spec.Template.Spec.Containers) > 0; whole != (name == "small") || deployment.Size() > maxDeployment {
			t.Errorf("%s: %d bytes are kept, with its template: %v", name, deployment.Size(), whole)
		}
		ours, err := ownsReplicas(deployment)
		decided, errDecided := hasReplicas(deployment)
		if !ours || !decided || err != nil || errDecided != nil || replicas(deployment) != 3 || deployment.Annotations[stampAnnotation] != "s" ||
			deployment.Labels[workload.WorkerLabel] != "w" || deployment.ResourceVersion != "7" || lastManager(deployment) != "" {
			t.Errorf("%s: replicas are ours %v, decided %v (%v, %v), of %+v", name, ours, decided, err, errDecided, deployment.ObjectMeta)
		}
	}
}
