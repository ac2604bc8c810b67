package v1alpha1

// Condition types. Ready is always there and is computed from the others; Reconciling and Stalled are there only while
// they are true, as kstatus expects it.
const (
	// ReadyCondition is true when the broker and the cluster match the spec.
	ReadyCondition = "Ready"
	// ReconcilingCondition is true while the operator works towards the spec, or waits to retry.
	ReconcilingCondition = "Reconciling"
	// StalledCondition is true when only a change by the user can help.
	StalledCondition = "Stalled"
	// DegradedCondition is true while something works, but not as the user may expect. It never affects Ready.
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
	// ReasonDeleting says that the objects are being deleted.
	ReasonDeleting = "Deleting"
	// ReasonDeletionBlocked says which queues still hold messages and so are not deleted.
	ReasonDeletionBlocked = "DeletionBlocked"
	// ReasonLaneStalled stands on a Degraded condition: expired messages cannot leave a lane, so retries wait in it.
	ReasonLaneStalled = "LaneStalled"
	// ReasonDestinationFull stands on a Degraded condition: a queue that lanes lead to is full and refuses messages.
	ReasonDestinationFull = "DestinationFull"
	// ReasonQueueBlocked stands on a Degraded condition: a strictly ordered queue stops at a message that was given up.
	ReasonQueueBlocked = "QueueBlocked"
	// ReasonConflictingBrokerPolicy stands on a Degraded condition: a RabbitMQ policy that is not Redrive's makes a
	// queue or exchange lose, expire or refuse messages that it must keep.
	ReasonConflictingBrokerPolicy = "ConflictingBrokerPolicy"
	// ReasonHandlerNotReady stands on a Degraded condition: a handler cannot take messages, and so none are taken from the queues. Its
	// readiness URL does not answer, or its processes do not start.
	ReasonHandlerNotReady = "HandlerNotReady"
	// ReasonQueueUnavailable stands on a Degraded condition: workers cannot consume a queue, such as a quorum queue
	// without a leader. Workers consume the others.
	ReasonQueueUnavailable = "QueueUnavailable"
	// ReasonPublishFailing stands on a Degraded condition: RabbitMQ accepts no messages from workers for an exchange,
	// lane or queue; the workers hold them.
	ReasonPublishFailing = "PublishFailing"
	// ReasonCircuitOpen stands on a Degraded condition: workers do not call their handler, because its calls fail or
	// are slow.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonRetryBudgetExhausted stands on a Degraded condition: retries wait, because they exceed the retry budget.
	ReasonRetryBudgetExhausted = "RetryBudgetExhausted"
	// ReasonMessagesQuarantined stands on a Degraded condition: messages of a worker that ended are handled one by one.
	ReasonMessagesQuarantined = "MessagesQuarantined"
	// ReasonPolicyOverridden stands on a Degraded condition: only one of a RabbitMQ policy of Redrive and one of others
	// applies.
	ReasonPolicyOverridden = "PolicyOverridden"
	// ReasonForeignBinding stands on a Degraded condition: a binding that is not in the spec leads into queues or out
	// of exchanges of the Transport.
	ReasonForeignBinding = "ForeignBinding"
	// ReasonOther stands on a Degraded condition of any other cause. If there are several causes, the reason is the
	// first of this list, and the message lists all.
	ReasonOther = "Other"
)
