package v1alpha1

// Condition types. Ready is always there and is computed from the others; Reconciling and Stalled are there only while
// they are true, as kstatus expects it.
const (
	// ReadyCondition is true when the broker and the cluster are as the spec asks for.
	ReadyCondition = "Ready"
	// ReconcilingCondition is true while the operator works towards the spec, or waits to try again by itself.
	ReconcilingCondition = "Reconciling"
	// StalledCondition is true when only a change by the user can lead further.
	StalledCondition = "Stalled"
	// DegradedCondition is true while something works, but not as the user may believe. It never affects Ready.
	DegradedCondition = "Degraded"
)

// Reasons of conditions.
const (
	// ReasonSucceeded stands on a Ready condition that is true.
	ReasonSucceeded = "Succeeded"
	// ReasonProgressing says that workers are still rolling out or lanes are still to be made.
	ReasonProgressing = "Progressing"
	// ReasonMigrating says that work queues are migrated to other arguments; status.migrations holds how far that is.
	ReasonMigrating = "Migrating"
	// ReasonInvalid says that the spec contradicts itself: a reference between lists, a name RabbitMQ refuses.
	ReasonInvalid = "Invalid"
	// ReasonInvalidExpression says that a CEL expression does not compile; the message holds its position.
	ReasonInvalidExpression = "InvalidExpression"
	// ReasonPolicyNotFound says that a referenced RetryPolicy does not exist.
	ReasonPolicyNotFound = "PolicyNotFound"
	// ReasonPolicyInvalid says that a referenced RetryPolicy is Stalled.
	ReasonPolicyInvalid = "PolicyInvalid"
	// ReasonSecretNotFound says that the broker's Secret does not exist. On a Degraded condition it is one that a handler names.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretInvalid says that the broker's Secret lacks a key or holds one that cannot be used.
	ReasonSecretInvalid = "SecretInvalid"
	// ReasonSecretForbidden says that the operator may not write the Secret with the login of the workers' own RabbitMQ user.
	ReasonSecretForbidden = "SecretForbidden"
	// ReasonBrokerNotFound says that the RabbitmqCluster that clusterRef names does not exist or has no default user yet.
	ReasonBrokerNotFound = "BrokerNotFound"
	// ReasonBrokerUnreachable says that the management API does not answer.
	ReasonBrokerUnreachable = "BrokerUnreachable"
	// ReasonBrokerRefused says that the broker refuses the login or a permission.
	ReasonBrokerRefused = "BrokerRefused"
	// ReasonBrokerChanged says that the Secret now names another broker or vhost while objects stand on the first.
	ReasonBrokerChanged = "BrokerChanged"
	// ReasonConflict says that an object exists whose arguments differ and cannot be changed in place.
	ReasonConflict = "Conflict"
	// ReasonWorkloadInvalid says that a worker's Deployment was refused, mostly for its template.
	ReasonWorkloadInvalid = "WorkloadInvalid"
	// ReasonDeleting says that the objects are on their way out.
	ReasonDeleting = "Deleting"
	// ReasonDeletionBlocked says which queues still hold messages and so are not deleted.
	ReasonDeletionBlocked = "DeletionBlocked"
	// ReasonLaneStalled stands on a Degraded condition: expired messages cannot leave a lane, so retries wait in it.
	ReasonLaneStalled = "LaneStalled"
	// ReasonDestinationFull stands on a Degraded condition: a queue that lanes lead to is full and refuses messages.
	ReasonDestinationFull = "DestinationFull"
	// ReasonQueueBlocked stands on a Degraded condition: a strictly ordered queue stops at a message that was given up.
	ReasonQueueBlocked = "QueueBlocked"
	// ReasonConflictingBrokerPolicy stands on a Degraded condition: a RabbitMQ policy of others makes a queue or exchange lose, shorten or
	// refuse what it must keep.
	ReasonConflictingBrokerPolicy = "ConflictingBrokerPolicy"
	// ReasonHandlerNotReady stands on a Degraded condition: a handler cannot take messages, and so none are taken from the queues. Its
	// readiness URL does not answer, or its processes do not start.
	ReasonHandlerNotReady = "HandlerNotReady"
	// ReasonQueueUnavailable stands on a Degraded condition: workers cannot consume a queue, such as a quorum queue without a leader. Other
	// queues go on.
	ReasonQueueUnavailable = "QueueUnavailable"
	// ReasonPublishFailing stands on a Degraded condition: RabbitMQ takes nothing of what workers publish to an exchange, lane or queue, and so
	// they hold messages.
	ReasonPublishFailing = "PublishFailing"
	// ReasonCircuitOpen stands on a Degraded condition: workers leave their handler alone, because its calls fail or are slow.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonRetryBudgetExhausted stands on a Degraded condition: retries wait, because they are more than the budget allows.
	ReasonRetryBudgetExhausted = "RetryBudgetExhausted"
	// ReasonMessagesQuarantined stands on a Degraded condition: messages that came back from a worker that ended are handled one by one.
	ReasonMessagesQuarantined = "MessagesQuarantined"
	// ReasonPolicyOverridden stands on a Degraded condition: of a RabbitMQ policy of ours and one of others only one applies.
	ReasonPolicyOverridden = "PolicyOverridden"
	// ReasonForeignBinding stands on a Degraded condition: a binding of others leads into our queues or out of our exchanges.
	ReasonForeignBinding = "ForeignBinding"
	// ReasonOther stands on a Degraded condition of any other cause. Where there are several, the first of this list that holds is
	// the reason, and the message tells of all.
	ReasonOther = "Other"
)
