// Package ssa helps a server-side apply: UpToDate tells whether it would change anything, and Repairs how often an object that others change is restored.
package ssa

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/compile"
)

const (
	// FieldOwner is the name under which the operator owns fields of other objects.
	FieldOwner = "redrive"
	// StampAnnotation holds the hash of what was applied.
	StampAnnotation = "redrive.dev/applied-hash"
	// ReplicasOwner is the name under which it holds the replicas of a Deployment until an autoscaler changes them.
	ReplicasOwner = "redrive-replicas"
)

// UpToDate says whether applying a stamped form would change nothing. current is nil for an object that does not exist.
//
// The API server itself keeps book of which fields we applied, in managedFields. Everything that we would apply must
// stand there under our name with the value of today: a field that somebody changed or removed no longer does. What we
// no longer apply is found by the stamp, a hash of the whole form. Fields of others, such as the replicas of an
// autoscaler, do not count, and neither do defaults, some of which the API server books on us.
func UpToDate(current client.Object, form *unstructured.Unstructured) (bool, error) {
	if current == nil {
		return false, nil
	}
	var owned any
	var err error
	switch object := current.(type) {
	case *unstructured.Unstructured:
		// Of kinds that need not be known here, nothing tells our fields from others': values are compared, and not who wrote them.
		return covers(object.Object, form.Object), nil
	case *appsv1.Deployment:
		owned, err = appsv1ac.ExtractDeployment(object, FieldOwner)
	case *corev1.ConfigMap:
		owned, err = corev1ac.ExtractConfigMap(object, FieldOwner)
	default:
		return false, fmt.Errorf("%T is not applied by this operator", current)
	}
	if err != nil {
		return false, fmt.Errorf("tell which fields of %s are ours: %w", current.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(owned)
	if err != nil {
		return false, fmt.Errorf("read the fields of %s: %w", current.GetName(), err)
	}
	return covers(content, form.Object), nil
}

// OwnsReplicas is true where we decide on the replicas of a Deployment.
func OwnsReplicas(live *appsv1.Deployment) (bool, error) {
	owned, err := appsv1ac.ExtractDeployment(live, FieldOwner)
	if err != nil {
		return false, fmt.Errorf("tell whose the replicas of %s are: %w", live.Name, err)
	}
	return owned.Spec != nil && owned.Spec.Replicas != nil, nil
}

// HasReplicas is true where somebody has decided on the replicas of a Deployment. Else they are what the API server puts there.
func HasReplicas(live *appsv1.Deployment) (bool, error) {
	for _, manager := range live.ManagedFields {
		if manager.FieldsV1 == nil {
			continue
		}
		var owned struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(manager.FieldsV1.GetRawBytes(), &owned); err != nil {
			return false, fmt.Errorf("tell who has decided on the replicas of %s: %w", live.Name, err)
		}
		if _, ok := owned.Spec["f:replicas"]; ok {
			return true, nil
		}
	}
	return false, nil
}

// Stamp writes the hash of a form into its annotations.
func Stamp(form *unstructured.Unstructured) error {
	data, err := form.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode %s: %w", form.GetName(), err)
	}
	annotations := form.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[StampAnnotation] = compile.Hash(data)
	form.SetAnnotations(annotations)
	return nil
}

// covers is true where a document holds everything that another says. Nulls and empty objects and lists say nothing.
func covers(document, wanted any) bool {
	switch wanted := wanted.(type) {
	case nil:
		return true
	case map[string]any:
		object, _ := document.(map[string]any)
		for key, value := range wanted {
			if !covers(object[key], value) {
				return false
			}
		}
		return true
	case []any:
		list, _ := document.([]any)
		if len(list) != len(wanted) {
			return false
		}
		for i := range wanted {
			if !covers(list[i], wanted[i]) {
				return false
			}
		}
		return true
	default:
		return document == wanted
	}
}
