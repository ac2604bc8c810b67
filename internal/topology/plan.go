package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"redrive.dev/redrive/internal/compile"
)

// Action is what a step does to its object.
type Action string

// Actions of steps.
const (
	ActionCreate Action = "create"
	ActionUpdate Action = "update"
	ActionDelete Action = "delete"
)

// Step is one write to the broker. Exactly one of the objects is set.
type Step struct {
	Action   Action    `json:"action"`
	Exchange *Exchange `json:"exchange,omitempty"`
	Queue    *Queue    `json:"queue,omitempty"`
	Binding  *Binding  `json:"binding,omitempty"`
	Policy   *Policy   `json:"policy,omitempty"`
	// Fields that an update changes.
	Fields []FieldChange `json:"fields,omitempty"`

	// after is the step without which this one must not be taken.
	after Ref
	// overBridge is true where an exchange is made that messages are waiting for, after a bridge that leads them on until it has its bindings.
	overBridge bool
	// bridges is true for a binding of that bridge.
	bridges bool
	// unproven is true where only a mark says that the queue in question is ours.
	unproven bool
}

// IsUnproven is true where only a mark says that the queue in question is ours. Everyone who may declare a queue can give it one: such steps are the last of
// a plan, only a few are to be taken at once, and nothing relies on them.
func (s Step) IsUnproven() bool { return s.unproven }

// OverBridge is true for the exchange that lanes dead-letter to, where it is made again: the bridge that leads on what expires meanwhile is to be removed
// by a later plan.
func (s Step) OverBridge() bool { return s.overBridge }

// After names the object of the step without which this one must not be taken; zero where there is none.
func (s Step) After() Ref { return s.after }

// Ref names the object of the step.
func (s Step) Ref() Ref {
	switch {
	case s.Exchange != nil:
		return Ref{Kind: KindExchange, Name: s.Exchange.Name}
	case s.Queue != nil:
		return Ref{Kind: KindQueue, Name: s.Queue.Name}
	case s.Binding != nil:
		return s.Binding.ref()
	case s.Policy != nil:
		return Ref{Kind: KindPolicy, Name: s.Policy.Name}
	default:
		return Ref{}
	}
}

// Owner is the owner mark of the exchange or queue of the step, empty where it carries none.
func (s Step) Owner() string {
	switch {
	case s.Exchange != nil:
		return s.Exchange.Arguments.Owner()
	case s.Queue != nil:
		return s.Queue.Arguments.Owner()
	default:
		return ""
	}
}

// String is the line of a plan: "+ queue async.fallback.5s  x-message-ttl=5000, …", "~ policy … message-ttl: 1000 ->
// 2000", "- binding …".
func (s Step) String() string {
	sign := map[Action]string{ActionCreate: "+", ActionUpdate: "~", ActionDelete: "-"}[s.Action]
	ref := s.Ref()
	line := fmt.Sprintf("%s %s %s", sign, ref.Kind, ref.Name)
	if details := s.details(); len(details) > 0 {
		line += "  " + strings.Join(details, ", ")
	}
	return line
}

func (s Step) details() []string {
	if s.Action == ActionUpdate {
		details := make([]string, len(s.Fields))
		for i, field := range s.Fields {
			details[i] = field.String()
		}
		return details
	}
	if s.Action == ActionDelete {
		return nil
	}
	switch {
	case s.Exchange != nil:
		return append([]string{"type=" + s.Exchange.Type}, argumentTexts(s.Exchange.Arguments)...)
	case s.Queue != nil:
		return argumentTexts(s.Queue.Arguments)
	case s.Policy != nil:
		scope := []string{"pattern=" + s.Policy.Pattern, fmt.Sprintf("priority=%d", s.Policy.Priority)}
		return slices.Concat(scope, argumentTexts(s.Policy.Definition))
	default:
		return nil
	}
}

// argumentTexts are sorted, without the owner mark, which is the same on all.
func argumentTexts(arguments Arguments) []string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		if name != OwnerArgument {
			texts = append(texts, name+"="+valueText(arguments[name]))
		}
	}
	return texts
}

// Plan orders what is to be written so that nothing arrives anywhere before its way out exists: policies before what they
// apply to, the way into the failure queue first, then what may make a queue that is there already dead-letter, the
// producers' bindings last. Bindings are added before others are removed: in between a message may be doubled, but none is
// lost. After all else comes what is unproven. Queues and exchanges are not removed here.
func Plan(d Difference) []Step {
	steps := writes(d)
	for _, migration := range d.Migrations {
		steps = append(steps, migration.swaps...)
	}
	steps = append(steps, d.ForeignBindingRestores...)
	var policies []Step
	for _, policy := range d.ExtraPolicies {
		step := Step{Action: ActionDelete, Policy: &policy}
		if policy.ApplyTo == applyToExchanges {
			steps = append(steps, step) // before the binding that it leads to, so that another Transport's takes over
		} else {
			policies = append(policies, step)
		}
	}
	for _, binding := range d.ExtraBindings {
		steps = append(steps, Step{Action: ActionDelete, Binding: &binding})
	}
	steps = append(steps, policies...)
	var last []Step
	steps = slices.DeleteFunc(steps, func(step Step) bool {
		if step.unproven = d.isUnproven(step); step.unproven {
			last = append(last, step)
		}
		return step.unproven
	})
	return append(steps, last...)
}

// Making splits a plan: queues, private exchanges and the policies that pin them come first, and all other steps follow. Nothing
// leads anywhere by the first part, and no producer finds his exchange, so that whoever carries it out may wait before the second.
// Within each the order stays: of two Transports of one prefix that is the first which makes the first exchange.
func Making(plan []Step, prefix string) (first, rest []Step) {
	for _, step := range plan {
		pins := step.Policy != nil && policyStage(*step.Policy, prefix) == stagePins
		made := step.Queue != nil || step.Exchange != nil && step.Exchange.Role != RoleProducers && !step.overBridge
		if step.Action != ActionDelete && (pins && !step.unproven || made) {
			first = append(first, step)
		} else {
			rest = append(rest, step)
		}
	}
	return first, rest
}

// writes orders what is missing or changed by stage; within a stage their own order holds.
func writes(d Difference) []Step {
	missing := d.Missing
	type staged struct {
		stage int
		step  Step
	}
	all := make([]staged, 0, len(d.Changed)+len(missing.Policies)+len(missing.Exchanges)+len(missing.Queues)+len(missing.Bindings))
	for _, change := range d.Changed {
		step := Step{Action: ActionUpdate, Policy: &change.Policy, Fields: change.Fields}
		all = append(all, staged{policyStage(change.Policy, missing.Prefix), step})
	}
	for _, policy := range missing.Policies {
		all = append(all, staged{policyStage(policy, missing.Prefix), Step{Action: ActionCreate, Policy: &policy}})
	}
	bridge := d.returnBridge()
	for _, binding := range bridge {
		all = append(all, staged{stageReturnBridge, Step{Action: ActionCreate, Binding: &binding, bridges: true}})
	}
	for _, exchange := range missing.Exchanges {
		stage, over := exchangeStage(exchange.Role), len(bridge) > 0 && exchange.Role == RoleReturn
		if over {
			stage = stageReturnAgain
		}
		all = append(all, staged{stage, Step{Action: ActionCreate, Exchange: &exchange, overBridge: over}})
	}
	for _, queue := range missing.Queues {
		all = append(all, staged{queueStage(queue.Role), Step{Action: ActionCreate, Queue: &queue}})
	}
	for _, binding := range missing.Bindings {
		all = append(all, staged{bindingStage(binding, missing.Prefix), Step{Action: ActionCreate, Binding: &binding}})
	}
	slices.SortStableFunc(all, func(a, b staged) int { return cmp.Compare(a.stage, b.stage) })
	steps := make([]Step, len(all), len(all)+len(d.ExtraBindings)+len(d.ExtraPolicies))
	for i := range all {
		steps[i] = all[i].step
	}
	return steps
}

// returnBridge has the alternate exchange of a way back that is to be made again lead to the queues, each by its name. What expires in lanes waits while
// the exchange is gone, and comes at once when it is there, before its bindings: without a bridge it would go to the failure queue.
func (d Difference) returnBridge() []Binding {
	returns, alternate := d.Wanted.ExchangeOf(RoleReturn), d.Wanted.ExchangeOf(RoleReturnAlternate)
	isMissing := slices.ContainsFunc(d.Missing.Exchanges, func(exchange Exchange) bool { return exchange.Name == returns })
	if !isMissing || len(d.Missing.QueuesOf(RoleLane)) == len(d.Wanted.QueuesOf(RoleLane)) {
		return nil
	}
	var bridge []Binding
	for _, binding := range d.Missing.Bindings {
		if binding.Source == returns {
			binding.Source = alternate
			bridge = append(bridge, binding)
		}
	}
	return bridge
}

// Stages of creation, from the way out to the way in.
const (
	stagePins = iota
	stageFailedExchange
	stageFailureQueue
	stageFailedBinding
	stageWorkPolicies
	stageReturnAlternate
	stageReturn
	stageLanes
	stageFallback
	stageLaneBindings
	stageWorkQueues
	stageReturnBridge
	stageReturnAgain
	stageReturnBindings
	stageUnrouted
	stageAlternate
	stageUnroutedBinding
	stageExchangePolicy
	stageProducers
	stageProducerBindings
)

func policyStage(policy Policy, prefix string) int {
	switch {
	case policy.ApplyTo == applyToExchanges:
		return stageExchangePolicy
	case IsWorkPolicy(policy.Name, prefix):
		return stageWorkPolicies
	default:
		return stagePins
	}
}

func exchangeStage(role Role) int {
	switch role {
	case RoleFailed:
		return stageFailedExchange
	case RoleReturnAlternate:
		return stageReturnAlternate
	case RoleReturn:
		return stageReturn
	case RoleFallback:
		return stageFallback
	case RoleUnrouted:
		return stageUnrouted
	case RoleAlternate:
		return stageAlternate
	default:
		return stageProducers
	}
}

func queueStage(role Role) int {
	switch role {
	case RoleFailure:
		return stageFailureQueue
	case RoleLane:
		return stageLanes
	default:
		return stageWorkQueues
	}
}

func bindingStage(binding Binding, prefix string) int {
	names := compile.Names{Prefix: prefix}
	switch binding.Source {
	case names.Failed():
		return stageFailedBinding
	case names.Fallback():
		return stageLaneBindings
	case names.Return():
		return stageReturnBindings
	case names.Unrouted():
		return stageUnroutedBinding
	default:
		return stageProducerBindings
	}
}
