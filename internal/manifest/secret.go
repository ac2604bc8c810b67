package manifest

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// decodeSecret reads a Secret with all its values in Data. No error holds a value.
func decodeSecret(o object) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	strict, err := kjson.UnmarshalStrict(o.data, secret)
	strict = append(o.strict, strict...)
	if err == nil && len(strict) > 0 {
		err = runtime.NewStrictDecodingError(strict)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Secret in version %q cannot be handled as a Secret: %v", o.gvk.Version, err))
	}
	if secret.Namespace == "" {
		secret.Namespace = DefaultNamespace
	}
	errs := apivalidation.ValidateObjectMeta(&secret.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if secret.Data == nil {
		secret.Data = make(map[string][]byte, len(secret.StringData))
	}
	for key, value := range secret.StringData {
		secret.Data[key] = []byte(value)
	}
	secret.StringData = nil
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		for _, message := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, message))
		}
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(o.gvk.GroupKind(), secret.Name, errs)
	}
	return secret, nil
}
