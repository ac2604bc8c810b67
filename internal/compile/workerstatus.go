package compile

import (
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// WorkerStatus is what a worker says of itself at /status, as JSON; the operator reads it and shows it as conditions.
type WorkerStatus struct {
	// ConfigHash of the configuration in force.
	ConfigHash string `json:"configHash"`
	// Pipeline names the stages that each message goes through, in their order: those that the configuration has a use for.
	// StrictPipeline names those for messages of strictly ordered queues. Where there is no such queue it is left out.
	Pipeline       []string `json:"pipeline,omitempty"`
	StrictPipeline []string `json:"strictPipeline,omitempty"`
	// Troubles are what holds messages back at the moment, in a steady order.
	Troubles []Trouble `json:"troubles,omitempty"`
}

// Trouble is one thing that holds messages back.
type Trouble struct {
	// Reason is a reason of the Degraded condition: CircuitOpen, RetryBudgetExhausted, HandlerNotReady, PublishFailing, QueueBlocked or
	// QueueUnavailable; or QueueHeld, of which the condition has the cause.
	Reason string `json:"reason"`
	// Subject is what it is about: a queue, or the key of a breaker; may be empty.
	Subject string `json:"subject,omitempty"`
	// Message says what holds back what, in a sentence without a figure that changes while the trouble lasts.
	Message string `json:"message"`
	// Since is when it began.
	Since time.Time `json:"since"`
}

// MayHoldBack is true for workers that may hold messages back while they are ready.
func (c *Config) MayHoldBack() bool {
	return mayBeNotReady(&c.Handler) || c.CircuitBreaker != nil || c.RetryBudget != nil ||
		slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.Strict == v1alpha1.OnFailureBlock })
}

// mayBeNotReady is true for all handlers but those of which nothing is known before a message is handed to them.
func mayBeNotReady(handler *v1alpha1.Handler) bool {
	http := handler.HTTP
	return http == nil || http.ReadinessURL != nil || http.HeadersSecretRef != nil || http.TLS != nil
}
