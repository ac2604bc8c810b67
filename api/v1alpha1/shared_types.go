package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Duration is a span of time in whole milliseconds, such as "500ms", "5s", "1h30m".
//
// The schema is narrower than Go's duration so that whatever the API server accepts, every client decodes: an object
// that does not decode would stop the informers of all namespaces. Parts of a millisecond are left out so that what Go
// writes for a duration, at most 8760h of it, is always accepted too.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(ms|(\.[0-9]{1,3})?[smh])){1,3}$`
type Duration struct {
	metav1.Duration `json:",inline"`
}

// NewDuration wraps a span of time.
func NewDuration(d time.Duration) *Duration {
	return &Duration{Duration: metav1.Duration{Duration: d}}
}

// PolicyReference names a RetryPolicy of the same namespace.
type PolicyReference struct {
	// name of the RetryPolicy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}
