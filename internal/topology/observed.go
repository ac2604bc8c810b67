package topology

import (
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// QueueState is a queue as it was seen.
type QueueState struct {
	Queue
	Evidence
	// MessagesDLX are expired messages of a quorum queue that are on their way to its dead-letter exchange. They grow when
	// they have nowhere to go.
	MessagesDLX int64
	// Ready and Unacked messages.
	Ready, Unacked int64
	Consumers      int64
	// Acked is its count of messages that consumers acknowledged, or took without having to.
	Acked int64
	// Policy is the name of the RabbitMQ policy that applies, empty if none does or none is known yet.
	Policy string
	// OperatorPolicy is the name of the operator policy that applies, empty if none does or none is known yet.
	OperatorPolicy string
	// EffectiveDefinition is what the policy and an operator policy give together.
	EffectiveDefinition Arguments
}

// ExchangeState is an exchange as it was seen.
type ExchangeState struct {
	Exchange
	// Policy is the name of the RabbitMQ policy that applies.
	Policy string
}

// Identity tells one broker and vhost from another.
type Identity struct {
	// Cluster is the name of the RabbitMQ cluster.
	Cluster string `json:"cluster"`
	// ClusterID is what RabbitMQ calls internal_cluster_id; empty where it does not tell.
	ClusterID string `json:"clusterID,omitempty"` //nolint:tagliatelle // as in the API
	VHost     string `json:"vhost"`
}

// IdentityOf is what a status says.
func IdentityOf(stands v1alpha1.BrokerIdentity) Identity {
	return Identity{Cluster: stands.Cluster, ClusterID: stands.ClusterID, VHost: stands.VHost}
}

// Is tells whether two are the same. Clusters can be renamed, and two can have one name: where both have an ID that decides.
func (i Identity) Is(other Identity) bool {
	if i.ClusterID != "" && other.ClusterID != "" {
		return i.ClusterID == other.ClusterID && i.VHost == other.VHost
	}
	return i.Cluster == other.Cluster && i.VHost == other.VHost
}

// StandsOn tells whether this is the broker and vhost that a status names. A cluster into which the definitions of another were imported
// has its ID: where the nodes of both are known and none is in both, they are two.
func (o Observed) StandsOn(stands v1alpha1.BrokerIdentity) bool {
	common := func(node string) bool { return slices.Contains(stands.Nodes, node) }
	return IdentityOf(stands).Is(o.Identity) &&
		(len(stands.Nodes) == 0 || len(o.Nodes) == 0 || slices.ContainsFunc(o.Nodes, common))
}

// Observed is a snapshot of one vhost. Snapshots are shared: nobody changes one.
type Observed struct {
	Identity
	// Began is when the broker was first asked; zero is now.
	Began time.Time
	// Nodes are the names of the cluster's nodes; none where the user may not read them.
	Nodes     []string
	Exchanges map[string]ExchangeState
	Queues    map[string]QueueState
	// Bindings without those of the default exchange.
	Bindings []Binding
	Policies map[string]Policy
}

// Age is how long ago the broker was first asked.
func (o Observed) Age() time.Duration {
	if o.Began.IsZero() {
		return 0
	}
	return time.Since(o.Began)
}

// BindingsTo returns the bindings that lead into a queue.
func (o Observed) BindingsTo(queue string) []Binding {
	var found []Binding
	for _, binding := range o.Bindings {
		if !binding.ToExchange && binding.Destination == queue {
			found = append(found, binding)
		}
	}
	return found
}
