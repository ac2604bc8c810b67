package topology

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// maxName is the length in bytes of names and routing keys that AMQP allows.
const maxName = 255

// Problem is one reason why a spec cannot be carried out.
type Problem struct {
	// Field is the path in the resource, such as "spec.queues[2].name".
	Field string `json:"field"`
	// Message says what is wrong and what would be right.
	Message string `json:"message"`
}

// InvalidError says that a spec contradicts itself or would be refused by RabbitMQ.
type InvalidError struct {
	// Problems in the order of the spec; never empty.
	Problems []Problem
}

// Error lists every problem.
func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Problems))
	for i, problem := range e.Problems {
		texts[i] = problem.Field + ": " + problem.Message
	}
	return strings.Join(texts, "; ")
}

// validator collects problems.
type validator struct {
	transport *v1alpha1.Transport
	names     compile.Names
	problems  []Problem
}

func validate(t *v1alpha1.Transport, names compile.Names, objects Objects) []Problem {
	v := &validator{transport: t, names: names}
	v.exchange()
	v.prefix()
	for i := range t.Spec.Queues {
		v.queue(i)
	}
	v.failure()
	v.references()
	v.composed(objects)
	return v.problems
}

func (v *validator) addf(field, format string, arguments ...any) {
	v.problems = append(v.problems, Problem{Field: field, Message: fmt.Sprintf(format, arguments...)})
}

func (v *validator) exchange() {
	exchange := v.transport.Spec.Exchange
	if exchange == nil {
		return
	}
	v.name("spec.exchange.name", exchange.Name)
	switch exchange.Type {
	case v1alpha1.ExchangeDirect, v1alpha1.ExchangeTopic, v1alpha1.ExchangeFanout:
	default:
		v.addf("spec.exchange.type", "%q must be Direct, Topic or Fanout", exchange.Type)
	}
}

func (v *validator) prefix() {
	if v.transport.Spec.Prefix != nil {
		v.name("spec.prefix", *v.transport.Spec.Prefix)
	}
}

const lockName = "%q is the queue of whoever looks at the failure queue: choose another name"

func (v *validator) failure() {
	failure := v.transport.Spec.Failure
	if failure == nil || failure.Queue == nil {
		return
	}
	v.name("spec.failure.queue", *failure.Queue)
	switch name := *failure.Queue; {
	case strings.HasPrefix(name, v.names.LanePrefix()):
		v.addf("spec.failure.queue", "%q: names that begin with %q belong to the fallback queues", name, v.names.LanePrefix())
	case name == v.names.FailureLock():
		v.addf("spec.failure.queue", lockName, name)
	}
}

func (v *validator) queue(i int) {
	queue := &v.transport.Spec.Queues[i]
	field := fmt.Sprintf("spec.queues[%d]", i)
	v.name(field+".name", queue.Name)
	v.listable(field+".name", queue.Name)
	first := slices.IndexFunc(v.transport.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == queue.Name })
	switch {
	case first != i:
		v.addf(field+".name", "%q is also the name of spec.queues[%d]", queue.Name, first)
	case queue.Name == v.names.FailureQueue():
		v.addf(field+".name", "%q is the failure queue: choose another name, or set spec.failure.queue", queue.Name)
	case strings.HasPrefix(queue.Name, v.names.LanePrefix()):
		v.addf(field+".name", "%q: names that begin with %q belong to the fallback queues", queue.Name, v.names.LanePrefix())
	case strings.HasPrefix(queue.Name, v.names.ReplayPrefix()):
		v.addf(field+".name", "%q: names that begin with %q belong to the queues of replays", queue.Name, v.names.ReplayPrefix())
	case queue.Name == v.names.FailureLock():
		v.addf(field+".name", lockName, queue.Name)
	default:
		v.companions(field+".name", queue)
	}
	v.previousNames(field+".previousNames", queue)
	v.bindingKeys(field+".bindingKeys", queue)
	for j, foreign := range queue.Bindings {
		v.binding(fmt.Sprintf("%s.bindings[%d]", field, j), foreign)
	}
}

// previousNames checks that a former name leads to one queue only, and is none that Redrive gives a queue beside another one.
func (v *validator) previousNames(field string, queue *v1alpha1.Queue) {
	for i, name := range queue.PreviousNames {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.name(at, name)
		v.listable(at, name)
		for j := range v.transport.Spec.Queues {
			switch other := &v.transport.Spec.Queues[j]; {
			case other.Name == name:
				v.addf(at, "%q is the name of spec.queues[%d]: a former name is one that no queue has any more", name, j)
			case other.Name != queue.Name && slices.Contains(other.PreviousNames, name):
				v.addf(at, "%q is also in spec.queues[%d].previousNames: what left it can come back to one queue only", name, j)
			case !adopts(other) && name == v.names.StandinQueue(other.Name):
				v.addf(at, "%q would stand in for spec.queues[%d] while that is migrated: take it out, or rename that queue", name, j)
			case !compile.IsStrict(other) && name == v.names.Quarantine(other.Name):
				v.addf(at, "%q is the quarantine queue of spec.queues[%d]: take it out, or rename that queue", name, j)
			}
		}
	}
}

// companions checks the names of queues that are made of that of a work queue. One problem is enough: the remedy is the same.
func (v *validator) companions(field string, queue *v1alpha1.Queue) {
	problems := len(v.problems)
	if !compile.IsStrict(queue) {
		v.companion(field, v.names.Quarantine(queue.Name), "%q would be its quarantine queue, and ")
	}
	if !adopts(queue) && len(v.problems) == problems {
		v.companion(field, v.names.StandinQueue(queue.Name), "%q would stand in for it while it is migrated, and ")
	}
}

// companion checks the name of one of them; what says what it is for.
func (v *validator) companion(field, name, what string) {
	switch also := slices.IndexFunc(v.transport.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == name }); {
	case also >= 0:
		v.addf(field, what+"is the name of spec.queues[%d]: rename one of the two", name, also)
	case name == v.names.FailureQueue():
		v.addf(field, what+"is the failure queue: choose another name, or set spec.failure.queue", name)
	case strings.HasPrefix(name, v.names.LanePrefix()):
		v.addf(field, what+"names that begin with %q belong to the fallback queues: choose another name", name, v.names.LanePrefix())
	}
	v.composedLength(field, name)
}

func (v *validator) bindingKeys(field string, queue *v1alpha1.Queue) {
	exchange := v.transport.Spec.Exchange
	if len(queue.BindingKeys) > 0 {
		switch {
		case exchange == nil:
			v.addf(field, "the Transport has no exchange of its own: use bindings, or set spec.exchange")
		case exchange.Type == v1alpha1.ExchangeFanout:
			v.addf(field, "a Fanout exchange binds every queue and takes no keys")
		}
	}
	for i, key := range queue.BindingKeys {
		v.key(fmt.Sprintf("%s[%d]", field, i), key)
	}
}

func (v *validator) binding(field string, foreign v1alpha1.Binding) {
	v.text(field+".exchange", foreign.Exchange)
	own := []string{
		v.names.Fallback(), v.names.Return(), v.names.ReturnAlternate(), v.names.Failed(), v.names.Alternate(), v.names.Unrouted(),
	}
	switch exchange := v.transport.Spec.Exchange; {
	case exchange != nil && foreign.Exchange == exchange.Name:
		v.addf(field+".exchange", "%q is the Transport's own exchange: use bindingKeys", foreign.Exchange)
	case foreign.Exchange == "":
		v.addf(field+".exchange", "every queue is bound to the default exchange by its name already")
	case slices.Contains(own, foreign.Exchange):
		v.addf(field+".exchange", "%q is one of the Transport's private exchanges", foreign.Exchange)
	}
	for i, key := range foreign.Keys {
		v.key(fmt.Sprintf("%s.keys[%d]", field, i), key)
	}
}

// references checks what one list of the spec says about another.
func (v *validator) references() {
	known := make(map[string]bool, len(v.transport.Spec.Queues))
	for i := range v.transport.Spec.Queues {
		known[v.transport.Spec.Queues[i].Name] = true
	}
	if exchange := v.transport.Spec.Exchange; exchange != nil && exchange.UnroutedTo != nil && !known[*exchange.UnroutedTo] {
		v.addf("spec.exchange.unroutedTo", "%q is not in spec.queues", *exchange.UnroutedTo)
	}
	for i := range v.transport.Spec.Workers {
		for j, queue := range v.transport.Spec.Workers[i].Queues {
			if !known[queue] {
				v.addf(fmt.Sprintf("spec.workers[%d].queues[%d]", i, j), "%q is not in spec.queues", queue)
			}
		}
	}
}

// composed checks the names that no field holds as a whole, and whether two of them meet.
func (v *validator) composed(objects Objects) {
	field := v.prefixField()
	seen := map[string]bool{}
	for _, exchange := range objects.Exchanges {
		if seen[exchange.Name] {
			v.addf(field, "two exchanges would have the name %q: set spec.prefix to another value", exchange.Name)
		}
		seen[exchange.Name] = true
		v.composedLength(field, exchange.Name)
	}
	for _, queue := range objects.Queues {
		if queue.Role == RoleLane {
			v.composedLength(field, queue.Name)
		}
	}
}

func (v *validator) composedLength(field, name string) {
	if len(name) > maxName {
		v.addf(field, "the name %q made from it has %d bytes; RabbitMQ allows %d", name, len(name), maxName)
	}
}

// prefixField is the field that the prefix comes from.
func (v *validator) prefixField() string {
	switch {
	case v.transport.Spec.Prefix != nil:
		return "spec.prefix"
	case v.transport.Spec.Exchange != nil:
		return "spec.exchange.name"
	default:
		return "metadata.name"
	}
}

// name checks the name of an object that we make.
func (v *validator) name(field, name string) {
	if name == "" {
		v.addf(field, "is empty")
	}
	if name == "." || name == ".." {
		v.addf(field, "%q: the management API cannot address this name", name)
	}
	if strings.HasPrefix(name, "amq.") {
		v.addf(field, "%q: names that begin with \"amq.\" belong to RabbitMQ", name)
	}
	v.text(field, name)
}

// key checks a key of a binding.
func (v *validator) key(field, key string) {
	v.text(field, key)
	v.listable(field, key)
}

// listable checks a key by which Redrive binds, as it does by the names of queues, too.
func (v *validator) listable(field, key string) {
	if key == "null" {
		v.addf(field, "%q: the management API can bind by this key and not unbind", key)
	}
	if !isListable(key) {
		v.addf(field, "%q: RabbitMQ cannot list a binding of Redrive's whose key has a ~ beside other characters, and then no other one of the vhost", key)
	}
}

// isListable is false for keys of bindings with arguments over which RabbitMQ ends each list of bindings (docs/upstream/rabbitmq-tilde.md).
func isListable(key string) bool { return key == "~" || !strings.Contains(key, "~") }

// text checks what travels as an AMQP short string.
func (v *validator) text(field, text string) {
	switch {
	case !utf8.ValidString(text):
		v.addf(field, "is not valid UTF-8")
	case strings.ContainsFunc(text, unicode.IsControl):
		v.addf(field, "%q holds a control character", text)
	}
	if len(text) > maxName {
		v.addf(field, "has %d bytes; RabbitMQ allows %d", len(text), maxName)
	}
}
