package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Finalizer keeps a Transport until its objects on the broker are gone or released.
const Finalizer = "redrive.dev/transport"

// ExchangeType is the routing of an exchange.
//
// +kubebuilder:validation:Enum=Direct;Topic;Fanout
type ExchangeType string

const (
	// ExchangeDirect routes by equal keys.
	ExchangeDirect ExchangeType = "Direct"
	// ExchangeTopic routes by patterns of words.
	ExchangeTopic ExchangeType = "Topic"
	// ExchangeFanout routes to every queue.
	ExchangeFanout ExchangeType = "Fanout"
)

// QueueType is the kind of a work queue.
//
// +kubebuilder:validation:Enum=Quorum;Classic
type QueueType string

const (
	// QueueQuorum is replicated, and dead-letters at least once.
	QueueQuorum QueueType = "Quorum"
	// QueueClassic is not replicated, and dead-letters at most once.
	QueueClassic QueueType = "Classic"
)

// DeletionPolicy says what happens to the objects on the broker when a Transport is deleted.
//
// +kubebuilder:validation:Enum=DeleteIfEmpty;Retain;Delete
type DeletionPolicy string

const (
	// DeletionDeleteIfEmpty deletes queues without messages, and waits until the others are empty.
	DeletionDeleteIfEmpty DeletionPolicy = "DeleteIfEmpty"
	// DeletionRetain leaves everything on the broker.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes the queues with the messages in them.
	DeletionDelete DeletionPolicy = "Delete"
)

// LaneDensity bounds the number of fallback queues of a Transport.
//
// +kubebuilder:validation:Enum=Standard;Fine
type LaneDensity string

const (
	// LanesStandard allows 24 lanes.
	LanesStandard LaneDensity = "Standard"
	// LanesFine allows 64 lanes, for many policies with long schedules or much jitter.
	LanesFine LaneDensity = "Fine"
)

// LocalReference names an object of the same namespace.
type LocalReference struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// Broker says where RabbitMQ is: by a Secret, or by a cluster of the RabbitMQ Cluster Operator.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) ? !has(self.clusterRef) : has(self.clusterRef)",message="a broker needs exactly one of: secretRef, clusterRef"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.vhost) || (has(self.vhost) && self.vhost == oldSelf.vhost)",message="the vhost of a Transport cannot be changed or taken out: make a second Transport on the other vhost, move the producers, and delete this one"
type Broker struct {
	// secretRef names a Secret with the keys of Service Binding: host, port, username and password, or uri. The keys
	// vhost, management_uri, ca.crt, tls.crt and tls.key are optional.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`

	// clusterRef names a RabbitmqCluster (rabbitmq.com/v1beta1) of the same namespace. Redrive uses its default user
	// and its TLS settings.
	// +optional
	ClusterRef *LocalReference `json:"clusterRef,omitempty"`

	// vhost of all objects. Default: that of the Secret, or "/".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	VHost *string `json:"vhost,omitempty"`

	// consumerTimeout is how long RabbitMQ waits for the acknowledgement of a delivery, as its own consumer_timeout
	// says: 1m to 720h. A worker holds a message for at most half of it. Default: 30m, as in RabbitMQ.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="consumerTimeout is between 1m and 720h"
	ConsumerTimeout *Duration `json:"consumerTimeout,omitempty"`

	// scopedUser gives the workers a RabbitMQ user of their own, which may only consume their queues and publish
	// retries and failures. The operator creates the user, rotates its password and deletes it with the Transport. The
	// operator's login then needs the tag administrator, and the operator needs the right to write Secrets. Default:
	// false; workers use the login of the Secret.
	// +optional
	ScopedUser *bool `json:"scopedUser,omitempty"`
}

// Exchange is where producers publish. Redrive declares it durable and without arguments, so that the plain
// declarations of producers keep working.
//
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name && self.type == oldSelf.type",message="name and type of the exchange cannot be changed: make a second Transport with the other exchange, move the producers, and delete this one"
type Exchange struct {
	// name of the exchange.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=220
	Name string `json:"name"`

	// type is Direct, Topic or Fanout.
	// +required
	Type ExchangeType `json:"type"`

	// unroutedTo names the queue of this Transport that gets the messages no binding matches. Default: none; RabbitMQ
	// then returns such messages to a producer that publishes with the mandatory flag, and drops the others.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=244
	UnroutedTo *string `json:"unroutedTo,omitempty"`
}

// PolicyRule chooses a RetryPolicy by message.
type PolicyRule struct {
	// when is a CEL expression over message that returns a bool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	When string `json:"when"`

	// retryPolicyRef names the policy for the messages that match.
	// +required
	RetryPolicyRef PolicyReference `json:"retryPolicyRef"`
}

// Binding binds a queue to an exchange that another team owns. Redrive never creates, changes or deletes that exchange.
type Binding struct {
	// exchange to bind to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Exchange string `json:"exchange"`

	// keys to bind with; one that is there twice binds once. RabbitMQ cannot list a binding of Redrive's with a ~ beside
	// other characters.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^(~|[^~]*)$`
	Keys []string `json:"keys"`
}

// OrderingType says in which order the messages of a queue are handled.
//
// +kubebuilder:validation:Enum=None;Strict
type OrderingType string

const (
	// OrderingNone handles messages concurrently; a retry comes after the messages that did not fail.
	OrderingNone OrderingType = "None"
	// OrderingStrict handles one message after the other, and retries a failed message until it succeeds or its retries
	// are used up.
	OrderingStrict OrderingType = "Strict"
)

// OnFailure says what happens to a strictly ordered queue when a message is given up.
//
// +kubebuilder:validation:Enum=Continue;Block
type OnFailure string

const (
	// OnFailureContinue moves the message to the failure queue and continues with the next one.
	OnFailureContinue OnFailure = "Continue"
	// OnFailureBlock keeps the message at the head of the queue, which stops until an operator acts.
	OnFailureBlock OnFailure = "Block"
)

// Ordering is the order in which the messages of a queue are handled.
//
// +kubebuilder:validation:XValidation:rule="!has(self.onFailure) || self.type == 'Strict'",message="onFailure belongs to type Strict"
type Ordering struct {
	// type is None (concurrent) or Strict (one after the other over all pods; a failed message is retried in its place
	// while those behind it wait).
	// +required
	Type OrderingType `json:"type"`

	// onFailure says what happens when the retries of a message are used up: Continue moves it to the failure queue;
	// Block keeps it at the head and stops the queue until a changed policy gives it further retries or onFailure
	// changes. Default: Continue.
	// +optional
	OnFailure OnFailure `json:"onFailure,omitempty"`
}

// Limits bounds a work queue. RabbitMQ moves the messages that it removes to the failure queue.
//
// +kubebuilder:validation:MinProperties=1
type Limits struct {
	// messageTTL is the longest time that a message waits in the queue, 1s to 720h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('720h')",message="messageTTL is between 1s and 720h"
	MessageTTL *Duration `json:"messageTTL,omitempty"`

	// dropOldestAfter is the largest number of messages in the queue; above it the oldest leave. RabbitMQ dead-letters
	// them at most once: a broker that stops at that moment loses them.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	DropOldestAfter *int64 `json:"dropOldestAfter,omitempty"`
}

// Queue is a work queue.
//
// +kubebuilder:validation:XValidation:rule="!has(self.adopt) || !self.adopt || (!has(self.type) && !has(self.singleActiveConsumer))",message="adopt takes a queue as it is: leave out type and singleActiveConsumer"
// +kubebuilder:validation:XValidation:rule="!has(self.ordering) || self.ordering.type != 'Strict' || !has(self.type) || self.type == 'Quorum'",message="Strict ordering needs type Quorum: a classic queue does not count deliveries"
// +kubebuilder:validation:XValidation:rule="!has(self.ordering) || self.ordering.type != 'Strict' || !has(self.singleActiveConsumer)",message="Strict ordering has a single active consumer of its own: leave out singleActiveConsumer"
// +kubebuilder:validation:XValidation:rule="!has(self.ordering) || self.ordering.type != 'Strict' || !has(self.adopt) || !self.adopt",message="Strict ordering needs a queue of Redrive's own making: leave out adopt"
// +kubebuilder:validation:XValidation:rule="!has(self.previousNames) || !(self.name in self.previousNames)",message="previousNames holds the names that the queue had before, and not the one that it has"
type Queue struct {
	// name of the queue on the broker.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=244
	// +kubebuilder:validation:Pattern=`^(~|[^~]*)$`
	Name string `json:"name"`

	// previousNames lists earlier names of this queue in this Transport. Redrive drains and deletes queues with these
	// names that it created, and routes their retries here. Keep a name until the longest retry delay has passed, or
	// for good.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=244
	// +kubebuilder:validation:items:Pattern=`^(~|[^~]*)$`
	PreviousNames []string `json:"previousNames,omitempty"`

	// bindingKeys bind the queue to the Transport's own exchange. Direct and Topic take any number; Fanout takes none and
	// binds every queue. A key that is there twice binds once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^(~|[^~]*)$`
	BindingKeys []string `json:"bindingKeys,omitempty"`

	// bindings to exchanges of other teams.
	// +optional
	// +listType=map
	// +listMapKey=exchange
	// +kubebuilder:validation:MaxItems=16
	Bindings []Binding `json:"bindings,omitempty"`

	// retryPolicyRef overrides the RetryPolicy of the Transport for this queue.
	// +optional
	RetryPolicyRef *PolicyReference `json:"retryPolicyRef,omitempty"`

	// type is Quorum or Classic. Default: Quorum. Classic queues dead-letter at most once.
	// +optional
	Type *QueueType `json:"type,omitempty"`

	// singleActiveConsumer delivers to one consumer at a time; the others stand by.
	// +optional
	SingleActiveConsumer *bool `json:"singleActiveConsumer,omitempty"`

	// adopt uses an existing queue unchanged, whatever its type and arguments, with its messages and its other
	// consumers. Redrive never creates or deletes it, even if this Transport created it earlier. Default: false; an
	// existing queue must then have the arguments that Redrive would give it.
	// +optional
	Adopt *bool `json:"adopt,omitempty"`

	// ordering is the order in which messages are handled. Default: no order.
	// +optional
	Ordering *Ordering `json:"ordering,omitempty"`

	// limits of the queue. Default: none.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// weight is the share of the queue when a worker group has messages of several queues: a queue of weight 3 gets
	// three times the handler calls of a queue of weight 1. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight *int32 `json:"weight,omitempty"`
}

// Poison says when Redrive gives up a message that brings down its worker.
type Poison struct {
	// maxCrashes is the number of crashes of the quarantine worker after which a message goes to the failure queue with
	// the reason PoisonCrash. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxCrashes *int32 `json:"maxCrashes,omitempty"`
}

// Failure is the queue for messages that are not retried any more.
type Failure struct {
	// queue is the name of the failure queue. Default: the prefix and ".failed".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Queue *string `json:"queue,omitempty"`

	// dropOldestAfter is the largest number of messages in the failure queue; above it RabbitMQ drops the oldest for
	// good. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	DropOldestAfter *int64 `json:"dropOldestAfter,omitempty"`

	// redact are the values that the commands of redrive failed mask: "body." or "headers." and a path, where * stands for any
	// field of an object or any place of a list, such as body.customer.email. Headers whose names tell of secrets, such as
	// authorization, are always masked.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(body(\.[^.]+)+|headers\..+)$`
	Redact []string `json:"redact,omitempty"`
}

// Worker is a group of equal pods that consume queues and call a handler.
//
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || !has(self.replicas)",message="replicas and autoscaling exclude each other: leave one of them out"
type Worker struct {
	// name of the group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// replicas is the number of pods. Leave it out when an autoscaler owns it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// autoscaling scales the pods with the messages in the queues of the group, by KEDA where the cluster has it, else
	// by a HorizontalPodAutoscaler. Default: none; replicas is the number of pods.
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// queues that the group consumes. Default: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=244
	Queues []string `json:"queues,omitempty"`

	// concurrency is the number of messages that one pod handles at a time. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Concurrency *int32 `json:"concurrency,omitempty"`

	// timeout of one attempt, 100ms to 15m. Default: 30s. A pod that is stopped gets the timeout and 15 s more to
	// finish.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('15m')",message="timeout is between 100ms and 15m"
	Timeout *Duration `json:"timeout,omitempty"`

	// handler is called with each message.
	// +required
	Handler Handler `json:"handler"`

	// rateLimits limit the messages per second that reach the handler; a message must pass each of them. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	RateLimits []RateLimit `json:"rateLimits,omitempty"`

	// retryBudget limits the retries of each pod. Default: no limit.
	// +optional
	RetryBudget *RetryBudget `json:"retryBudget,omitempty"`

	// circuitBreaker stops calling a handler that is failing. Default: none.
	// +optional
	CircuitBreaker *CircuitBreaker `json:"circuitBreaker,omitempty"`

	// template is a strategic merge patch on the pod template; the worker's container is named "worker", and that of an http
	// handler's image "handler".
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// TransportSpec describes an exchange, its work queues and the workers that consume them.
//
// +kubebuilder:validation:XValidation:rule="has(self.exchange) ? has(oldSelf.exchange) : !has(oldSelf.exchange)",message="an exchange cannot be added to or removed from a Transport: make a second Transport"
// +kubebuilder:validation:XValidation:rule="has(self.prefix) ? has(oldSelf.prefix) && self.prefix == oldSelf.prefix : !has(oldSelf.prefix)",message="prefix cannot be changed: make a second Transport with the other prefix, move the producers, and delete this one"
type TransportSpec struct {
	// broker says where RabbitMQ is.
	// +required
	Broker Broker `json:"broker"`

	// exchange that producers publish to. Default: none; the Transport then has no exchange of its own.
	// +optional
	Exchange *Exchange `json:"exchange,omitempty"`

	// prefix of the names of private objects. Default: the name of the exchange, or that of the Transport.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=220
	Prefix *string `json:"prefix,omitempty"`

	// retryPolicyRef names the RetryPolicy of all queues without one of their own. Default: a RetryPolicy with default
	// values.
	// +optional
	RetryPolicyRef *PolicyReference `json:"retryPolicyRef,omitempty"`

	// retryPolicies chooses a RetryPolicy by message. The first match wins; without a match the policy of the queue
	// applies, or that of the Transport.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	RetryPolicies []PolicyRule `json:"retryPolicies,omitempty"`

	// queues are the work queues.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Queues []Queue `json:"queues"`

	// failure is the queue for messages that are not retried any more.
	// +optional
	Failure *Failure `json:"failure,omitempty"`

	// poison says when Redrive gives up a message that brings down its worker.
	// +optional
	Poison *Poison `json:"poison,omitempty"`

	// lanes bounds the number of fallback queues: Standard allows 24, Fine 64.
	// +optional
	// +kubebuilder:default=Standard
	Lanes LaneDensity `json:"lanes,omitempty"`

	// deletionPolicy says what happens to the objects on the broker when the Transport is deleted: DeleteIfEmpty,
	// Retain or Delete.
	// +optional
	// +kubebuilder:default=DeleteIfEmpty
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// workers consume the queues. Default: none; the messages then wait.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Workers []Worker `json:"workers,omitempty"`
}

// Transport describes an exchange, its work queues, and the workers that consume them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=transp,categories=redrive
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Queues",type=integer,JSONPath=`.status.queues`
// +kubebuilder:printcolumn:name="Workers",type=string,JSONPath=`.status.workers`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].message`
type Transport struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TransportSpec `json:"spec"`
	// status is the observed state.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status TransportStatus `json:"status,omitempty"`
}

// TransportList is a list of Transports.
//
// +kubebuilder:object:root=true
type TransportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Transport `json:"items"`
}
