package compile

import (
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// Version is the newest version of the configuration that this build reads. It writes the oldest one by which a worker can
// carry a configuration out, so that an older worker goes on where it can. Version 1 knew neither quarantined messages nor strict order nor
// limits. Version 2 knew no handler but http, and of that only the URL: it would post without the headers of a login.
// Version 3 knew no stand-ins: it would leave what is in them, and consume a queue before its time.
// Version 4 knew no policy that is unlimited as a whole: it would end its retries after the third.
// Version 5 knew no rules for the headers of requests: it would post all of a message's.
// Version 6 knew no http handler whose connections serve one request each: it would keep them.
const Version = 7

// versionOfURLs is the version of a configuration whose handler is an http URL and no more.
const versionOfURLs = 2

// versionOfHandlers is the version of a configuration in which no queue has a stand-in.
const versionOfHandlers = 3

// versionOfStandins is the version of a configuration in which no policy is unlimited.
const versionOfStandins = 4

// versionOfUnlimited is the version of a configuration whose handler has no rules for headers.
const versionOfUnlimited = 5

// versionOfHeaders is the version of a configuration whose handler keeps its connections.
const versionOfHeaders = 6

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
	// Names of the Transport's exchanges.
	Exchanges Exchanges `json:"exchanges"`
	// Lanes are the delays that fallback queues exist for, ascending.
	Lanes retry.Lanes `json:"lanes"`
	// HighLanes is true where each lane has a twin for messages of high priority.
	HighLanes bool `json:"highLanes,omitempty"`
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
	// ConsumerTimeout of the broker; zero stands for 30 minutes.
	ConsumerTimeout v1alpha1.Duration `json:"consumerTimeout,omitzero"`
	// MaxCrashes is the number of processes that a message may bring down on its own.
	MaxCrashes int `json:"maxCrashes,omitempty"`
	// RateLimits that a message needs leave of before the handler is called.
	RateLimits []RateLimit `json:"rateLimits,omitempty"`
	// Replicas is the number of pods, with that of the quarantined messages, that share the rate limits with scope Workers; 0 where there is none of these.
	Replicas int `json:"replicas,omitempty"`
	// Budget of retries; nil where there is none.
	RetryBudget *RetryBudget `json:"retryBudget,omitempty"`
	// Breaker of the handler; nil where there is none.
	CircuitBreaker *CircuitBreaker `json:"circuitBreaker,omitempty"`
	// Handler that is called with each message. It names Secrets and holds nothing of them. Its image is the one that it is
	// meant for.
	Handler v1alpha1.Handler `json:"handler"`
	// FormerHandlers are those that other pods of the group were made for, which go on until the pods for Handler are available; the earliest first.
	FormerHandlers []FormerHandler `json:"formerHandlers,omitempty"`
	// MadeFor is what the pods for Handler have, in the words of the function MadeFor; empty, as in a configuration of an earlier operator, for any.
	MadeFor string `json:"madeFor,omitempty"`
}

// version is the oldest one by which a worker can carry the configuration out.
func (c *Config) version() int {
	http := c.Handler.HTTP
	if http != nil && http.KeepAlive != nil && !*http.KeepAlive {
		return Version
	}
	if http != nil && http.Headers != nil {
		return versionOfHeaders
	}
	for _, policy := range c.Policies {
		if policy.Unlimited != nil && *policy.Unlimited {
			return versionOfUnlimited
		}
	}
	if slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.Standin != "" || q.Reads != ReadsBoth }) {
		return versionOfStandins
	}
	if http != nil && *http == (v1alpha1.HTTPHandler{URL: http.URL}) {
		return versionOfURLs
	}
	return versionOfHandlers
}

// Exchanges are those of the Transport, which the worker publishes to but for the first.
type Exchanges struct {
	// Work is the one that producers publish to; empty where the Transport has none of its own. Nothing is published to it.
	Work string `json:"work,omitempty"`
	// Fallback routes to a lane by the header redrive-lane.
	Fallback string `json:"fallback"`
	// Return routes to a work queue by its name.
	Return string `json:"return"`
	// Failed leads to the failure queue.
	Failed string `json:"failed"`
}

// BringBack tells whether a message that came by an exchange may be one that a worker has published. Workers publish to exchanges of ours,
// all of which lead to a work queue by Return; people who move messages from one queue to another use the default exchange.
func (e *Exchanges) BringBack(exchange string) bool { return exchange == e.Return || exchange == "" }

// Queue is a work queue as its consumer sees it.
type Queue struct {
	Name string `json:"name"`
	// Policy is a key of Config.Policies.
	Policy string `json:"policy"`
	// SingleActiveConsumer is true where only one consumer at a time receives.
	SingleActiveConsumer bool `json:"singleActiveConsumer,omitempty"`
	// Quarantine is the queue of the messages that may have brought down a worker; empty where there is none.
	Quarantine string `json:"quarantine,omitempty"`
	// Standin is the queue that takes its messages while it is migrated to other arguments; empty where it is not.
	Standin string `json:"standin,omitempty"`
	// Reads says which of its queues are consumed; empty stands for all.
	Reads Reading `json:"reads,omitempty"`
	// Leaving is true for a queue that the spec does not have any more, and that is consumed until it is empty and gone.
	Leaving bool `json:"leaving,omitempty"`
	// Strict says what happens to a strictly ordered queue when a message is given up; empty where the queue has no order.
	Strict v1alpha1.OnFailure `json:"strict,omitempty"`
	// Hold says why workers do not consume the queue for now, nor its stand-in, such as one of HoldDisordered, HoldCutOff and HoldNewToPods; empty
	// where they do.
	Hold string `json:"hold,omitempty"`
	// Weight is the queue's share of the places at the handler, beside those of the other queues. 0, which older operators
	// write, stands for 1.
	Weight int `json:"weight,omitempty"`
}

// RateLimit is a rate limit with all its defaults filled in.
type RateLimit struct {
	Name string `json:"name"`
	// Smooth is true for a leaky bucket.
	Smooth bool `json:"smooth,omitempty"`
	// PerSecond of one pod, or, where Shared, of all replicas together.
	PerSecond float64 `json:"perSecond"`
	// Burst of one pod, or, where Shared, of all replicas together; a leaky bucket has none.
	Burst  int  `json:"burst,omitempty"`
	Shared bool `json:"shared,omitempty"`
	// Key is an expression over message; empty where all messages share the limit.
	Key string `json:"key,omitempty"`
}

// RetryBudget of retries with all its defaults filled in.
type RetryBudget struct {
	Percent      int               `json:"percent"`
	Window       v1alpha1.Duration `json:"window"`
	MinPerSecond int               `json:"minPerSecond"`
}

// CircuitBreaker with all its defaults filled in.
type CircuitBreaker struct {
	FailurePercent int `json:"failurePercent"`
	// SlowAfter is zero where no call is slow.
	SlowAfter    v1alpha1.Duration `json:"slowAfter,omitzero"`
	SlowPercent  int               `json:"slowPercent,omitempty"`
	MinimumCalls int               `json:"minimumCalls"`
	Window       v1alpha1.Duration `json:"window"`
	OpenFor      v1alpha1.Duration `json:"openFor"`
	MaxOpenFor   v1alpha1.Duration `json:"maxOpenFor"`
	// OpenOnRetryAfter is true where a failure with a delay opens it for that long.
	OpenOnRetryAfter bool `json:"openOnRetryAfter,omitempty"`
	// Key is an expression over message; empty where there is one breaker for all.
	Key string `json:"key,omitempty"`
}

// Rule chooses a policy by message.
type Rule struct {
	When string `json:"when"`
	// Policy is a key of Config.Policies.
	Policy string `json:"policy"`
}
