package topology

import (
	"fmt"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// Desired returns the objects that a Transport needs, in the order in which they are made. needs are what its policies ask
// for. A spec that RabbitMQ would refuse, or that contradicts itself, gives an *InvalidError that lists every problem.
func Desired(t *v1alpha1.Transport, needs compile.Needs, owner string) (Objects, error) {
	names, lanes := compile.NamesOf(t), needs.LaneKeys()
	objects := Objects{
		Owner:     owner,
		Prefix:    names.Prefix,
		Exchanges: desiredExchanges(t, names, owner),
		Queues:    desiredQueues(t, names, lanes, owner),
		Bindings:  desiredBindings(t, names, lanes, owner),
		Policies:  desiredPolicies(t, needs, names),
	}
	if problems := validate(t, names, objects); len(problems) > 0 {
		return Objects{}, &InvalidError{Problems: problems}
	}
	return objects, nil
}

func desiredExchanges(t *v1alpha1.Transport, names compile.Names, owner string) []Exchange {
	private := func(role Role, name, kind string, alternate string) Exchange {
		arguments := Arguments{OwnerArgument: owner}
		if alternate != "" {
			arguments[argAlternateExchange] = alternate
		}
		return Exchange{Name: name, Type: kind, Durable: true, Arguments: arguments, Role: role}
	}
	exchanges := []Exchange{
		private(RoleFailed, names.Failed(), TypeFanout, ""),
		private(RoleReturnAlternate, names.ReturnAlternate(), TypeDirect, names.Failed()),
		private(RoleReturn, names.Return(), TypeDirect, names.ReturnAlternate()),
		private(RoleFallback, names.Fallback(), TypeHeaders, ""),
	}
	if t.Spec.Exchange != nil {
		exchanges = append(exchanges,
			private(RoleUnrouted, names.Unrouted(), TypeFanout, ""),
			private(RoleAlternate, names.Alternate(), TypeDirect, names.Unrouted()),
			// Without arguments, so that a producer's own plain declaration goes on working.
			Exchange{
				Name: t.Spec.Exchange.Name, Type: strings.ToLower(string(t.Spec.Exchange.Type)), Durable: true,
				Role: RoleProducers,
			},
		)
	}
	return exchanges
}

// desiredQueues has quarantine queues before work queues, since messages go from these to those.
func desiredQueues(t *v1alpha1.Transport, names compile.Names, lanes []compile.LaneKey, owner string) []Queue {
	queues := make([]Queue, 0, 1+len(lanes)+2*len(t.Spec.Queues))
	queues = append(queues, Queue{
		Name: names.FailureQueue(), Type: TypeQuorum, Durable: true, Role: RoleFailure,
		Arguments: Arguments{argQueueType: TypeQuorum, OwnerArgument: owner},
	})
	for _, lane := range lanes {
		queues = append(queues, Queue{
			Name: names.Lane(lane.Key), Type: TypeQuorum, Durable: true, Role: RoleLane,
			Arguments: Arguments{
				argQueueType:          TypeQuorum,
				argMessageTTL:         lane.Delay.Milliseconds(),
				argDeadLetterExchange: names.Return(),
				argDeadLetterStrategy: strategyAtLeastOnce,
				argOverflow:           overflowRejectPublish,
				OwnerArgument:         owner,
			},
		})
	}
	for _, work := range quarantined(t) {
		queues = append(queues, quarantineQueue(work, names, owner))
	}
	for i := range t.Spec.Queues {
		queues = append(queues, workQueue(&t.Spec.Queues[i], names, owner))
	}
	return queues
}

// quarantined are the work queues that have a quarantine queue. In a strictly ordered one each message runs alone anyway.
func quarantined(t *v1alpha1.Transport) []string {
	work := make([]string, 0, len(t.Spec.Queues))
	for i := range t.Spec.Queues {
		if queue := &t.Spec.Queues[i]; !compile.IsStrict(queue) {
			work = append(work, queue.Name)
		}
	}
	return work
}

// quarantineQueue holds what may have brought down a worker, whatever its work queue is: one consumer has one message at a
// time, so that the next crash has one culprit.
func quarantineQueue(work string, names compile.Names, owner string) Queue {
	return Queue{
		Name: names.Quarantine(work), Type: TypeQuorum, Durable: true, Role: RoleQuarantine,
		Arguments: Arguments{
			argQueueType:          TypeQuorum,
			argSingleActive:       true,
			argDeadLetterExchange: names.Failed(),
			argDeadLetterStrategy: strategyAtLeastOnce,
			argOverflow:           overflowRejectPublish,
			argQuarantineOf:       work,
			OwnerArgument:         owner,
		},
	}
}

func workQueue(queue *v1alpha1.Queue, names compile.Names, owner string) Queue {
	if adopts(queue) {
		return Queue{Name: queue.Name, Role: RoleWork, Adopt: true, PreviousNames: queue.PreviousNames}
	}
	kind, strict := queueType(queue), compile.IsStrict(queue)
	arguments := Arguments{argQueueType: kind, argDeadLetterExchange: names.Failed()}
	if kind == TypeQuorum {
		arguments[argDeadLetterStrategy] = strategyAtLeastOnce
		arguments[argOverflow] = overflowRejectPublish
		arguments[OwnerArgument] = owner
	}
	if strict || queue.SingleActiveConsumer != nil && *queue.SingleActiveConsumer {
		arguments[argSingleActive] = true
	}
	return Queue{
		Name: queue.Name, Type: kind, Durable: true, Arguments: arguments, Role: RoleWork, Strict: strict, PreviousNames: queue.PreviousNames,
	}
}

func queueType(queue *v1alpha1.Queue) string {
	if queue.Type != nil && *queue.Type == v1alpha1.QueueClassic {
		return TypeClassic
	}
	return TypeQuorum
}

// desiredBindings are ordered from the way out to the way in: what leads messages into the topology comes last.
func desiredBindings(t *v1alpha1.Transport, names compile.Names, lanes []compile.LaneKey, owner string) []Binding {
	marked := func(source, queue, key string) Binding {
		return Binding{Source: source, Destination: queue, RoutingKey: key, Arguments: Arguments{OwnerArgument: owner}}
	}
	bindings := []Binding{marked(names.Failed(), names.FailureQueue(), "")}
	for _, lane := range lanes {
		bindings = append(bindings, Binding{
			Source: names.Fallback(), Destination: names.Lane(lane.Key),
			// No owner mark: a headers exchange would match on it.
			Arguments: Arguments{argMatch: "all", laneHeader: lane.Key},
		})
	}
	for _, work := range quarantined(t) {
		bindings = append(bindings, marked(names.Return(), names.Quarantine(work), names.Quarantine(work)))
	}
	for i := range t.Spec.Queues {
		name := t.Spec.Queues[i].Name
		bindings = append(bindings, marked(names.Return(), name, name))
	}
	for i := range t.Spec.Queues {
		bindings = append(bindings, formerWays(&t.Spec.Queues[i], names, marked)...)
	}
	if t.Spec.Exchange != nil && t.Spec.Exchange.UnroutedTo != nil {
		bindings = append(bindings, marked(names.Unrouted(), *t.Spec.Exchange.UnroutedTo, ""))
	}
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		for _, key := range ownKeys(t.Spec.Exchange, queue) {
			bindings = append(bindings, marked(t.Spec.Exchange.Name, queue.Name, key))
		}
		for _, foreign := range queue.Bindings {
			for _, key := range distinct(foreign.Keys) {
				bindings = append(bindings, marked(foreign.Exchange, queue.Name, key))
			}
		}
	}
	return bindings
}

// formerWays lead home what left a queue, or its quarantine queue, under a former name. An alternate exchange gets only what is
// unroutable: while a queue of the old name has a way back of its own, its messages come back to it and to no other.
func formerWays(queue *v1alpha1.Queue, names compile.Names, marked func(source, queue, key string) Binding) []Binding {
	quarantine := names.Quarantine(queue.Name)
	if compile.IsStrict(queue) {
		quarantine = queue.Name
	}
	ways := make([]Binding, 0, 2*len(queue.PreviousNames))
	for _, former := range queue.PreviousNames {
		ways = append(ways, marked(names.ReturnAlternate(), queue.Name, former), marked(names.ReturnAlternate(), quarantine, names.Quarantine(former)))
	}
	return ways
}

// ownKeys are the keys that bind a queue to the Transport's own exchange. A fanout exchange binds every queue.
func ownKeys(exchange *v1alpha1.Exchange, queue *v1alpha1.Queue) []string {
	switch {
	case exchange == nil:
		return nil
	case exchange.Type == v1alpha1.ExchangeFanout:
		return []string{""}
	default:
		return distinct(queue.BindingKeys)
	}
}

// distinct is a list without what is in it already. Lists of keys are atomic in the API: as sets, which have no key twice, the API server
// would keep an owner of each key, and 32,768 of them cost it 1.4 s of processor at each write of the Transport.
func distinct(keys []string) []string {
	known := make(map[string]bool, len(keys))
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		again := known[key]
		known[key] = true
		return again
	})
}

// Advice returns what a valid spec may not mean as its author believes.
func Advice(t *v1alpha1.Transport) []Finding {
	var warnings []Finding
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		ref := Ref{Kind: KindQueue, Name: queue.Name}
		unrouted := t.Spec.Exchange != nil && t.Spec.Exchange.UnroutedTo != nil && *t.Spec.Exchange.UnroutedTo == queue.Name
		if len(ownKeys(t.Spec.Exchange, queue)) == 0 && len(queue.Bindings) == 0 && !unrouted {
			warnings = append(warnings, Finding{Object: ref, Message: fmt.Sprintf(
				"spec.queues[%d] has neither bindingKeys nor bindings: it receives only what is published straight to its name", i)})
		}
		if queueType(queue) == TypeClassic && !adopts(queue) {
			warnings = append(warnings, Finding{Object: ref, Message: atMostOnce + "; type Quorum is safe"})
		}
		if len(t.Spec.Workers) > 0 && !slices.ContainsFunc(t.Spec.Workers, consumes(queue.Name)) {
			warnings = append(warnings, Finding{Object: ref, Message: "no worker group consumes this queue: " +
				"add it to spec.workers[].queues, or leave the field out in one group, which then consumes all"})
		}
	}
	return warnings
}

// atMostOnce is what to know about classic queues.
const atMostOnce = "a classic queue dead-letters at most once: messages that expire or are rejected in it are lost if the " +
	"broker stops in that moment"

// consumes tells whether a worker group consumes a queue.
func consumes(queue string) func(v1alpha1.Worker) bool {
	return func(w v1alpha1.Worker) bool { return len(w.Queues) == 0 || slices.Contains(w.Queues, queue) }
}
