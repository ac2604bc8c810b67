package objectcache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workload"
)

// Fifty Transports may have hundreds of Deployments by templates of a quarter of a megabyte each.
func TestCache_KeepsNoLargeTemplateOfADeployment(t *testing.T) {
	for name, variables := range map[string]int{"small": 10, "large": 1000} {
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "u", ResourceVersion: "7", Labels: map[string]string{workload.WorkerLabel: "w", "more": "x"},
			Annotations: map[string]string{ssa.StampAnnotation: "s", "other": "x"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{
					Manager: ssa.FieldOwner, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "apps/v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{},"f:paused":{}}}`),
				},
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
			},
		}}
		deployment.Spec.Replicas = new(int32(3))
		deployment.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
		container := corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: compile.MadeForVariable, Value: "exec, image shop:1"}}}
		for i := range variables {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", i)})
		}
		deployment.Spec.Template.Spec.Containers = []corev1.Container{container}
		if _, err := stripDeploymentForCache(deployment); err != nil {
			t.Fatal(err)
		}
		if kept := deployment.Spec.Template.Spec.Containers; IsPart(deployment) != (name == "large") || deployment.Size() > maxDeployment {
			t.Errorf("%s: %d bytes are kept, with the template %+v", name, deployment.Size(), kept)
		}
		if config := (compile.Config{MadeFor: "exec, image shop:1"}); !workload.HasRolledOut(deployment, &config) {
			t.Errorf("%s: the cache does not have which handler its pods are made for", name)
		}
		ours, err := ssa.OwnsReplicas(deployment)
		decided, errDecided := ssa.HasReplicas(deployment)
		if !ours || !decided || err != nil || errDecided != nil || workload.Replicas(deployment) != 3 || deployment.Annotations[ssa.StampAnnotation] != "s" ||
			deployment.Labels[workload.WorkerLabel] != "w" || deployment.ResourceVersion != "7" || ssa.LastManager(deployment) != "" {
			t.Errorf("%s: replicas are ours %v, decided %v (%v, %v), of %+v", name, ours, decided, err, errDecided, deployment.ObjectMeta)
		}
	}
}

// Whoever may write Deployments made them large by what is no template, and 160 of them took 220 MB of the operator's memory.
func TestCache_KeepsNoLongListsOfADeployment(t *testing.T) {
	long, many := strings.Repeat("x", 1000), 1000
	for name, change := range map[string]func(*appsv1.Deployment){
		"annotations": func(d *appsv1.Deployment) {
			for i := range 250 {
				d.Annotations[fmt.Sprint("redrive.dev/", i)] = long
			}
		},
		"owners": func(d *appsv1.Deployment) {
			for i := range many {
				d.OwnerReferences = append(d.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: fmt.Sprint(i, long), UID: "u"})
			}
		},
		"selector": func(d *appsv1.Deployment) {
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{
				{Key: "a", Operator: metav1.LabelSelectorOpNotIn, Values: slices.Repeat([]string{long[:60]}, many)},
			}
		},
		"managers": func(d *appsv1.Deployment) {
			for i := range many {
				d.ManagedFields = append(d.ManagedFields, metav1.ManagedFieldsEntry{
					Manager: strconv.Itoa(i), Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`),
				})
			}
		},
	} {
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Name: "async-default", Annotations: map[string]string{ssa.StampAnnotation: "s"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Transport", Name: "async", UID: "u", Controller: new(true)}},
		}}
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{workload.WorkerLabel: "default"}}
		change(deployment)
		whole := deployment.Size()
		if _, err := stripDeploymentForCache(deployment); err != nil {
			t.Fatal(err)
		}
		if size := deployment.Size(); whole <= maxDeployment || size > maxDeployment {
			t.Errorf("%s: %d of %d bytes are kept", name, size, whole)
		}
		if owner := metav1.GetControllerOf(deployment); owner == nil || owner.Name != "async" || deployment.Annotations[ssa.StampAnnotation] != "s" ||
			deployment.Spec.Selector.MatchLabels[workload.WorkerLabel] != "default" {
			t.Errorf("%s: what is read is not kept: %+v", name, deployment)
		}
	}
}
