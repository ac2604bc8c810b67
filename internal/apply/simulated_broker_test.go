package apply_test

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// simulatedBroker is a vhost of RabbitMQ in memory, as far as the simulation relies on what RabbitMQ does. Its time is that of the process: a test runs
// it within testing/synctest, and calls pass after time has passed. TestSimulatedBroker_DoesWhatRabbitMQDoes compares it with a real one.
type simulatedBroker struct {
	exchanges map[string]topology.Exchange
	queues    map[string]*simulatedQueue
	bindings  []topology.Binding
	policies  map[string]topology.Policy
	patterns  map[string]*regexp.Regexp
	// applied are the policies that apply, by kind, type and name, until one is written.
	applied map[[3]string]topology.Policy
	// ticks are the counts that all leaders have made.
	ticks int64
	// countAfter is when a new queue is first counted.
	countAfter func() time.Duration
	// gone is told of each message that no queue has any more though nobody has acknowledged it.
	gone func(message simulatedMessage, why string)
	// arrived is told of each message that comes into a queue.
	arrived func(queue string, message simulatedMessage)
}

// countInterval is how often RabbitMQ counts a queue: quorum_tick_interval and collect_statistics_interval.
const countInterval = 5 * time.Second

func newSimulatedBroker() *simulatedBroker {
	return &simulatedBroker{
		exchanges: map[string]topology.Exchange{
			"amq.direct": {Name: "amq.direct", Type: topology.TypeDirect, Durable: true},
			"amq.topic":  {Name: "amq.topic", Type: topology.TypeTopic, Durable: true},
		},
		queues: map[string]*simulatedQueue{}, policies: map[string]topology.Policy{}, patterns: map[string]*regexp.Regexp{},
		applied:    map[[3]string]topology.Policy{},
		countAfter: func() time.Duration { return countInterval },
		gone:       func(simulatedMessage, string) {}, arrived: func(string, simulatedMessage) {},
	}
}

// simulatedMessage is a message as a queue has it, with the headers that workers set.
type simulatedMessage struct {
	id  int
	key string
	// lane is the header redrive-lane, and due is redrive-not-before.
	lane string
	due  time.Time
	// failures were handled, and stubborn is how many there will be.
	failures, stubborn int
	// crashed is true where a quarantine pod ended with it.
	crashed bool
	// reason is the worker's own for a failed message, and death is that of the broker.
	reason, death string
	// parked is when a worker last published it.
	parked time.Time

	// came is when it came into its queue, and returns is how often it came back there unsettled.
	came    time.Time
	returns int64
}

// simulatedQueue is a queue with its messages. What the management API shows is what was counted last.
type simulatedQueue struct {
	topology.Queue
	ready   []simulatedMessage
	unacked []*simulatedDelivery
	// stranded are expired messages that have no way, and that a queue which dead-letters at least once keeps.
	stranded  []simulatedMessage
	consumers []string
	published int64
	acked     int64

	leader string
	// counted is what is shown, and shown and shownAcked the numbers of published and acknowledged messages, which come from other statistics.
	counted    topology.Evidence
	shown      int64
	shownAcked int64
	waiting    int64
	handed     int64
	nextCount  time.Time
	nextStats  time.Time
	// hidden is true while no node has a count of it.
	hidden bool
	made   time.Time
}

// simulatedDelivery is a message that a consumer has and has not settled.
type simulatedDelivery struct {
	simulatedMessage

	queue    *simulatedQueue
	consumer string
}

func (q *simulatedQueue) quorum() bool { return q.Type == topology.TypeQuorum }
func (q *simulatedQueue) single() bool { return q.Arguments["x-single-active-consumer"] == true }

// lead makes a node the leader of a queue: what it shows until it counts is from a time when the queue was empty.
func (b *simulatedBroker) lead(q *simulatedQueue, node string) {
	if !q.quorum() || node == q.leader || q.counted.Messages == nil {
		return
	}
	b.ticks++
	q.leader, q.nextCount = node, time.Now().Add(countInterval)
	q.counted = topology.Evidence{Messages: new(int64), Leader: node, Tick: b.ticks}
}

func (q *simulatedQueue) depth() int64 {
	return int64(len(q.ready) + len(q.unacked) + len(q.stranded))
}

// messages are all that are in the queue.
func (q *simulatedQueue) messages() []simulatedMessage {
	all := slices.Concat(q.ready, q.stranded)
	for _, delivery := range q.unacked {
		all = append(all, delivery.simulatedMessage)
	}
	return all
}

// policy is the one that applies to an object: that of the highest priority of those that match. Of equals RabbitMQ takes any.
func (b *simulatedBroker) policy(kind topology.Kind, name, queueType string) topology.Policy {
	id := [3]string{string(kind), queueType, name}
	best, known := b.applied[id]
	if known {
		return best
	}
	for _, id := range slices.Sorted(maps.Keys(b.policies)) {
		policy := b.policies[id]
		scopes := []string{"all", string(kind) + "s", queueType + "_queues"}
		if slices.Contains(scopes, policy.ApplyTo) && b.pattern(policy.Pattern).MatchString(name) && (best.Name == "" || policy.Priority > best.Priority) {
			best = policy
		}
	}
	b.applied[id] = best
	return best
}

func (b *simulatedBroker) pattern(text string) *regexp.Regexp {
	if b.patterns[text] == nil {
		b.patterns[text] = regexp.MustCompile(text)
	}
	return b.patterns[text]
}

// setting is that of a queue's argument, or else of the policy that applies.
func (b *simulatedBroker) setting(q *simulatedQueue, name string) any {
	if value, set := q.Arguments["x-"+name]; set {
		return value
	}
	return b.policy(topology.KindQueue, q.Name, q.Type).Definition[name]
}

// number is a setting of a queue that is the smaller one of argument and policy; ok is false where neither sets it.
func (b *simulatedBroker) number(q *simulatedQueue, name string) (least int64, ok bool) {
	for _, value := range []any{q.Arguments["x-"+name], b.policy(topology.KindQueue, q.Name, q.Type).Definition[name]} {
		if value == nil {
			continue
		}
		var number int64
		_, _ = fmt.Sscan(fmt.Sprint(value), &number)
		if !ok || number < least {
			least, ok = number, true
		}
	}
	return least, ok
}

func (b *simulatedBroker) declareExchange(want topology.Exchange) (existed bool, err error) {
	if got, exists := b.exchanges[want.Name]; exists {
		if got.Type != want.Type || got.Arguments["alternate-exchange"] != want.Arguments["alternate-exchange"] {
			return false, broker.ErrConflict
		}
		return true, nil
	}
	want.Role = ""
	b.exchanges[want.Name] = want
	return false, nil
}

// declared are the arguments by which RabbitMQ tells a declaration of a queue from the queue that is there.
func declared() []string {
	return []string{
		"x-queue-type", "x-message-ttl", "x-expires", "x-max-length", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-dead-letter-strategy", "x-overflow", "x-single-active-consumer", "x-delivery-limit",
	}
}

func (b *simulatedBroker) declareQueue(want topology.Queue) (existed bool, err error) {
	if got := b.queues[want.Name]; got != nil {
		for _, argument := range declared() {
			if fmt.Sprint(got.Arguments[argument]) != fmt.Sprint(want.Arguments[argument]) {
				return false, broker.ErrConflict
			}
		}
		return true, nil
	}
	now := time.Now()
	b.queues[want.Name] = &simulatedQueue{
		Queue:  topology.Queue{Name: want.Name, Type: want.Type, Durable: true, Arguments: want.Arguments},
		leader: "rabbit@a", made: now, nextCount: now.Add(b.countAfter()), nextStats: now.Add(b.countAfter()),
	}
	return false, nil
}

func sameBinding(a, b topology.Binding) bool {
	text := func(b topology.Binding) string {
		return fmt.Sprint(b.Source, "\x00", b.Destination, "\x00", b.ToExchange, b.RoutingKey, "\x00", map[string]any(b.Arguments))
	}
	return a.Source == b.Source && a.Destination == b.Destination && text(a) == text(b)
}

func (b *simulatedBroker) bind(binding topology.Binding) error {
	_, from := b.exchanges[binding.Source]
	_, toExchange := b.exchanges[binding.Destination]
	if toQueue := b.queues[binding.Destination] != nil; !from || binding.ToExchange && !toExchange || !binding.ToExchange && !toQueue {
		return broker.ErrNotFound
	}
	if !slices.ContainsFunc(b.bindings, func(have topology.Binding) bool { return sameBinding(have, binding) }) {
		binding.PropertiesKey = cmp.Or(binding.RoutingKey, "~")
		b.bindings = append(slices.Clip(b.bindings), binding)
	}
	return nil
}

func (b *simulatedBroker) unbind(binding topology.Binding) {
	b.dropBindings(func(have topology.Binding) bool { return sameBinding(have, binding) })
}

// dropBindings leaves the list that a snapshot shares as it is.
func (b *simulatedBroker) dropBindings(such func(topology.Binding) bool) {
	b.bindings = slices.DeleteFunc(slices.Clone(b.bindings), such)
}

// deleteQueue deletes a queue with what is in it. A quorum queue cannot be deleted on the condition that it is empty.
func (b *simulatedBroker) deleteQueue(name string, ifEmpty, ifUnused bool) error {
	q := b.queues[name]
	switch {
	case q == nil:
		return nil
	case ifEmpty && (q.quorum() || q.depth() > 0), ifUnused && len(q.consumers) > 0:
		return broker.ErrConflict
	}
	delete(b.queues, name)
	b.dropBindings(func(have topology.Binding) bool { return !have.ToExchange && have.Destination == name })
	for _, message := range q.messages() {
		b.gone(message, "queue "+name+" was deleted with it")
	}
	return nil
}

// deleteExchange refuses, as the client does, where something is bound to it.
func (b *simulatedBroker) deleteExchange(name string) error {
	if slices.ContainsFunc(b.bindings, func(have topology.Binding) bool {
		return have.Source == name || have.ToExchange && have.Destination == name
	}) {
		return broker.ErrConflict
	}
	delete(b.exchanges, name)
	return nil
}

// route gives the queues to which an exchange leads a message, itself or by its alternate exchange; none where the exchange does not exist.
func (b *simulatedBroker) route(exchange string, message simulatedMessage) []string {
	return b.routeBeyond(exchange, message, map[string]bool{})
}

func (b *simulatedBroker) routeBeyond(exchange string, message simulatedMessage, seen map[string]bool) (queues []string) {
	if exchange == "" {
		if b.queues[message.key] != nil {
			return []string{message.key}
		}
		return nil
	}
	from, exists := b.exchanges[exchange]
	if !exists || seen[exchange] {
		return nil
	}
	seen[exchange] = true
	bound := false
	for _, binding := range b.bindings {
		if binding.Source != exchange || !matches(from.Type, binding, message) {
			continue
		}
		bound = true
		found := []string{binding.Destination}
		if binding.ToExchange {
			found = b.routeBeyond(binding.Destination, message, seen)
		}
		for _, queue := range found {
			if !slices.Contains(queues, queue) {
				queues = append(queues, queue)
			}
		}
	}
	if bound {
		return queues
	}
	alternate, _ := from.Arguments["alternate-exchange"].(string)
	if alternate == "" {
		alternate, _ = b.policy(topology.KindExchange, exchange, "").Definition["alternate-exchange"].(string)
	}
	if alternate == "" {
		return nil
	}
	return b.routeBeyond(alternate, message, seen)
}

// matches tells whether a binding takes a message. Patterns of topics are whole words here, but for one that takes all.
func matches(exchangeType string, binding topology.Binding, message simulatedMessage) bool {
	switch exchangeType {
	case topology.TypeFanout:
		return true
	case topology.TypeHeaders:
		lane, has := binding.Arguments["redrive-lane"]
		return has && lane == message.lane
	case topology.TypeTopic:
		return binding.RoutingKey == message.key || binding.RoutingKey == "#"
	default:
		return binding.RoutingKey == message.key
	}
}

// publish gives the queues that have the message now; none where it was unroutable.
func (b *simulatedBroker) publish(exchange string, message simulatedMessage) []string {
	queues := b.route(exchange, message)
	for _, name := range queues {
		b.queues[name].published++
		b.enqueue(b.queues[name], message)
	}
	return queues
}

func (b *simulatedBroker) enqueue(q *simulatedQueue, message simulatedMessage) {
	message.came, message.returns = time.Now(), 0
	q.ready = append(q.ready, message)
	b.arrived(q.Name, message)
}

// consume registers a consumer; that of a queue with a single active consumer gets something when those before it are gone.
func (b *simulatedBroker) consume(queue, consumer string) bool {
	q := b.queues[queue]
	if q == nil {
		return false
	}
	if !slices.Contains(q.consumers, consumer) {
		q.consumers = append(q.consumers, consumer)
	}
	return true
}

func (b *simulatedBroker) cancel(queue, consumer string) {
	if q := b.queues[queue]; q != nil {
		q.consumers = slices.DeleteFunc(q.consumers, func(c string) bool { return c == consumer })
	}
}

// deliver gives a consumer the next message; nil where there is none for it.
func (b *simulatedBroker) deliver(queue, consumer string) *simulatedDelivery {
	q := b.queues[queue]
	if q == nil || len(q.ready) == 0 || !slices.Contains(q.consumers, consumer) || q.single() && q.consumers[0] != consumer {
		return nil
	}
	delivery := &simulatedDelivery{simulatedMessage: q.ready[0], queue: q, consumer: consumer}
	q.ready = q.ready[1:]
	q.unacked = append(q.unacked, delivery)
	return delivery
}

// live is false where the queue of a delivery, or its session, is gone.
func (b *simulatedBroker) live(delivery *simulatedDelivery) bool {
	return b.queues[delivery.queue.Name] == delivery.queue && slices.Contains(delivery.queue.unacked, delivery)
}

func (b *simulatedBroker) ack(delivery *simulatedDelivery) {
	delivery.queue.acked++
	delivery.queue.unacked = slices.DeleteFunc(delivery.queue.unacked, func(d *simulatedDelivery) bool { return d == delivery })
}

// requeue gives a message back to its place. A quorum queue counts that, and dead-letters it beyond its limit.
func (b *simulatedBroker) requeue(delivery *simulatedDelivery) {
	if !b.live(delivery) {
		return
	}
	b.ack(delivery)
	message, q := delivery.simulatedMessage, delivery.queue
	q.acked--
	message.returns++
	if limit, limited := b.number(q, "delivery-limit"); q.quorum() && limited && message.returns > limit {
		b.deadLetter(q, message, "delivery_limit")
		return
	}
	at, _ := slices.BinarySearchFunc(q.ready, message, func(have, m simulatedMessage) int {
		return cmp.Or(have.came.Compare(m.came), cmp.Compare(have.id, m.id))
	})
	q.ready = slices.Insert(slices.Clone(q.ready), at, message)
}

// reject dead-letters a message.
func (b *simulatedBroker) reject(delivery *simulatedDelivery) {
	b.ack(delivery)
	b.deadLetter(delivery.queue, delivery.simulatedMessage, "rejected")
}

// cut ends the connection of a consumer: what it had comes back to the queues.
func (b *simulatedBroker) cut(consumer string) {
	for _, name := range slices.Sorted(maps.Keys(b.queues)) {
		q := b.queues[name]
		b.cancel(name, consumer)
		for _, delivery := range slices.Backward(slices.Clone(q.unacked)) {
			if delivery.consumer == consumer {
				b.requeue(delivery)
			}
		}
	}
}

// deadLetter leads a message on. At least once it stays where it has no way; otherwise it is gone then.
func (b *simulatedBroker) deadLetter(q *simulatedQueue, message simulatedMessage, why string) {
	exchange, has := b.setting(q, "dead-letter-exchange").(string)
	if !has {
		b.gone(message, why+" in "+q.Name+", which has no dead-letter exchange")
		return
	}
	if key, ok := b.setting(q, "dead-letter-routing-key").(string); ok {
		message.key = key
	}
	message.death = why + " in " + q.Name
	queues := b.route(exchange, message)
	surely := q.quorum() && b.setting(q, "dead-letter-strategy") == "at-least-once" && b.setting(q, "overflow") == "reject-publish"
	switch {
	case len(queues) > 0:
		for _, name := range queues {
			b.enqueue(b.queues[name], message)
		}
	case surely:
		q.stranded = append(q.stranded, message)
	default:
		b.gone(message, why+" in "+q.Name+", whose dead-letter exchange "+exchange+" leads nowhere")
	}
}

// pass does what time brings about: messages expire, and queues are counted.
func (b *simulatedBroker) pass() {
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(b.queues)) {
		q := b.queues[name]
		b.expire(q, now)
		if !q.nextStats.After(now) {
			q.shown, q.shownAcked, q.nextStats = q.published, q.acked, now.Add(countInterval)
		}
		if q.nextCount.After(now) {
			continue
		}
		b.ticks++
		n := q.depth()
		q.counted, q.nextCount = topology.Evidence{Messages: &n}, now.Add(countInterval)
		if q.quorum() {
			q.counted.Leader, q.counted.Tick = q.leader, b.ticks
		}
		q.waiting, q.handed = int64(len(q.ready)), int64(len(q.unacked))
	}
}

func (b *simulatedBroker) expire(q *simulatedQueue, now time.Time) {
	if len(q.ready)+len(q.stranded) == 0 {
		return
	}
	stranded := q.stranded
	q.stranded = nil
	for _, message := range stranded {
		b.deadLetter(q, message, "expired")
	}
	ttl, limited := b.number(q, "message-ttl")
	for limited && len(q.ready) > 0 && !q.ready[0].came.Add(time.Duration(ttl)*time.Millisecond).After(now) {
		message := q.ready[0]
		q.ready = q.ready[1:]
		b.deadLetter(q, message, "expired")
	}
}

// state is what the management API shows of a queue.
func (b *simulatedBroker) state(q *simulatedQueue) topology.QueueState {
	state := topology.QueueState{
		Queue: q.Queue, Evidence: q.counted, Ready: q.waiting, Unacked: q.handed, Consumers: int64(len(q.consumers)),
		MessagesDLX: int64(len(q.stranded)),
	}
	policy := b.policy(topology.KindQueue, q.Name, q.Type)
	state.Policy, state.EffectiveDefinition, state.Published, state.Acked = policy.Name, policy.Definition, q.shown, q.shownAcked
	if q.hidden {
		state.Evidence = topology.Evidence{}
	}
	return state
}

// observe is a snapshot of the vhost.
func (b *simulatedBroker) observe() topology.Observed {
	observed := topology.Observed{
		Identity: topology.Identity{Cluster: "c", VHost: "/"}, Exchanges: map[string]topology.ExchangeState{},
		Queues: map[string]topology.QueueState{}, Bindings: slices.Clone(b.bindings), Policies: maps.Clone(b.policies),
	}
	for name, exchange := range b.exchanges {
		observed.Exchanges[name] = topology.ExchangeState{Exchange: exchange, Policy: b.policy(topology.KindExchange, name, "").Name}
	}
	for name, q := range b.queues {
		observed.Queues[name] = b.state(q)
	}
	return observed
}

// apply carries out one step as broker.Client.Apply does.
func (b *simulatedBroker) apply(step topology.Step) (existed bool, err error) {
	if step.Action == topology.ActionDelete {
		switch {
		case step.Binding != nil && step.Binding.PropertiesKey != "":
			b.unbind(*step.Binding)
		case step.Policy != nil:
			delete(b.policies, step.Policy.Name)
			clear(b.applied)
		default:
			return false, fmt.Errorf("%s is not a step by itself", step)
		}
		return false, nil
	}
	switch {
	case step.Exchange != nil:
		return b.declareExchange(*step.Exchange)
	case step.Queue != nil:
		return b.declareQueue(*step.Queue)
	case step.Binding != nil:
		return false, b.bind(*step.Binding)
	default:
		policy := *step.Policy
		policy.Definition = maps.Clone(policy.Definition)
		b.policies[policy.Name] = policy
		clear(b.applied)
		return false, nil
	}
}

// bindingsTo are those that lead into a queue.
func (b *simulatedBroker) bindingsTo(queue string) (found []topology.Binding) {
	for _, binding := range b.bindings {
		if !binding.ToExchange && binding.Destination == queue {
			found = append(found, binding)
		}
	}
	return found
}

// lacks is the snapshot without one object that is there, as a node that has just started may give it; the client believes it only where nothing of
// Redrive's says otherwise.
func (b *simulatedBroker) lacks(observed topology.Observed, pick func(n int) int) (topology.Observed, string, error) {
	names := slices.Sorted(maps.Keys(observed.Queues))
	switch kind := pick(4); {
	case kind == 0 && len(names) > 0:
		name := names[pick(len(names))]
		if slices.ContainsFunc(observed.BindingsTo(name), topology.IsMarked) {
			return observed, "queue " + name, fmt.Errorf("the list lacks queue %s: %w", name, broker.ErrGarbled)
		}
		delete(observed.Queues, name)
		return observed, "queue " + name, nil
	case kind == 1 && len(observed.Bindings) > 0:
		at := pick(len(observed.Bindings))
		name := observed.Bindings[at].Name()
		observed.Bindings = slices.Delete(observed.Bindings, at, at+1)
		return observed, "binding " + name, nil
	case kind == 2 && len(observed.Policies) > 0:
		name := slices.Sorted(maps.Keys(observed.Policies))[pick(len(observed.Policies))]
		delete(observed.Policies, name)
		return observed, "policy " + name, nil
	case kind == 3 && len(observed.Exchanges) > 2:
		name := slices.Sorted(maps.Keys(observed.Exchanges))[pick(len(observed.Exchanges))]
		if strings.HasPrefix(name, "amq.") {
			return observed, "", nil
		}
		delete(observed.Exchanges, name)
		return observed, "exchange " + name, nil
	}
	return observed, "", nil
}

const failureQueue = "async.failed"

// failureNames are the names that the failure queue may have.
func failureNames() []string { return []string{failureQueue, "bad", "worse"} }

func isFailure(name string) bool { return slices.Contains(failureNames(), name) }
