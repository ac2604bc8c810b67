// Package topology decides which objects a Transport needs on the broker, how what is there differs from that, and in
// which order the difference is removed. It is pure: it reads no clock, speaks to no broker, and draws nothing at random.
package topology

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// OwnerArgument marks the exchanges, quorum queues and bindings that belong to one Transport. Its value is
// "<cluster-uid>/<namespace>/<name>". RabbitMQ stores it and ignores it.
const OwnerArgument = "redrive-owner"

// Arguments of queues, exchanges and bindings that this package sets or judges.
const (
	argQueueType          = "x-queue-type"
	argMessageTTL         = "x-message-ttl"
	argOverflow           = "x-overflow"
	argDeadLetterExchange = "x-dead-letter-exchange"
	argDeadLetterStrategy = "x-dead-letter-strategy"
	argSingleActive       = "x-single-active-consumer"
	argAlternateExchange  = "alternate-exchange"
	// argQuarantineOf names the work queue of a quarantine queue. RabbitMQ stores it and ignores it.
	argQuarantineOf = "redrive-quarantine-of"
	// argMigrationOf names the work queue that a queue stands in for.
	argMigrationOf = "redrive-migration-of"
	argMatch       = "x-match"

	// laneHeader is the header by which the fallback exchange finds the lane.
	laneHeader = "redrive-lane"
)

// Types of queues and exchanges as RabbitMQ spells them.
const (
	TypeQuorum  = "quorum"
	TypeClassic = "classic"
	TypeDirect  = "direct"
	TypeTopic   = "topic"
	TypeFanout  = "fanout"
	TypeHeaders = "headers"
)

// Kind of a broker object.
type Kind string

// Kinds of broker objects.
const (
	KindExchange Kind = "exchange"
	KindQueue    Kind = "queue"
	KindBinding  Kind = "binding"
	KindPolicy   Kind = "policy"
	// KindWorker stands in findings for a worker group, which is no object of the broker.
	KindWorker Kind = "worker"
)

// Role is what an object is for in a Transport's topology.
type Role string

// Roles of exchanges and queues.
const (
	// RoleProducers is the exchange that producers publish to.
	RoleProducers Role = "producers"
	// RoleAlternate is the alternate exchange of the producers' exchange.
	RoleAlternate Role = "alternate"
	// RoleUnrouted is the alternate exchange of the stand-in; it leads to the queue for unroutable messages.
	RoleUnrouted Role = "unrouted"
	// RoleFallback is the exchange that leads into the lanes.
	RoleFallback Role = "fallback"
	// RoleReturn is the exchange that leads back to the work queues, and to their quarantine queues.
	RoleReturn Role = "return"
	// RoleReturnAlternate is the alternate exchange of the return exchange; it leads to the failure exchange.
	RoleReturnAlternate Role = "return-alternate"
	// RoleFailed is the exchange that leads to the failure queue.
	RoleFailed Role = "failed"
	// RoleWork is a queue that workers consume.
	RoleWork Role = "work"
	// RoleQuarantine is a queue of the messages of one work queue that may have brought down a worker.
	RoleQuarantine Role = "quarantine"
	// RoleLane is a fallback queue: messages wait in it until its TTL sends them back.
	RoleLane Role = "lane"
	// RoleFailure is the failure queue.
	RoleFailure Role = "failure"
	// RoleReplay is a queue of a replay: the staging queue has its messages, and the log queue what was told of them.
	RoleReplay Role = "replay"
)

// Arguments of an object: strings, booleans and whole numbers.
type Arguments map[string]any

// Owner is the value of the owner mark, empty where there is none.
func (a Arguments) Owner() string {
	owner, _ := a[OwnerArgument].(string)
	return owner
}

// canonical is the same text for arguments that mean the same: keys are sorted, and numbers have no width.
func (a Arguments) canonical() string {
	if len(a) == 1 { // as most bindings have them, of which there are many
		for name, value := range a {
			if text, ok := value.(string); ok {
				return strconv.Quote(name) + strconv.Quote(text)
			}
		}
	}
	plain := make(map[string]any, len(a))
	for name, value := range a {
		plain[name] = normalise(value)
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return fmt.Sprint(plain)
	}
	return string(text)
}

// Exchange is an exchange as it is declared.
type Exchange struct {
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	Durable    bool      `json:"durable"`
	AutoDelete bool      `json:"autoDelete,omitempty"`
	Internal   bool      `json:"internal,omitempty"`
	Arguments  Arguments `json:"arguments,omitempty"`
	// Role is set on desired exchanges only.
	Role Role `json:"role,omitempty"`
}

// Queue is a queue as it is declared.
type Queue struct {
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	Durable    bool      `json:"durable"`
	AutoDelete bool      `json:"autoDelete,omitempty"`
	Exclusive  bool      `json:"exclusive,omitempty"`
	Arguments  Arguments `json:"arguments,omitempty"`
	// Role is set on desired queues only.
	Role Role `json:"role,omitempty"`
	// Adopt is set on desired queues only: the queue is taken as it is, never made and never deleted.
	Adopt bool `json:"adopt,omitempty"`
	// Strict is set on desired queues only: a worker rejects a failed message back to its place, which takes a delivery limit
	// that is high enough.
	Strict bool `json:"strict,omitempty"`
	// PreviousNames is set on desired queues only: names that the queue had before.
	PreviousNames []string `json:"-"`
}

// Binding leads from an exchange to a queue, or, where others made it, to an exchange.
type Binding struct {
	Source      string    `json:"source"`
	Destination string    `json:"destination"`
	ToExchange  bool      `json:"toExchange,omitempty"`
	RoutingKey  string    `json:"routingKey"`
	Arguments   Arguments `json:"arguments,omitempty"`
	// PropertiesKey is the broker's own name of an observed binding among those of the same two ends.
	PropertiesKey string `json:"-"`
}

// identity is a digest: the arguments of bindings may be as large as one likes, and there are many.
type identity [sha256.Size]byte

// identity tells bindings apart as the broker does.
func (b Binding) identity() identity {
	return sha256.Sum256([]byte(strings.Join([]string{
		b.Source, b.Destination, strconv.FormatBool(b.ToExchange), b.RoutingKey, b.Arguments.canonical(),
	}, "\x00")))
}

// Name of a binding for people, such as `async -> test "order.#"`.
func (b Binding) Name() string {
	if lane, ok := b.Arguments[laneHeader].(string); ok {
		return fmt.Sprintf("%s -> %s %s=%s", b.Source, b.Destination, laneHeader, lane)
	}
	return fmt.Sprintf("%s -> %s %q", b.Source, b.Destination, b.RoutingKey)
}

func (b Binding) ref() Ref { return Ref{Kind: KindBinding, Name: b.Name()} }

// IsMarked is true for a binding that a Transport has made, this one or another.
func IsMarked(b Binding) bool {
	_, lane := b.Arguments[laneHeader]
	return lane || b.Arguments.Owner() != ""
}

// Policy is a RabbitMQ policy: settings that the broker applies to the objects whose names match a pattern. Of all
// policies that match, only the one with the highest priority applies.
type Policy struct {
	Name    string `json:"name"`
	Pattern string `json:"pattern"`
	// ApplyTo is "queues", "exchanges" or "all", or one of the narrower values of newer brokers.
	ApplyTo    string    `json:"applyTo"`
	Priority   int       `json:"priority"`
	Definition Arguments `json:"definition"`
}

// Objects are what one Transport needs on the broker.
type Objects struct {
	// Owner is the value of the owner mark.
	Owner string `json:"owner"`
	// Prefix of the names of the objects that only Redrive uses.
	Prefix    string     `json:"prefix"`
	Exchanges []Exchange `json:"exchanges,omitempty"`
	Queues    []Queue    `json:"queues,omitempty"`
	Bindings  []Binding  `json:"bindings,omitempty"`
	Policies  []Policy   `json:"policies,omitempty"`
}

// ExchangeOf returns the name of the exchange with a role, empty where there is none.
func (o Objects) ExchangeOf(role Role) string {
	for _, exchange := range o.Exchanges {
		if exchange.Role == role {
			return exchange.Name
		}
	}
	return ""
}

// QueuesOf returns the names of the queues with a role, in their order.
func (o Objects) QueuesOf(role Role) []string {
	var names []string
	for _, queue := range o.Queues {
		if queue.Role == role {
			names = append(names, queue.Name)
		}
	}
	return names
}

// Ref names an object in status lists, such as "queue/async.failed".
type Ref struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

// String is the form that status lists hold.
func (r Ref) String() string { return string(r.Kind) + "/" + r.Name }

// maxKey is how long a Key is at most: the names of a binding alone may come to three times as much.
const maxKey = 500

// Key is the form of a Ref that has a bound: a long one is the beginning of its String and a hash.
func (r Ref) Key() string {
	text := r.String()
	if len(text) <= maxKey {
		return text
	}
	return strings.ToValidUTF8(text[:400], "") + fmt.Sprintf("…%x", sha256.Sum256([]byte(text)))
}

// normalise gives numbers of every width one type, so that what was sent compares with what JSON or AMQP gave back.
func normalise(value any) any {
	switch v := value.(type) {
	case int:
		return int64(v)
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case float32:
		return normalise(float64(v))
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
		return v
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		return v.String()
	default:
		return value
	}
}

// same compares two argument values by their meaning.
func same(a, b any) bool {
	switch x, y := normalise(a), normalise(b); x.(type) {
	case nil, string, bool, int64: // as nearly all are, of which a look compares thousands
		return x == y
	default:
		return Arguments{"": x}.canonical() == Arguments{"": y}.canonical()
	}
}
