package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Action is what a strategy does with a failed message.
//
// +kubebuilder:validation:Enum=Retry;Fail;Drop
type Action string

const (
	// ActionRetry handles the message again after a delay.
	ActionRetry Action = "Retry"
	// ActionFail moves the message to the failure queue at once.
	ActionFail Action = "Fail"
	// ActionDrop acknowledges the message without further handling.
	ActionDrop Action = "Drop"
)

// BackoffType is the shape of the delays from one retry to the next.
//
// +kubebuilder:validation:Enum=Constant;Linear;Exponential;Explicit
type BackoffType string

const (
	// BackoffConstant waits the same delay before each retry.
	BackoffConstant BackoffType = "Constant"
	// BackoffLinear adds a step before each further retry.
	BackoffLinear BackoffType = "Linear"
	// BackoffExponential multiplies the delay before each further retry.
	BackoffExponential BackoffType = "Exponential"
	// BackoffExplicit takes the delays from a list; the last one repeats.
	BackoffExplicit BackoffType = "Explicit"
)

// JitterType says how a delay is spread, so that messages that failed together do not come back together.
//
// +kubebuilder:validation:Enum=None;Proportional;Full;Equal;Decorrelated
type JitterType string

const (
	// JitterNone does not change the delay.
	JitterNone JitterType = "None"
	// JitterProportional draws from the delay plus or minus a percentage of it.
	JitterProportional JitterType = "Proportional"
	// JitterFull draws between zero and the delay.
	JitterFull JitterType = "Full"
	// JitterEqual draws between half of the delay and the delay.
	JitterEqual JitterType = "Equal"
	// JitterDecorrelated draws between the first delay and three times the delay that was drawn last.
	JitterDecorrelated JitterType = "Decorrelated"
)

// RetryPriority is the AMQP priority of a message that comes back for a retry.
//
// +kubebuilder:validation:Enum=Higher;Same;Lower
type RetryPriority string

const (
	// RetryPriorityHigher lets a retry overtake the messages that wait in its queue.
	RetryPriorityHigher RetryPriority = "Higher"
	// RetryPrioritySame keeps the priority that the producer set.
	RetryPrioritySame RetryPriority = "Same"
	// RetryPriorityLower lets messages that wait with a priority of their own go first.
	RetryPriorityLower RetryPriority = "Lower"
)

// HandlerAdvice says whether the advice of the handler takes precedence over the policy.
//
// +kubebuilder:validation:Enum=Follow;Ignore
type HandlerAdvice string

const (
	// HandlerAdviceFollow follows the advice of the handler on a failed message; without advice the policy decides.
	HandlerAdviceFollow HandlerAdvice = "Follow"
	// HandlerAdviceIgnore ignores the advice of the handler.
	HandlerAdviceIgnore HandlerAdvice = "Ignore"
)

// Jitter spreads a delay at random.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'Proportional' ? has(self.percent) : !has(self.percent)",message="percent belongs to type Proportional, and to no other"
type Jitter struct {
	// type is None, Proportional (delay plus or minus percent), Full (zero to delay), Equal (half of delay to delay)
	// or Decorrelated (first delay to three times the last one drawn).
	// +required
	Type JitterType `json:"type"`

	// percent is the largest share of the delay that Proportional adds or subtracts.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
}

// Backoff is the sequence of delays between retries. Omitted fields have fixed defaults, which status.schedule shows;
// nothing is inherited from another backoff.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'Explicit' ? has(self.delays) : !has(self.delays)",message="delays belongs to type Explicit, which needs it, and to no other"
// +kubebuilder:validation:XValidation:rule="self.type != 'Explicit' || !has(self.delay)",message="type Explicit takes delays, not delay"
// +kubebuilder:validation:XValidation:rule="!has(self.step) || self.type == 'Linear'",message="step belongs to type Linear"
// +kubebuilder:validation:XValidation:rule="!has(self.multiplier) || self.type == 'Exponential'",message="multiplier belongs to type Exponential"
// +kubebuilder:validation:XValidation:rule="!has(self.maxDelay) || self.type in ['Linear', 'Exponential'] || (self.type == 'Constant' && has(self.jitter) && self.jitter.type == 'Decorrelated')",message="maxDelay belongs to types Linear and Exponential, and to Decorrelated jitter"
// +kubebuilder:validation:XValidation:rule="self.type != 'Explicit' || !has(self.jitter) || self.jitter.type != 'Decorrelated'",message="Decorrelated jitter does not go with type Explicit"
// +kubebuilder:validation:XValidation:rule="!has(self.delay) || !has(self.maxDelay) || duration(self.delay) <= duration(self.maxDelay)",message="delay is longer than maxDelay"
type Backoff struct {
	// type is Constant, Linear, Exponential or Explicit.
	// +required
	Type BackoffType `json:"type"`

	// delay before the first retry: 100ms to 720h. Default: 1s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('720h')",message="a delay is between 100ms and 720h"
	Delay *Duration `json:"delay,omitempty"`

	// step that Linear adds before each further retry. Default: delay.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="step is at most 720h"
	Step *Duration `json:"step,omitempty"`

	// multiplier of Exponential: a decimal number in quotes from "1" to "99.999". Default: "2".
	// +optional
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]?(\.[0-9]{1,3})?$`
	Multiplier *string `json:"multiplier,omitempty"`

	// maxDelay is the longest delay, jitter included. Default: 1m, or delay where that is longer.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('720h')",message="maxDelay is between 100ms and 720h"
	MaxDelay *Duration `json:"maxDelay,omitempty"`

	// delays of Explicit, one for each retry; the last one repeats.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('720h')",message="a delay is between 100ms and 720h"
	Delays []Duration `json:"delays,omitempty"`

	// jitter spreads each delay at random. Default: none.
	// +optional
	Jitter *Jitter `json:"jitter,omitempty"`
}

// Strategy decides on the failures that its expression matches.
//
// +kubebuilder:validation:XValidation:rule="!has(self.action) || self.action == 'Retry' || !(has(self.unlimited) || has(self.delayFrom) || has(self.maxDelay) || has(self.maxRetries) || has(self.backoff))",message="unlimited, delayFrom, maxDelay, maxRetries and backoff belong to action Retry"
// +kubebuilder:validation:XValidation:rule="!has(self.maxDelay) || has(self.delayFrom)",message="maxDelay bounds delayFrom, which is missing"
// +kubebuilder:validation:XValidation:rule="!(has(self.unlimited) && self.unlimited && has(self.maxRetries))",message="unlimited and maxRetries exclude each other"
type Strategy struct {
	// name of the strategy, as headers, metrics and logs show it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// priority orders the strategies: Redrive evaluates the highest first, and equal ones in the order of the list.
	// Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	Priority *int32 `json:"priority,omitempty"`

	// when is a CEL expression over message, error, attempt, retries, age and now that returns a bool. An expression
	// that fails at run time does not match.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	When string `json:"when"`

	// action is Retry, Fail (move to the failure queue at once) or Drop (acknowledge without further handling).
	// Default: Retry.
	// +optional
	Action Action `json:"action,omitempty"`

	// unlimited retries do not count against maxRetries; maxAge still ends them.
	// +optional
	Unlimited *bool `json:"unlimited,omitempty"`

	// delayFrom is a CEL expression that returns the delay as a duration, such as error.retryAfter. If it returns none,
	// or fails, the backoff decides.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	DelayFrom *string `json:"delayFrom,omitempty"`

	// maxDelay is the upper bound of delayFrom. Default: 1h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('720h')",message="maxDelay is between 100ms and 720h"
	MaxDelay *Duration `json:"maxDelay,omitempty"`

	// maxRetries replaces that of the policy and counts consecutive decisions of this strategy.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	MaxRetries *int32 `json:"maxRetries,omitempty"`

	// backoff replaces that of the policy completely and counts consecutive decisions of this strategy.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`
}

// StrategyPreset is a set of strategies that comes with Redrive.
//
// +kubebuilder:validation:Enum=HTTP
type StrategyPreset string

// PresetHTTP fails a message at once when the HTTP answer says that no retry will help.
const PresetHTTP StrategyPreset = "HTTP"

// StrategyInclude names a source of strategies: another policy, or a preset.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) ? !has(self.preset) : has(self.preset)",message="set exactly one of name and preset"
type StrategyInclude struct {
	// name of a RetryPolicy of this namespace.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// preset is HTTP: redirects, addresses that cannot be right, certificates of an unknown authority, 501, and all of 4xx but
	// 404, 408, 409, 425 and 429 fail at once.
	// +optional
	Preset StrategyPreset `json:"preset,omitempty"`
}

// RetryPolicySpec describes how failures are retried.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.unlimited) && self.unlimited) || !has(self.maxRetries) || self.maxRetries == 3",message="unlimited and maxRetries exclude each other: leave one of them out"
type RetryPolicySpec struct {
	// maxRetries is the number of retries after the first attempt; 0 disables retries.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	MaxRetries *int32 `json:"maxRetries,omitempty"`

	// unlimited retries every failure on which no strategy decides otherwise, until maxAge ends the retries. It
	// excludes maxRetries. Default: false.
	// +optional
	Unlimited *bool `json:"unlimited,omitempty"`

	// maxAge ends the retries of a message this long after its first failure, unlimited ones too.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="maxAge is between 1s and 8760h"
	MaxAge *Duration `json:"maxAge,omitempty"`

	// immediate is the number of further attempts in the worker, without delay, before a message waits for its first
	// retry. They apply to failures on which no strategy decides, count as attempts and not as retries, and have the
	// timeout of the worker each. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Immediate *int32 `json:"immediate,omitempty"`

	// backoff is the sequence of delays. Default: Exponential from 1s, doubled each time, at most 1m, no jitter.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`

	// retryPriority is Higher (a retry overtakes the messages that wait in its queue), Same, or Lower (messages with a
	// priority go first). It affects quorum queues of RabbitMQ 4.0 and later. The handler and the failure queue see the
	// priority that the producer set.
	// +optional
	// +kubebuilder:default=Same
	RetryPriority RetryPriority `json:"retryPriority,omitempty"`

	// handlerAdvice is Follow (the advice of the handler on a failed message takes precedence over the strategies:
	// fail, drop, or a retry that does not count against maxRetries) or Ignore.
	// +optional
	// +kubebuilder:default=Follow
	HandlerAdvice HandlerAdvice `json:"handlerAdvice,omitempty"`

	// includeStrategies adds the strategies of other policies of this namespace, and of presets, after this policy's
	// strategies of equal priority. Includes are not followed further.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x == y))",message="includeStrategies has the same policy or preset twice"
	IncludeStrategies []StrategyInclude `json:"includeStrategies,omitempty"`

	// strategies decide on certain failures. The first match decides; without a match the fields above apply.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	Strategies []Strategy `json:"strategies,omitempty"`
}

// RetryPolicyStatus is the observed state of a RetryPolicy.
type RetryPolicyStatus struct {
	// observedGeneration is the generation that this status describes; -1 before the first reconcile.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready always; Reconciling and Stalled while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// schedule shows the delays of the policy's own backoff in words, such as "1s, 2s, 4s, then failed".
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Schedule string `json:"schedule,omitempty"`

	// usedBy is the number of Transports that refer to this policy.
	// +optional
	UsedBy *int32 `json:"usedBy,omitempty"`
}

// RetryPolicy describes how failures are retried: backoff, limits and conditional strategies. Many Transports may share
// one.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rpol,categories=redrive
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.status.schedule`
// +kubebuilder:printcolumn:name="Used by",type=integer,JSONPath=`.status.usedBy`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.includeStrategies) || self.spec.includeStrategies.all(p, !has(p.name) || p.name != self.metadata.name)",message="a policy has its own strategies already: includeStrategies names other policies"
type RetryPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes how failures are retried.
	// +optional
	// +kubebuilder:default={}
	Spec RetryPolicySpec `json:"spec,omitempty"`
	// status is the observed state.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status RetryPolicyStatus `json:"status,omitempty"`
}

// RetryPolicyList is a list of RetryPolicies.
//
// +kubebuilder:object:root=true
type RetryPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RetryPolicy `json:"items"`
}
