package controllers

import (
	"encoding/json"
	"errors"
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
	// fieldOwner is the name under which the operator owns fields of other objects.
	fieldOwner = "redrive"
	// stampAnnotation holds the hash of what was applied.
	stampAnnotation = "redrive.dev/applied-hash"
	// replicasOwner is the name under which it holds the replicas of a Deployment until an autoscaler changes them.
	replicasOwner = "redrive-replicas"
)

// refusal is an error of what the user asked for, and not of carrying it out.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func isRefusal(err error) bool {
	var known *refusal
	return errors.As(err, &known)
}

// upToDate says whether applying a stamped form would change nothing. current is nil for an object that does not exist.
//
// The API server itself keeps book of which fields we applied, in managedFields. Everything that we would apply must
// stand there under our name with the value of today: a field that somebody changed or removed no longer does. What we
// no longer apply is found by the stamp, a hash of the whole form. Fields of others, such as the replicas of an
// autoscaler, do not count, and neither do defaults, some of which the API server books on us.
func upToDate(current client.Object, form *unstructured.Unstructured) (bool, error) {
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
		owned, err = appsv1ac.ExtractDeployment(object, fieldOwner)
	case *corev1.ConfigMap:
		owned, err = corev1ac.ExtractConfigMap(object, fieldOwner)
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

// ownsReplicas is true where we decide on the replicas of a Deployment.
func ownsReplicas(live *appsv1.Deployment) (bool, error) {
	owned, err := appsv1ac.ExtractDeployment(live, fieldOwner)
	if err != nil {
		return false, fmt.Errorf("tell whose the replicas of %s are: %w", live.Name, err)
	}
	return owned.Spec != nil && owned.Spec.Replicas != nil, nil
}

// hasReplicas is true where somebody has decided on the replicas of a Deployment. Else they are what the API server puts there.
func hasReplicas(live *appsv1.Deployment) (bool, error) {
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

func deploymentOf(object *unstructured.Unstructured) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", object.GetName(), err)
	}
	return deployment, nil
}

// stamp writes the hash of a form into its annotations.
func stamp(form *unstructured.Unstructured) error {
	data, err := form.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode %s: %w", form.GetName(), err)
	}
	annotations := form.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[stampAnnotation] = compile.Hash(data)
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

// asObject keeps a nil pointer nil.
func asObject[T any, P interface {
	*T
	client.Object
}](object P) client.Object {
	if object == nil {
		return nil
	}
	return object
}
