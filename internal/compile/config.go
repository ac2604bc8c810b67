package compile

import (
	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// Version of the configuration that this build writes, and the newest that it reads.
const Version = 1

// Config is everything that a worker needs to know. The operator writes it as JSON into a ConfigMap, each policy in it
// once and with its included strategies resolved.
type Config struct {
	// Version of this format.
	Version int `json:"version"`
	// Transport as namespace/name.
	Transport string `json:"transport"`
	// Worker is the name of the worker group.
	Worker string `json:"worker"`
	// VHost of the spec; empty where the Secret's holds.
	VHost string `json:"vhost,omitempty"`
	// Names of the exchanges that the worker publishes to.
	Exchanges Exchanges `json:"exchanges"`
	// Lanes are the delays that fallback queues exist for, ascending.
	Lanes retry.Lanes `json:"lanes"`
	// Queues to consume.
	Queues []Queue `json:"queues"`
	// Rules choose a policy by message; the first match wins, else the queue's policy.
	Rules []Rule `json:"rules,omitempty"`
	// Policies by name.
	Policies map[string]v1alpha1.RetryPolicySpec `json:"policies"`
	// Concurrency is the number of messages handled at a time.
	Concurrency int `json:"concurrency"`
	// Timeout of one attempt.
	Timeout v1alpha1.Duration `json:"timeout"`
	// Handler that is called with each message.
	Handler v1alpha1.Handler `json:"handler"`
}

// Exchanges are the exchanges that a worker publishes to.
type Exchanges struct {
	// Fallback routes to a lane by the header redrive-lane.
	Fallback string `json:"fallback"`
	// Return routes to a work queue by its name.
	Return string `json:"return"`
	// Failed leads to the failure queue.
	Failed string `json:"failed"`
}

// Queue is a work queue as its consumer sees it.
type Queue struct {
	Name string `json:"name"`
	// Policy is a key of Config.Policies.
	Policy string `json:"policy"`
	// SingleActiveConsumer is true where only one consumer at a time receives.
	SingleActiveConsumer bool `json:"singleActiveConsumer,omitempty"`
}

// Rule chooses a policy by message.
type Rule struct {
	When string `json:"when"`
	// Policy is a key of Config.Policies.
	Policy string `json:"policy"`
}
