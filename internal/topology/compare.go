package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// decisive are the arguments that change what becomes of messages. Others that somebody set on an existing queue, such
// as where its leader lives, are left alone.
func decisive() []string {
	return []string{
		argMessageTTL, "x-expires", "x-max-length", "x-max-length-bytes", argOverflow, argDeadLetterExchange,
		"x-dead-letter-routing-key", argDeadLetterStrategy, argSingleActive, "x-delivery-limit",
	}
}

// defaultOf is what the broker takes where an argument is absent.
func defaultOf(argument string) any {
	switch argument {
	case argSingleActive:
		return false
	case argOverflow:
		return overflowDropHead
	case argDeadLetterStrategy:
		return strategyAtMostOnce
	default:
		return nil
	}
}

func argumentOr(arguments Arguments, name string) any {
	if value, ok := arguments[name]; ok {
		return value
	}
	return defaultOf(name)
}

// compareQueue returns what differs and cannot be changed in place, but for the owner mark.
func compareQueue(want, got Queue) []FieldChange {
	var changes []FieldChange
	changes = appendChange(changes, "type", got.Type, want.Type)
	if got.Type != want.Type {
		// The arguments of another type are no news beside that.
		return changes
	}
	changes = appendChange(changes, "durable", got.Durable, want.Durable)
	changes = appendChange(changes, "auto-delete", got.AutoDelete, want.AutoDelete)
	changes = appendChange(changes, "exclusive", got.Exclusive, want.Exclusive)
	for _, name := range decisive() {
		changes = appendChange(changes, name, argumentOr(got.Arguments, name), argumentOr(want.Arguments, name))
	}
	return changes
}

// SameQueue is true for two looks at one queue, as far as arguments tell.
func SameQueue(a, b Queue) bool {
	return a.Type == b.Type && a.Arguments.canonical() == b.Arguments.canonical()
}

// compareExchange returns what differs and cannot be changed in place, but for the owner mark.
func compareExchange(want, got Exchange) []FieldChange {
	var changes []FieldChange
	changes = appendChange(changes, "type", got.Type, want.Type)
	changes = appendChange(changes, "durable", got.Durable, want.Durable)
	changes = appendChange(changes, "auto-delete", got.AutoDelete, want.AutoDelete)
	changes = appendChange(changes, "internal", got.Internal, want.Internal)
	if want.Role != RoleProducers {
		// What the producers' exchange has of this is a warning: it works, only unroutable messages go elsewhere.
		changes = appendChange(changes, argAlternateExchange, got.Arguments[argAlternateExchange], want.Arguments[argAlternateExchange])
	}
	return changes
}

// comparePolicy returns what a write would change. One that was touched keeps its lower priority, unless a policy of somebody else has that, too: RabbitMQ
// would choose between them.
func comparePolicy(want, got Policy, disputed bool) []FieldChange {
	var changes []FieldChange
	changes = appendChange(changes, "pattern", got.Pattern, want.Pattern)
	changes = appendChange(changes, "apply-to", got.ApplyTo, want.ApplyTo)
	if disputed || got.Priority != touchedPriority(want.Priority) {
		changes = appendChange(changes, "priority", got.Priority, want.Priority)
	}
	keys := map[string]bool{}
	for key := range want.Definition {
		keys[key] = true
	}
	for key := range got.Definition {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		changes = appendChange(changes, key, got.Definition[key], want.Definition[key])
	}
	return changes
}

func appendChange(changes []FieldChange, field string, got, want any) []FieldChange {
	if same(got, want) {
		return changes
	}
	return append(changes, FieldChange{Field: field, From: normalise(got), To: normalise(want)})
}

// remedyFor says what the user can do about an object that differs.
func remedyFor(role Role) string {
	switch role {
	case RoleProducers:
		return "an exchange cannot change it in place: delete the exchange once it is unused, or choose another name"
	case RoleQuarantine:
		return "a queue cannot change it in place: give the work queue another name, or delete this one once it is empty"
	case RoleWork:
		return "a queue cannot change it in place: set adopt: true to use the queue unchanged, or choose another name and let this " +
			"one run empty, or delete it once it is empty"
	case RoleFailure:
		return "a queue cannot change it in place: set spec.failure.queue to another name, or delete the queue once it is empty"
	case RoleLane:
		return "a queue cannot change it in place: set spec.prefix to another value, or delete the queue once it is empty"
	default:
		return "an exchange cannot change it in place: set spec.prefix to another value, or delete the exchange once it is unused"
	}
}

// remedyForQueue says what the user can do about a queue that differs.
func remedyForQueue(want, got Queue) string {
	if want.Strict && got.Arguments[argSingleActive] != true {
		return "Strict ordering needs a queue that has been made for it: choose another name and let this one run empty, delete it " +
			"once it is empty, or leave ordering out"
	}
	return remedyFor(want.Role)
}

// ownerConflict says that an object belongs to somebody else.
func ownerConflict(ref Ref, got, want string) Conflict {
	return Conflict{
		Object: ref, Fields: []FieldChange{{Field: OwnerArgument, From: got, To: want}},
		Remedy: "it is owned by " + ownerText(got, want) + ": choose another name or spec.prefix",
	}
}

// ownerText names the Transport that a mark belongs to.
func ownerText(owner, own string) string {
	switch name := transportOf(owner); {
	case name == "":
		return owner
	case clusterOf(owner) == clusterOf(own):
		return "the Transport " + name
	default:
		return fmt.Sprintf("the Transport %s of another cluster (%s)", name, clusterOf(owner))
	}
}

func clusterOf(owner string) string {
	cluster, _, _ := strings.Cut(owner, "/")
	return cluster
}

func transportOf(owner string) string {
	_, name, _ := strings.Cut(owner, "/")
	return name
}
