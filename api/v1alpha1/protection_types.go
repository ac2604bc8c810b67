package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RateLimitType is the shape of a rate limit.
//
// +kubebuilder:validation:Enum=TokenBucket;LeakyBucket
type RateLimitType string

const (
	// RateLimitTokenBucket allows for bursts after a pause.
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

// RateLimit bounds how many messages a second reach the handler. A message over the limit waits its turn: no attempt is
// counted, and messages with other keys pass it by.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || !has(self.type) || self.type == 'TokenBucket'",message="burst belongs to type TokenBucket: a LeakyBucket has none"
type RateLimit struct {
	// name of the limit, in metrics and logs.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// type is TokenBucket (up to burst at once after a pause) or LeakyBucket (evenly spaced). Left out, it is TokenBucket.
	// +optional
	Type RateLimitType `json:"type,omitempty"`

	// perSecond is the number of messages a second: a whole number from 1, or a decimal in quotes such as "0.5".
	// +required
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:Pattern=`^(0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,5}(\.[0-9]{1,3})?)$`
	PerSecond intstr.IntOrString `json:"perSecond"`

	// burst of a TokenBucket is the number of messages that pass at once after a pause. Left out, it is perSecond, rounded
	// up.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Burst *int32 `json:"burst,omitempty"`

	// scope is Pod (each pod has the whole rate) or Workers (the rate is divided by the replicas, and follows them when
	// they are scaled). Left out, it is Workers.
	// +optional
	Scope RateLimitScope `json:"scope,omitempty"`

	// key is a CEL expression over message that gives a text, such as message.headers.partner: each text has a limit of
	// its own. A message on which it fails has the key "". Left out, all messages share the limit.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Key *string `json:"key,omitempty"`
}

// RetryBudget bounds the retries of a worker's pod, so that they never become the larger part of its calls. A retry over the
// budget waits for its turn in a fallback queue; no attempt is counted.
type RetryBudget struct {
	// percent of the first attempts within the window that may be made again.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Percent int32 `json:"percent"`

	// window over which attempts are counted, 1s to 1h. Left out, it is 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="window is between 1s and 1h"
	Window *Duration `json:"window,omitempty"`

	// minPerSecond is the number of retries a second that are always allowed. Left out, it is 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MinPerSecond *int32 `json:"minPerSecond,omitempty"`
}

// CircuitBreaker stops calling a handler that is failing, or too slow, until it works again. While it is open no attempt is
// counted. Timeouts, crashes, lost connections, exit codes, exceptions, and answers of 500 and above, 408 and 429 are failures. An
// answer below 500, and the advice to fail or to drop the message, show that the handler works.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slowPercent) || has(self.slowAfter)",message="slowPercent needs slowAfter"
// +kubebuilder:validation:XValidation:rule="!has(self.openFor) || !has(self.maxOpenFor) || duration(self.openFor) <= duration(self.maxOpenFor)",message="openFor is longer than maxOpenFor"
type CircuitBreaker struct {
	// failurePercent of the calls within the window that opens the breaker. Left out, it is 50.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailurePercent *int32 `json:"failurePercent,omitempty"`

	// slowAfter is the duration from which on a call is slow. Left out, none is.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('15m')",message="slowAfter is between 1ms and 15m"
	SlowAfter *Duration `json:"slowAfter,omitempty"`

	// slowPercent of the calls within the window that opens the breaker when they are slow. Left out, it is 80.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SlowPercent *int32 `json:"slowPercent,omitempty"`

	// minimumCalls within the window before the breaker judges. Left out, it is 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MinimumCalls *int32 `json:"minimumCalls,omitempty"`

	// window over which calls are counted, 1s to 1h. Left out, it is 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="window is between 1s and 1h"
	Window *Duration `json:"window,omitempty"`

	// openFor is how long the handler is left alone before the first probe, 1s to 1h. It doubles with each probe that fails.
	// Left out, it is 10s, or maxOpenFor where that is shorter.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="openFor is between 1s and 1h"
	OpenFor *Duration `json:"openFor,omitempty"`

	// maxOpenFor is the longest time between two probes, 1s to 1h. Left out, it is 1m, or openFor where that is longer.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="maxOpenFor is between 1s and 1h"
	MaxOpenFor *Duration `json:"maxOpenFor,omitempty"`

	// openOnRetryAfter opens the breaker at once when a failure says for how long to leave the partner alone (Retry-After), for
	// that long and maxOpenFor at most. Left out, such a failure is one among others.
	// +optional
	OpenOnRetryAfter *bool `json:"openOnRetryAfter,omitempty"`

	// key is a CEL expression over message that gives a text, such as message.headers.partner: each text has a breaker of
	// its own, and only its messages wait, in fallback queues, while it is open. A message on which it fails has the key
	// "". Left out, there is one breaker, and the pod consumes nothing while it is open.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Key *string `json:"key,omitempty"`
}
