package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BrokerIdentity identifies the broker that has the objects of a Transport.
type BrokerIdentity struct {
	// cluster is the name of the RabbitMQ cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Cluster string `json:"cluster,omitempty"`
	// clusterID is the internal_cluster_id of the cluster: RabbitMQ sets it at the first start and keeps it when the
	// cluster is renamed. Empty where RabbitMQ does not report it.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	ClusterID string `json:"clusterID,omitempty"` //nolint:tagliatelle // Kubernetes' spelling
	// vhost of the objects.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	VHost string `json:"vhost,omitempty"`
	// nodes are the names of the nodes of the cluster, as last read; empty where the operator's user may not read them.
	// A cluster with imported definitions has the clusterID of the first cluster, and other nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	Nodes []string `json:"nodes,omitempty"`
}

// Retirement is a queue that is being deleted, in steps that survive restarts of the operator: the operator unbinds the
// queue, counts it as empty twice with nothing published in between, and deletes it.
type Retirement struct {
	// queue that is being deleted.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue"`
	// since is when the queue left the spec.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// unbound is when its bindings were removed.
	// +optional
	Unbound *metav1.Time `json:"unbound,omitempty"`
	// leader is the node that led the queue when its bindings were removed. After a change of the leader the operator
	// waits again, because the new leader may report an older count.
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
	// published is the number of messages published to the queue by then, as RabbitMQ counts them.
	// +optional
	Published *int64 `json:"published,omitempty"`
	// acked is the number of messages that consumers had acknowledged by then, of those whose retries come back to the queue.
	// While it rises, the operator does not unbind the way back from the lanes.
	// +optional
	Acked *int64 `json:"acked,omitempty"`
	// messages in the queue when it was last counted.
	// +optional
	Messages *int64 `json:"messages,omitempty"`
}

// Deletion is a request to delete an object on the broker that RabbitMQ may still carry out: it got no answer, or the
// operator that sent it is gone. RabbitMQ deletes by name, so the operator creates no object of that name until the
// request has expired.
type Deletion struct {
	// object to delete, such as "queue/test"; of a long name the beginning and a hash.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object"`
	// written is when the operator was last about to send the request.
	// +required
	Written metav1.Time `json:"written"`
}

// MigrationStep is a step of the migration of a queue.
//
// +kubebuilder:validation:Enum=Prepare;Divert;Drain;Recreate;Restore;Cleanup
type MigrationStep string

const (
	// MigrationPrepare creates the stand-in and waits until all workers know it.
	MigrationPrepare MigrationStep = "Prepare"
	// MigrationDivert routes new messages into the stand-in instead of the queue.
	MigrationDivert MigrationStep = "Divert"
	// MigrationDrain waits until the workers have emptied the queue, and deletes it.
	MigrationDrain MigrationStep = "Drain"
	// MigrationRecreate creates the queue again, as the spec asks for.
	MigrationRecreate MigrationStep = "Recreate"
	// MigrationRestore routes new messages into the queue instead of the stand-in.
	MigrationRestore MigrationStep = "Restore"
	// MigrationCleanup waits until the workers have emptied the stand-in, and deletes it.
	MigrationCleanup MigrationStep = "Cleanup"
)

// Migration is a work queue that gets other arguments or another name, which RabbitMQ cannot change in place. A second
// queue, the stand-in, takes its messages meanwhile; none is lost.
type Migration struct {
	// queue that is migrated.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue"`
	// standin is the queue that takes its messages meanwhile; when the queue is renamed, the queue of its previous
	// name.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Standin string `json:"standin,omitempty"`
	// step of the migration: Prepare, Divert, Drain, Recreate, Restore or Cleanup.
	// +optional
	Step MigrationStep `json:"step,omitempty"`
	// since is when the step started.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// messages left in the queue that is drained, roughly.
	// +optional
	Messages *int64 `json:"messages,omitempty"`
}

// BrokerUser is a RabbitMQ user that the operator created, or is about to create, for the workers of a Transport.
type BrokerUser struct {
	// name of the user.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name"`
	// since is when the workers got its password; unset before that.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// TransportStatus is the observed state of a Transport.
type TransportStatus struct {
	// observedGeneration is the generation that this status describes; -1 before the first reconcile.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready always; Reconciling, Stalled and Degraded while they are true.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// broker that has the objects of this Transport.
	// +optional
	Broker *BrokerIdentity `json:"broker,omitempty"`

	// configHash is the hash of the workers' current configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ConfigHash string `json:"configHash,omitempty"`

	// workersGeneration is the generation that the Deployments of the workers were last updated to. While it equals the
	// generation of the Transport, a change of its Deployments comes from an upgrade of the operator, which rolls out a
	// limited number at a time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WorkersGeneration int64 `json:"workersGeneration,omitempty"`

	// topologyHash is the hash of the topology that was last applied completely; empty while it is being applied. While
	// it matches the spec, the operator treats missing objects on the broker as drift.
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

	// pipelines are the stages that each message passes in the workers, by worker group.
	// +optional
	// +listType=map
	// +listMapKey=worker
	// +kubebuilder:validation:MaxItems=16
	Pipelines []WorkerPipeline `json:"pipelines,omitempty"`

	// failed is the number of messages in the failure queue, roughly: the operator updates it when it crosses zero,
	// doubles or halves.
	// +optional
	Failed *int64 `json:"failed,omitempty"`

	// lanes are the delays of the fallback queues.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=32
	Lanes []string `json:"lanes,omitempty"`

	// created are the objects that this Transport created and that carry no owner mark: the exchange of the producers
	// and classic queues. Redrive deletes only objects that are listed here or carry its mark.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=300
	Created []string `json:"created,omitempty"`

	// adopted are objects of the spec that existed before. Redrive uses them and never deletes them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=300
	Adopted []string `json:"adopted,omitempty"`

	// retiring are the queues that are being deleted.
	// +optional
	// +listType=map
	// +listMapKey=queue
	// +kubebuilder:validation:MaxItems=1024
	Retiring []Retirement `json:"retiring,omitempty"`

	// migrations are the work queues that are being migrated to other arguments or another name.
	// +optional
	// +listType=map
	// +listMapKey=queue
	// +kubebuilder:validation:MaxItems=64
	Migrations []Migration `json:"migrations,omitempty"`

	// deletions are requests to delete objects that RabbitMQ may still carry out. The operator writes them here before
	// it sends them, and removes them when RabbitMQ has answered, or after --request-lifetime.
	// +optional
	// +listType=map
	// +listMapKey=object
	// +kubebuilder:validation:MaxItems=256
	Deletions []Deletion `json:"deletions,omitempty"`

	// brokerUsers are the RabbitMQ users that the operator created for the workers of this Transport: one, or two
	// during a rotation. The operator changes and deletes only users that are listed here.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2
	BrokerUsers []BrokerUser `json:"brokerUsers,omitempty"`
}

// WorkerPipeline lists the stages that messages pass in the workers of one group. The first stage that decides ends the
// pipeline.
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
