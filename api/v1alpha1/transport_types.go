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

// DeletionPolicy says what becomes of the broker's objects when a Transport is deleted.
//
// +kubebuilder:validation:Enum=DeleteIfEmpty;Retain;Delete
type DeletionPolicy string

const (
	// DeletionDeleteIfEmpty deletes what holds no messages, and waits for the rest to be emptied.
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
	// secretRef names a Secret with Service Binding keys: host, port, username and password, or uri; optional are vhost,
	// management_uri, ca.crt, tls.crt and tls.key.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`

	// clusterRef names a RabbitmqCluster (rabbitmq.com/v1beta1) of the same namespace: its default user and its TLS settings
	// are used.
	// +optional
	ClusterRef *LocalReference `json:"clusterRef,omitempty"`

	// vhost of all objects. Left out, it is the Secret's, else "/".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	VHost *string `json:"vhost,omitempty"`

	// consumerTimeout is how long RabbitMQ waits for the acknowledgement of a delivery, as its own consumer_timeout says: 1m
	// to 720h. A message may be held by a worker for half of it. Left out, it is 30m, RabbitMQ's own default.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="consumerTimeout is between 1m and 720h"
	ConsumerTimeout *Duration `json:"consumerTimeout,omitempty"`

	// scopedUser gives the workers a RabbitMQ user of their own, which may consume their queues, publish retries and failures,
	// and do nothing else. The operator makes it, changes its password now and then, and deletes it in the end. For that the
	// operator's login needs the tag administrator, and the operator the right to write Secrets. Left out, the workers
	// log in as the Secret says.
	// +optional
	ScopedUser *bool `json:"scopedUser,omitempty"`
}

// Exchange is where producers publish. It is declared durable and without arguments, so that a producer's own plain
// declaration of it goes on working.
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

	// unroutedTo names the queue of this Transport that gets the messages no binding matches. Left out, such messages are
	// RabbitMQ's own affair: returned to a producer that asks for it (mandatory), else gone.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=244
	UnroutedTo *string `json:"unroutedTo,omitempty"`
}

// PolicyRule chooses a RetryPolicy by message.
type PolicyRule struct {
	// when is a CEL expression over message that gives a bool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	When string `json:"when"`

	// retryPolicyRef names the policy for the messages that match.
	// +required
	RetryPolicyRef PolicyReference `json:"retryPolicyRef"`
}

// Binding binds a queue to an exchange that another team owns: it is bound to, and never made, changed or deleted.
type Binding struct {
	// exchange to bind to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Exchange string `json:"exchange"`

	// keys to bind with. RabbitMQ cannot list a binding of Redrive's with a ~ beside other characters.
	// +required
	// +listType=set
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
	// OrderingNone handles messages side by side; a retry comes after the messages that did not fail.
	OrderingNone OrderingType = "None"
	// OrderingStrict handles one message after the other, a failed one until it succeeds or is given up.
	OrderingStrict OrderingType = "Strict"
)

// OnFailure says what happens to a strictly ordered queue when a message is given up.
//
// +kubebuilder:validation:Enum=Continue;Block
type OnFailure string

const (
	// OnFailureContinue moves the message to the failure queue and goes on with the next one.
	OnFailureContinue OnFailure = "Continue"
	// OnFailureBlock keeps the message at the head of the queue, which stops until somebody acts.
	OnFailureBlock OnFailure = "Block"
)

// Ordering is the order in which the messages of a queue are handled.
//
// +kubebuilder:validation:XValidation:rule="!has(self.onFailure) || self.type == 'Strict'",message="onFailure belongs to type Strict"
type Ordering struct {
	// type is None (side by side) or Strict (one after the other, over all pods; a message that fails is tried again in its
	// place, and those behind it wait).
	// +required
	Type OrderingType `json:"type"`

	// onFailure is Continue (a message that is given up goes to the failure queue, and the next one comes) or Block (it
	// stays at the head, and the queue stops until a changed policy gives it further retries or onFailure is changed).
	// Left out, it is Continue.
	// +optional
	OnFailure OnFailure `json:"onFailure,omitempty"`
}

// Limits bounds a work queue. What it removes goes to the failure queue.
//
// +kubebuilder:validation:MinProperties=1
type Limits struct {
	// messageTTL is how long a message waits to be handled at most, 1s to 720h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('720h')",message="messageTTL is between 1s and 720h"
	MessageTTL *Duration `json:"messageTTL,omitempty"`

	// dropOldestAfter is the number of messages over which the oldest leave the queue. They are dead-lettered at most
	// once: a broker that stops in that moment loses them.
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

	// previousNames are names that the queue had before, in this Transport. A queue of such a name that Redrive made is emptied by the
	// workers and deleted, and retries that left it come back to this one, for as long as the name stands here: leave it until
	// the longest delay of the retry policies has passed since the change, or for good.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=244
	// +kubebuilder:validation:items:Pattern=`^(~|[^~]*)$`
	PreviousNames []string `json:"previousNames,omitempty"`

	// bindingKeys bind the queue to the Transport's own exchange. Direct and Topic take any number; Fanout takes none and
	// binds every queue.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^(~|[^~]*)$`
	BindingKeys []string `json:"bindingKeys,omitempty"`

	// bindings to exchanges of others.
	// +optional
	// +listType=map
	// +listMapKey=exchange
	// +kubebuilder:validation:MaxItems=16
	Bindings []Binding `json:"bindings,omitempty"`

	// retryPolicyRef overrides the Transport's for this queue.
	// +optional
	RetryPolicyRef *PolicyReference `json:"retryPolicyRef,omitempty"`

	// type is Quorum or Classic. Left out, it is Quorum. Classic queues dead-letter at most once.
	// +optional
	Type *QueueType `json:"type,omitempty"`

	// singleActiveConsumer lets one consumer at a time receive, the others stand by.
	// +optional
	SingleActiveConsumer *bool `json:"singleActiveConsumer,omitempty"`

	// adopt takes a queue that exists as it is, whatever its type and arguments, with the messages in it and the other
	// consumers on it. It is never made and never deleted, also where this Transport made it once. Left out, an existing
	// queue must have the arguments that Redrive would give it.
	// +optional
	Adopt *bool `json:"adopt,omitempty"`

	// ordering is the order in which the messages are handled. Left out, there is none.
	// +optional
	Ordering *Ordering `json:"ordering,omitempty"`

	// limits of the queue. Left out, there are none.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// weight is the queue's share of a worker group that has messages of several queues to handle: a queue of weight 3 gets
	// three times the places at the handler that one of weight 1 gets. Left out, it is 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight *int32 `json:"weight,omitempty"`
}

// Poison says when a message is taken for one that kills its worker.
type Poison struct {
	// maxCrashes is the number of workers that a message may bring down, alone with each, before it goes to the failure
	// queue with the reason PoisonCrash. Left out, it is 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxCrashes *int32 `json:"maxCrashes,omitempty"`
}

// Failure is where messages end that are not retried any more.
type Failure struct {
	// queue is the name of the failure queue. Left out, it is the prefix and ".failed".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Queue *string `json:"queue,omitempty"`

	// dropOldestAfter is the number of messages over which the oldest are dropped for good. Left out, nothing ever is.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	DropOldestAfter *int64 `json:"dropOldestAfter,omitempty"`
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

	// replicas is the number of pods. Left out, an autoscaler owns it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// autoscaling lets the number of pods follow the messages in the queues of the group, by KEDA where the cluster has it, else by a
	// HorizontalPodAutoscaler. Left out, replicas says how many there are.
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// queues that the group consumes. Left out, it consumes all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=244
	Queues []string `json:"queues,omitempty"`

	// concurrency is the number of messages that one pod handles at a time. Left out, it is 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Concurrency *int32 `json:"concurrency,omitempty"`

	// timeout of one attempt, 100ms to 15m. Left out, it is 30s. A pod that is stopped has this and 15 s more to finish.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('15m')",message="timeout is between 100ms and 15m"
	Timeout *Duration `json:"timeout,omitempty"`

	// handler is what is called with each message.
	// +required
	Handler Handler `json:"handler"`

	// rateLimits bound how many messages a second reach the handler; a message needs leave of each. Left out, there are
	// none.
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

// TransportSpec is an exchange, its work queues and the workers that consume them.
//
// +kubebuilder:validation:XValidation:rule="has(self.exchange) ? has(oldSelf.exchange) : !has(oldSelf.exchange)",message="an exchange cannot be added to or removed from a Transport: make a second Transport"
// +kubebuilder:validation:XValidation:rule="has(self.prefix) ? has(oldSelf.prefix) && self.prefix == oldSelf.prefix : !has(oldSelf.prefix)",message="prefix cannot be changed: make a second Transport with the other prefix, move the producers, and delete this one"
type TransportSpec struct {
	// broker says where RabbitMQ is.
	// +required
	Broker Broker `json:"broker"`

	// exchange that producers publish to. Left out, the Transport has none of its own.
	// +optional
	Exchange *Exchange `json:"exchange,omitempty"`

	// prefix of the names of the objects that only Redrive uses. Left out, it is the exchange's name, else the Transport's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=220
	Prefix *string `json:"prefix,omitempty"`

	// retryPolicyRef names the policy of all queues that name none. Left out, the defaults of RetryPolicy hold.
	// +optional
	RetryPolicyRef *PolicyReference `json:"retryPolicyRef,omitempty"`

	// retryPolicies chooses a policy by message: the first match wins, else the queue's policy, else the Transport's.
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

	// failure is where messages end that are not retried any more.
	// +optional
	Failure *Failure `json:"failure,omitempty"`

	// poison says when a message is taken for one that kills its worker.
	// +optional
	Poison *Poison `json:"poison,omitempty"`

	// lanes bounds the number of fallback queues: Standard allows 24, Fine 64.
	// +optional
	// +kubebuilder:default=Standard
	Lanes LaneDensity `json:"lanes,omitempty"`

	// deletionPolicy says what becomes of the broker's objects when the Transport is deleted: DeleteIfEmpty, Retain or
	// Delete.
	// +optional
	// +kubebuilder:default=DeleteIfEmpty
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// workers consume the queues. Left out, nobody does.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Workers []Worker `json:"workers,omitempty"`
}

// BrokerIdentity is the broker on which a Transport's objects stand.
type BrokerIdentity struct {
	// cluster is the name of the RabbitMQ cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Cluster string `json:"cluster,omitempty"`
	// clusterID is its internal_cluster_id, which it gets at its first start and keeps when it is renamed; empty where RabbitMQ does not
	// tell. Two clusters of one name differ in it.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	ClusterID string `json:"clusterID,omitempty"` //nolint:tagliatelle // Kubernetes' spelling
	// vhost of the objects.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	VHost string `json:"vhost,omitempty"`
	// nodes are the names of its nodes, as of the last look; none where the operator's user may not read them. A second cluster with the
	// definitions of the first has the clusterID of the first, and other nodes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	Nodes []string `json:"nodes,omitempty"`
}

// Retirement is a queue on its way out. A queue is deleted in steps, none of which is taken twice or left out when the
// operator restarts: unbound, twice seen empty with nothing published in between, deleted.
type Retirement struct {
	// queue that goes.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue"`
	// since is when the queue was no longer wanted.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// unbound is when its bindings were removed.
	// +optional
	Unbound *metav1.Time `json:"unbound,omitempty"`
	// leader is the node that led the queue when its bindings were removed. Where another one leads it the waiting begins anew, since what
	// its node counts may be from before.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Leader string `json:"leader,omitempty"`
	// tick is the last count of a quorum queue's leader that was used, as the work that the leader had done by then (RabbitMQ's
	// reductions). A later decision needs a later count.
	// +optional
	Tick *int64 `json:"tick,omitempty"`
	// empty is when it was first seen without messages.
	// +optional
	Empty *metav1.Time `json:"empty,omitempty"`
	// published is the broker's count of messages published to it at that time.
	// +optional
	Published *int64 `json:"published,omitempty"`
	// messages that were in it when it was last seen.
	// +optional
	Messages *int64 `json:"messages,omitempty"`
}

// Deletion is a request to delete an object of the broker that may still be carried out: it had no answer, or nobody who asked is left to
// tell. RabbitMQ deletes by name, so no queue, binding or exchange of that name is made again before the request cannot live any more.
type Deletion struct {
	// object that it deletes, such as "queue/test", or the beginning and a hash of one with a long name.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object"`
	// written is when it was last about to be sent.
	// +required
	Written metav1.Time `json:"written"`
}

// MigrationStep is how far the migration of a queue is.
//
// +kubebuilder:validation:Enum=Prepare;Divert;Drain;Recreate;Restore;Cleanup
type MigrationStep string

const (
	// MigrationPrepare makes the stand-in and waits until all workers know it.
	MigrationPrepare MigrationStep = "Prepare"
	// MigrationDivert lets new messages into the stand-in instead of the queue.
	MigrationDivert MigrationStep = "Divert"
	// MigrationDrain waits for the workers to empty the queue, and deletes it.
	MigrationDrain MigrationStep = "Drain"
	// MigrationRecreate makes the queue again, as the spec asks for.
	MigrationRecreate MigrationStep = "Recreate"
	// MigrationRestore lets new messages into the queue instead of the stand-in.
	MigrationRestore MigrationStep = "Restore"
	// MigrationCleanup waits for the workers to empty the stand-in, and deletes it.
	MigrationCleanup MigrationStep = "Cleanup"
)

// Migration is a work queue that is migrated to other arguments or another name, since RabbitMQ cannot change them in
// place. A second queue takes its messages meanwhile, and none is lost.
type Migration struct {
	// queue that is migrated.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue"`
	// standin is the queue beside it, which takes its messages meanwhile; where the queue was renamed, the one of its former name.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Standin string `json:"standin,omitempty"`
	// step is what is being done: Prepare, Divert, Drain, Recreate, Restore or Cleanup.
	// +optional
	Step MigrationStep `json:"step,omitempty"`
	// since is when the step began.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// messages that are left in the queue that is drained, roughly.
	// +optional
	Messages *int64 `json:"messages,omitempty"`
}

// BrokerUser is a RabbitMQ user that the operator made for the workers of a Transport, or is about to make.
type BrokerUser struct {
	// name of the user.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name"`
	// since is when the workers got its password; not there before that.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// TransportStatus is what the operator made of a Transport.
type TransportStatus struct {
	// observedGeneration is the generation that this status describes; -1 before the first look.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready always; Reconciling, Stalled and Degraded while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// broker on which the objects stand.
	// +optional
	Broker *BrokerIdentity `json:"broker,omitempty"`

	// configHash of the workers' configuration in force.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ConfigHash string `json:"configHash,omitempty"`

	// workersGeneration is the generation that the workers were last brought to. While it is that of the Transport, a change of
	// its Deployments comes from an upgrade of the operator, and may have to wait for its turn.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WorkersGeneration int64 `json:"workersGeneration,omitempty"`

	// topologyHash names what was last made in full on the broker; empty while it is being made. While it is what the spec
	// asks for, whatever is missing on the broker is drift.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TopologyHash string `json:"topologyHash,omitempty"`

	// queues is the number of work queues.
	// +optional
	Queues *int32 `json:"queues,omitempty"`

	// workers is the number of ready and of wanted worker pods, such as "5/5".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Workers string `json:"workers,omitempty"`

	// pipelines are the stages that each message goes through in the workers, by worker group: those that its configuration has a
	// use for.
	// +optional
	// +listType=map
	// +listMapKey=worker
	// +kubebuilder:validation:MaxItems=16
	Pipelines []WorkerPipeline `json:"pipelines,omitempty"`

	// failed is the number of messages in the failure queue, roughly: it is written when it crosses zero, doubles or halves.
	// +optional
	Failed *int64 `json:"failed,omitempty"`

	// lanes are the delays of the fallback queues.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=32
	Lanes []string `json:"lanes,omitempty"`

	// created are the objects that this Transport made and that carry no owner mark of their own: the producers' exchange
	// and classic queues. Only what is listed here or carries the mark is ever deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=300
	Created []string `json:"created,omitempty"`

	// adopted are objects of the spec that existed before; they are used and never deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=300
	Adopted []string `json:"adopted,omitempty"`

	// retiring are the queues on their way out.
	// +optional
	// +listType=map
	// +listMapKey=queue
	// +kubebuilder:validation:MaxItems=1024
	Retiring []Retirement `json:"retiring,omitempty"`

	// migrations are the work queues that are migrated to other arguments.
	// +optional
	// +listType=map
	// +listMapKey=queue
	// +kubebuilder:validation:MaxItems=64
	Migrations []Migration `json:"migrations,omitempty"`

	// deletions are requests to delete queues and bindings that may still be carried out. They are written here before they are
	// sent, and leave the list when the broker has answered, or after --request-lifetime.
	// +optional
	// +listType=map
	// +listMapKey=object
	// +kubebuilder:validation:MaxItems=256
	Deletions []Deletion `json:"deletions,omitempty"`

	// brokerUsers are the RabbitMQ users that this Transport made for its workers: one, and while they move from one to the
	// next two. Only what is listed here is ever changed or deleted.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2
	BrokerUsers []BrokerUser `json:"brokerUsers,omitempty"`
}

// WorkerPipeline is the way of messages through the workers of one group. The first stage that decides ends it.
type WorkerPipeline struct {
	// worker is the name of the worker group.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Worker string `json:"worker"`

	// stages of each message, in their order; none where all queues of the group are in strict order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=32
	Stages []string `json:"stages,omitempty"`

	// strictStages of each message of a queue in strict order, in their order; none where there is no such queue.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=32
	StrictStages []string `json:"strictStages,omitempty"`
}

// Transport is an exchange, its work queues, and the workers that consume them.
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

	// spec says what is wanted.
	// +required
	Spec TransportSpec `json:"spec"`
	// status is what the operator made of it.
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
