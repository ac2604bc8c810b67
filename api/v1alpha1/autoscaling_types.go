package v1alpha1

// Autoscaling lets the number of pods follow the messages that are there for them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.min) || self.min <= self.max",message="min must not be more than max"
type Autoscaling struct {
	// min is the number of pods that stay when there is nothing to do. Left out, it is 1. 0 needs KEDA; without it one stays.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Min *int32 `json:"min,omitempty"`

	// max is the largest number of pods.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Max int32 `json:"max"`

	// messagesPerPod is how many messages, waiting or in hand, ask for one pod. Left out, it is 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MessagesPerPod *int32 `json:"messagesPerPod,omitempty"`
}
