package objectcache

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workload"
)

const (
	// maxDeployment is the size, in bytes of its protobuf, up to which the cache keeps a Deployment whole: that of a worker without a template
	// has a third of it. Decoded, and with who manages which field, one of a long template takes twenty times the template.
	maxDeployment = 8 << 10
	// partOnly is an annotation that stands, in the cache alone, on a Deployment of which a part is kept.
	partOnly = "redrive.dev/part-only"
)

// stripDeploymentForCache keeps of a large Deployment what all but UpToDate reads: of its template the handler that pods are made for, and of who manages its
// fields who has a say in its replicas. Whoever may write Deployments may also make its annotations, its owners and its selector long.
func stripDeploymentForCache(object any) (any, error) {
	deployment, ok := object.(*appsv1.Deployment)
	if !ok || deployment.Size() <= maxDeployment {
		return object, nil
	}
	annotations := map[string]string{partOnly: "true"}
	for _, key := range []string{ssa.StampAnnotation, rollout.UpgradeAnnotation, workload.AutoscaledAnnotation} {
		if value, has := deployment.Annotations[key]; has && len(value) <= maxMetadata {
			annotations[key] = value
		}
	}
	all := deployment.ObjectMeta
	managers, err := replicasManagers(all.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("read who manages Deployment %s/%s: %w", all.Namespace, all.Name, err)
	}
	deployment.ObjectMeta = metav1.ObjectMeta{
		Namespace: all.Namespace, Name: all.Name, UID: all.UID, ResourceVersion: all.ResourceVersion, Generation: all.Generation,
		CreationTimestamp: all.CreationTimestamp, DeletionTimestamp: all.DeletionTimestamp,
		Labels: workload.OwnLabels(all.Labels), Annotations: annotations, OwnerReferences: controllerOnly(&all), ManagedFields: managers,
	}
	deployment.Spec.Template = madeForOnly(&deployment.Spec.Template)
	if selector := deployment.Spec.Selector; selector != nil {
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: workload.OwnLabels(selector.MatchLabels)}
	}
	return deployment, nil
}

// madeForOnly is of a pod template what says which handler its pods are made for.
func madeForOnly(template *corev1.PodTemplateSpec) (only corev1.PodTemplateSpec) {
	for i := range template.Spec.Containers {
		for _, variable := range template.Spec.Containers[i].Env {
			if variable.Name == compile.MadeForVariable && len(variable.Value) <= maxMetadata {
				only.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: variable.Name, Value: variable.Value}}}}
				return only
			}
		}
	}
	return only
}

// controllerOnly is the reference to the controller among the owners of an object; none where it is longer than any of ours.
func controllerOnly(object metav1.Object) []metav1.OwnerReference {
	owner := metav1.GetControllerOf(object)
	if owner == nil || len(owner.APIVersion)+len(owner.Kind)+len(owner.Name)+len(owner.UID) > maxMetadata {
		return nil
	}
	return []metav1.OwnerReference{*owner}
}

// replicasManagers are the operator and one other of those who have a say in the replicas: more of them say no more.
func replicasManagers(all []metav1.ManagedFieldsEntry) (managers []metav1.ManagedFieldsEntry, err error) {
	other := false
	for _, entry := range all {
		if entry.FieldsV1, err = replicasOnly(entry.FieldsV1); err != nil {
			return nil, err
		}
		ours := entry.Manager == ssa.FieldOwner && entry.Subresource == ""
		if entry.FieldsV1 != nil && (ours || !other) {
			managers, other = append(managers, entry), other || !ours
		}
	}
	return managers, nil
}

// replicasOnly is of some fields the one that is read where nothing is compared; nil where it is not among them.
func replicasOnly(fields *metav1.FieldsV1) (*metav1.FieldsV1, error) {
	if fields == nil {
		return nil, nil //nolint:nilnil // it has none
	}
	var owned struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if err := json.Unmarshal(fields.GetRawBytes(), &owned); err != nil {
		return nil, err //nolint:wrapcheck // the caller tells of what
	}
	if _, is := owned.Spec["f:replicas"]; is {
		return metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`), nil
	}
	return nil, nil //nolint:nilnil // as above
}

// IsPart says whether the cache has a part of a Deployment.
func IsPart(deployment *appsv1.Deployment) bool { return deployment.Annotations[partOnly] != "" }
