package v1alpha1

// Autoscaling scales the pods of a worker group with its backlog.
//
// +kubebuilder:validation:XValidation:rule="!has(self.min) || self.min <= self.max",message="min must not be more than max"
type Autoscaling struct {
	// min is the number of pods without a backlog. Default: 1. 0 needs KEDA; without KEDA one pod keeps running.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Min *int32 `json:"min,omitempty"`

	// max is the largest number of pods.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Max int32 `json:"max"`

	// messagesPerPod is the number of messages, ready or unacknowledged, for each pod. Default: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MessagesPerPod *int32 `json:"messagesPerPod,omitempty"`
}
