package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RateLimitType is the shape of a rate limit.
//
// +kubebuilder:validation:Enum=TokenBucket;LeakyBucket
type RateLimitType string

const (
	// RateLimitTokenBucket allows bursts after a pause.
	RateLimitTokenBucket RateLimitType = "TokenBucket"
	// RateLimitLeakyBucket spaces calls evenly.
	RateLimitLeakyBucket RateLimitType = "LeakyBucket"
)

// RateLimitScope says whose calls a rate limit counts.
//
// +kubebuilder:validation:Enum=Pod;Workers
type RateLimitScope string

const (
	// RateLimitScopePod allows each pod the whole rate.
	RateLimitScopePod RateLimitScope = "Pod"
	// RateLimitScopeWorkers divides the rate by the replicas of the worker group.
	RateLimitScopeWorkers RateLimitScope = "Workers"
)

// RateLimit limits the messages per second that reach the handler. A message over the limit waits: no attempt is
// counted, and messages with other keys overtake it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || !has(self.type) || self.type == 'TokenBucket'",message="burst belongs to type TokenBucket: a LeakyBucket has none"
type RateLimit struct {
	// name of the limit, in metrics and logs.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// type is TokenBucket (up to burst at once after a pause) or LeakyBucket (evenly spaced). Default: TokenBucket.
	// +optional
	Type RateLimitType `json:"type,omitempty"`

	// perSecond is the number of messages per second: a whole number from 1, or a quoted decimal such as "0.5".
	// +required
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:Pattern=`^(0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,5}(\.[0-9]{1,3})?)$`
	PerSecond intstr.IntOrString `json:"perSecond"`

	// burst of a TokenBucket is the number of messages that may pass at once after a pause. Default: perSecond, rounded
	// up.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Burst *int32 `json:"burst,omitempty"`

	// scope is Pod (each pod has the whole rate) or Workers (the pods share the rate, also when they are scaled).
	// Default: Workers.
	// +optional
	Scope RateLimitScope `json:"scope,omitempty"`

	// key is a CEL expression over message that returns a string, such as message.headers.partner. Each value has a
	// limit of its own; if the expression fails, the value is "". Default: all messages share the limit.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Key *string `json:"key,omitempty"`
}

// RetryBudget limits the retries of a worker pod to a share of its first attempts. A retry over the budget waits in a
// lane; no attempt is counted.
type RetryBudget struct {
	// percent is the largest number of retries for each hundred first attempts within the window.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Percent int32 `json:"percent"`

	// window over which attempts are counted, 1s to 1h. Default: 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="window is between 1s and 1h"
	Window *Duration `json:"window,omitempty"`

	// minPerSecond is the number of retries per second that are always allowed. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MinPerSecond *int32 `json:"minPerSecond,omitempty"`
}

// CircuitBreaker stops calling a handler that fails or is too slow until it works again. While it is open no attempt is
// counted. Timeouts, crashes, lost connections, exit codes, exceptions, and answers of 500 and above, 408 and 429 are
// failures. Other answers below 500, and the advice to fail or to drop the message, show that the handler works.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slowPercent) || has(self.slowAfter)",message="slowPercent needs slowAfter"
// +kubebuilder:validation:XValidation:rule="!has(self.openFor) || !has(self.maxOpenFor) || duration(self.openFor) <= duration(self.maxOpenFor)",message="openFor is longer than maxOpenFor"
type CircuitBreaker struct {
	// failurePercent is the share of failed calls within the window that opens the breaker. Default: 50.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailurePercent *int32 `json:"failurePercent,omitempty"`

	// slowAfter is the duration from which a call counts as slow. Default: no call is slow.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('15m')",message="slowAfter is between 1ms and 15m"
	SlowAfter *Duration `json:"slowAfter,omitempty"`

	// slowPercent is the share of slow calls within the window that opens the breaker. Default: 80.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SlowPercent *int32 `json:"slowPercent,omitempty"`

	// minimumCalls is the number of calls within the window before the breaker may open. Default: 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MinimumCalls *int32 `json:"minimumCalls,omitempty"`

	// window over which calls are counted, 1s to 1h. Default: 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="window is between 1s and 1h"
	Window *Duration `json:"window,omitempty"`

	// openFor is the time before the first probe, 1s to 1h. It doubles with each failed probe. Default: 10s, or
	// maxOpenFor if that is shorter.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="openFor is between 1s and 1h"
	OpenFor *Duration `json:"openFor,omitempty"`

	// maxOpenFor is the longest time between two probes, 1s to 1h. Default: 1m, or openFor if that is longer.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="maxOpenFor is between 1s and 1h"
	MaxOpenFor *Duration `json:"maxOpenFor,omitempty"`

	// openOnRetryAfter opens the breaker at once when a failure asks for a pause (Retry-After), for that long and at
	// most maxOpenFor. Default: false; such a failure counts like any other.
	// +optional
	OpenOnRetryAfter *bool `json:"openOnRetryAfter,omitempty"`

	// key is a CEL expression over message that returns a string, such as message.headers.partner. Each value has a
	// breaker of its own, and only its messages wait, in lanes, while it is open; if the expression fails, the value is
	// "". Default: one breaker for all; the pod consumes nothing while it is open.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Key *string `json:"key,omitempty"`
}
