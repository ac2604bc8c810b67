package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "redrive.dev", Version: "v1alpha1"} //nolint:gochecknoglobals // a constant by convention

// AddToScheme registers both kinds with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &RetryPolicy{}, &RetryPolicyList{}, &Transport{}, &TransportList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
