// Package v1alpha1 holds the two kinds of Redrive: RetryPolicy says how failed messages are retried, Transport is an
// exchange with its work queues and the workers that consume them.
//
// The package holds types, validation rules, defaults and the names of conditions and reasons; it holds no behaviour.
// Version v1alpha1 only grows: no field changes its meaning, and none is removed.
//
// +kubebuilder:object:generate=true
// +groupName=redrive.dev
package v1alpha1
