package status

import "redrive.dev/redrive/api/v1alpha1"

// WhatToDo is the first step on seeing a reason, empty where there is nothing to do. docs/conditions.md has the same
// words, and the steps after them.
func WhatToDo(reason string) string {
	switch reason {
	case v1alpha1.ReasonProgressing:
		return "Wait. If it stays, look at what the message names: the worker pods, or an exchange or a queue that does not exist."
	case v1alpha1.ReasonMigrating:
		return "Wait. If it stays, look whether workers empty the queue that the message names."
	case v1alpha1.ReasonInvalid, v1alpha1.ReasonWorkloadInvalid:
		return "Correct the fields that the message names."
	case v1alpha1.ReasonInvalidExpression:
		return "Correct the expression at the place that the message names."
	case v1alpha1.ReasonPolicyNotFound:
		return "Make the RetryPolicy, or correct the reference."
	case v1alpha1.ReasonPolicyInvalid:
		return "Correct the RetryPolicy; its own conditions say what is wrong."
	case v1alpha1.ReasonSecretNotFound:
		return "Make the Secret that the message names, or correct the reference to it."
	case v1alpha1.ReasonSecretInvalid:
		return "Correct the key of the Secret that the message names."
	case v1alpha1.ReasonSecretForbidden:
		return "Let the operator write Secrets, by config/scoped-users or scopedUsers.enabled of the chart, or leave out spec.broker.scopedUser."
	case v1alpha1.ReasonBrokerNotFound:
		return "Make the RabbitmqCluster, or wait until it has its default user; or correct spec.broker.clusterRef."
	case v1alpha1.ReasonBrokerUnreachable:
		return "Bring the management API back, or correct its address. Workers keep running without it."
	case v1alpha1.ReasonBrokerRefused:
		return "Grant what the message names: the login, a right, the vhost, or more queues than a limit allows."
	case v1alpha1.ReasonBrokerChanged:
		return "Let the Secret lead to the first broker and vhost again; to move, make a second Transport."
	case v1alpha1.ReasonConflict:
		return "Do what the message proposes: use another name or prefix, set adopt, or take the object away."
	case v1alpha1.ReasonDeleting:
		return "Wait."
	case v1alpha1.ReasonDeletionBlocked:
		return "Empty the queues that the message names, or set spec.deletionPolicy to Retain to leave them."
	default:
		return whatToDoOnWarning(reason)
	}
}

// whatToDoOnWarning is for reasons of what works, but not as the user may believe.
func whatToDoOnWarning(reason string) string {
	switch reason {
	case v1alpha1.ReasonLaneStalled:
		return "Make room in the queue that the message names. The lane recovers by itself within three minutes."
	case v1alpha1.ReasonDestinationFull:
		return "Take messages out of the queue, or its length limit away, before a lane stalls."
	case v1alpha1.ReasonConflictingBrokerPolicy:
		return "Narrow the pattern of the RabbitMQ policy that the message names, or lower its priority."
	case v1alpha1.ReasonHandlerNotReady:
		return "Put right what the message says of the handler. No message is taken meanwhile, and none uses up a retry."
	case v1alpha1.ReasonPolicyOverridden:
		return "Narrow the pattern of your RabbitMQ policy, and set in the Transport what you need of it."
	case v1alpha1.ReasonForeignBinding:
		return "Add the binding to the spec, or remove it."
	case v1alpha1.ReasonMessagesQuarantined:
		return "Wait: they are handled one by one. If they do not become fewer, look at the pod of the quarantine worker."
	case v1alpha1.ReasonQueueBlocked:
		return "Raise maxRetries of the policy that decides on the message at the head, or set onFailure to Continue until it is in the failure queue."
	case v1alpha1.ReasonQueueUnavailable:
		return "Bring the queue back: start the nodes of RabbitMQ that have it, or grant what the message names. " +
			"Other queues go on, but 32 due retries of a queue without a leader stop theirs: see LaneStalled."
	case v1alpha1.ReasonPublishFailing:
		return "Bring back what the message names: the exchange, lane or queue, its leader, or the right to publish. Messages are held until then, and none is lost."
	case v1alpha1.ReasonCircuitOpen:
		return "Bring what the handler calls back. Calls begin again by themselves, a few at first."
	case v1alpha1.ReasonRetryBudgetExhausted:
		return "Find out why so many messages fail. Retries wait for their turn, and none is lost."
	case v1alpha1.ReasonOther:
		return "Read the message."
	default:
		return ""
	}
}
