package topology

// QueueState is a queue as it was seen.
type QueueState struct {
	Queue
	// Messages that are ready, unacknowledged or being dead-lettered; nil while the broker has not counted them yet, which
	// takes it some seconds after a queue was made.
	Messages *int64
	// MessagesDLX are expired messages of a quorum queue that are on their way to its dead-letter exchange. They grow when
	// they have nowhere to go.
	MessagesDLX int64
	// Ready and Unacked messages.
	Ready, Unacked int64
	Consumers      int64
	// Published is the broker's count of messages that clients published into the queue since it runs.
	Published int64
	// Acked is its count of messages that consumers acknowledged.
	Acked int64
	// Policy is the name of the RabbitMQ policy that applies, empty if none does or none is known yet.
	Policy string
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
	VHost   string `json:"vhost"`
}

// Observed is a snapshot of one vhost. Snapshots are shared: nobody changes one.
type Observed struct {
	Identity
	Exchanges map[string]ExchangeState
	Queues    map[string]QueueState
	// Bindings without those of the default exchange.
	Bindings []Binding
	Policies map[string]Policy
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
