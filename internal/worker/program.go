package worker

import (
	"fmt"
	"maps"
	"reflect"
	"sync/atomic"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// program is a configuration made ready to run. It does not change; a reload puts another one in its place, and a message
// is settled by the program it was handled with.
type program struct {
	config   compile.Config
	hash     string
	policies map[string]*retry.Policy
	// rules choose a policy by message; chosen are those policies.
	rules  *retry.Rules
	chosen []*retry.Policy
	// queues by the names that they are consumed by, and former ones by those by which programs before this one have consumed them.
	queues   map[string]*compile.Queue
	former   map[string]*compile.Queue
	consumed []amqp.Subscription
	handler  *shared
	// isForeign is true where the handler is for another pod than the worker's.
	isForeign  bool
	protection protection
	// hasJournal is true where a journal knows which message is in work.
	hasJournal bool
	stages     stages
	// users are the messages that are handled with it.
	users atomic.Int64
}

// newProgram prepares a configuration. From the program before it, it takes over what has not changed.
func (w *Worker) newProgram(config compile.Config, before *program) (*program, error) {
	data, err := compile.Encode(config)
	if err != nil {
		return nil, fmt.Errorf("hash the configuration: %w", err)
	}
	p := &program{
		config:     config,
		hash:       compile.Hash(data),
		policies:   make(map[string]*retry.Policy, len(config.Policies)),
		queues:     make(map[string]*compile.Queue, len(config.Queues)),
		hasJournal: w.options.Journal != nil,
		former:     map[string]*compile.Queue{},
	}
	if err := p.compile(); err != nil {
		return nil, err
	}
	w.chooseHandler(p, before)
	if p.hasJournal {
		p.config.Concurrency = 1 // a quarantined message runs alone
	}
	p.consume()
	p.follow(before)
	if err := w.takeHandler(p, before); err != nil {
		return nil, err
	}
	last := &protection{}
	if before != nil {
		last = &before.protection
	}
	// Last, for it changes what is in force.
	if p.protection, err = newProtection(&p.config, last, w.breakerChanged, w.options.Now()); err != nil {
		if before == nil || p.handler != before.handler {
			p.handler.release()
		}
		return nil, err
	}
	p.stages = stagesOf(&p.config, p.hasJournal)
	return p, nil
}

// chooseHandler puts the handler that the pod was made for, its concurrency and its timeout, in the place of the configuration's. While pods for another one
// roll out, a command may not be in the image of those from before, a URL not served beside them, and a Secret not mounted, or be that of the partner before.
func (w *Worker) chooseHandler(p, before *program) {
	own, ok := p.config.HandlerMadeFor(w.options.MadeFor)
	if next := p.config.MadeFor; next != "" && w.options.MadeFor != "" && w.options.MadeFor != next {
		w.options.Log.Info("the worker keeps the handler that its pod was made for, and other pods get the next one", "madeFor", w.options.MadeFor, "next", next)
	}
	switch {
	case ok:
		p.config.Handler, p.config.Concurrency = own.Handler, own.Concurrency
	case before != nil:
		p.config.Handler, p.config.Concurrency, p.isForeign = before.config.Handler, before.config.Concurrency, before.isForeign
	default:
		p.isForeign = true
	}
	if most := w.options.MaxTimeout; most > 0 {
		p.config.Timeout.Duration.Duration = min(p.config.Timeout.Duration.Duration, most)
	}
}

// takeHandler continues the handler before, or makes a new one.
func (w *Worker) takeHandler(p, before *program) error {
	if before != nil && before.config.Concurrency == p.config.Concurrency && before.isForeign == p.isForeign &&
		reflect.DeepEqual(before.config.Handler, p.config.Handler) {
		p.handler = before.handler
		return nil
	}
	if p.isForeign {
		p.handler = share(w.awaitConfiguration(p.config.MadeFor), nil)
		return nil
	}
	made, err := w.options.Handlers(p.config.Handler, p.config.Concurrency)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	p.handler = share(made, func(err error) { w.options.Log.Warn("the handler did not close well", "error", err) })
	return nil
}

// compile makes the policies and the rules that choose among them. What policies share is compiled once.
func (p *program) compile() error {
	compiler, err := retry.NewCompiler()
	if err != nil {
		return fmt.Errorf("policies: %w", err)
	}
	for name, spec := range p.config.Policies {
		if p.policies[name], err = compiler.Compile(name, spec); err != nil {
			return fmt.Errorf("policy %s: %w", name, err)
		}
	}
	whens := make([]string, len(p.config.Rules))
	for i, rule := range p.config.Rules {
		if p.policies[rule.Policy] == nil {
			return fmt.Errorf("rules[%d]: policy %q is not in the configuration", i, rule.Policy)
		}
		whens[i] = rule.When
		p.chosen = append(p.chosen, p.policies[rule.Policy])
	}
	if p.rules, err = compiler.CompileRules("rules", whens); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	return nil
}

// policyFor chooses the policy of a message: that of the first rule that matches, else the queue's. Rules that fail on the
// message do not match; their errors are returned beside the choice.
func (p *program) policyFor(m retry.Message) (*retry.Policy, []error) {
	index, problems := p.rules.First(m)
	if index >= 0 {
		return p.chosen[index], problems
	}
	queue, _ := p.queueOf(m.Queue)
	return p.policies[queue.Policy], problems
}

// mostRetries is the number of retries that the most patient policy allows for.
func (p *program) mostRetries() (most int64) {
	for _, policy := range p.policies {
		most = max(most, min(policy.MostRetries(), message.MaxCount))
	}
	return most
}

// queueOf gives the work queue of a queue that is consumed, or was by a program before. ours is false where the configuration does not have it any more,
// as one that another worker group consumes by now.
func (p *program) queueOf(name string) (queue *compile.Queue, ours bool) {
	if queue, ours = p.queues[name]; ours {
		return queue, true
	}
	former, known := p.former[name]
	if !known {
		former = &compile.Queue{Name: name}
	}
	for i := range p.config.Queues {
		if queue = &p.config.Queues[i]; queue.Name == former.Name {
			return queue, true
		}
	}
	return former, false
}

// follow keeps the queues of the programs before: messages may be on loan from them.
func (p *program) follow(before *program) {
	if before == nil {
		return
	}
	maps.Copy(p.former, before.former)
	for name, queue := range before.queues {
		kept := *queue // and not the configuration with it
		p.former[name] = &kept
	}
}

// consume chooses what is consumed: the work queues, or their quarantine queues.
func (p *program) consume() {
	prefetch := p.config.Prefetch()
	add := func(queue *compile.Queue, s amqp.Subscription) {
		p.queues[s.Queue] = queue
		p.consumed = append(p.consumed, s)
	}
	for i := range p.config.Queues {
		queue := &p.config.Queues[i]
		if p.hasJournal {
			if queue.Quarantine != "" && queue.Hold != compile.HoldNewToPods {
				add(queue, amqp.Subscription{Queue: queue.Quarantine, Prefetch: 1})
			}
			continue
		}
		for _, name := range queue.Consumed() {
			s := amqp.Subscription{Queue: name, Prefetch: prefetch}
			if queue.Strict != "" {
				s.Prefetch, s.Strict = 1, true
			}
			add(queue, s)
		}
	}
}

// holds are why queues are not consumed that this process would consume, by their names.
func (p *program) holds() map[string]string {
	holds := map[string]string{}
	for _, queue := range p.config.Queues {
		if queue.Hold != "" && !p.hasJournal {
			holds[queue.Name] = queue.Hold
		}
	}
	return holds
}

// needed is the number of queues that must be consumed for the worker to be ready. Of one that is migrated and its stand-in,
// either may be missing for a while, and so may one that is about to go.
func (p *program) needed() int {
	needed := len(p.consumed)
	for name := range p.queues {
		if queue := p.queues[name]; queue.Standin != "" || queue.Leaving {
			needed--
		}
	}
	return needed
}

// subscriptions are what is consumed with these prefetches, while so many messages at a time may be at the handler.
func (p *program) subscriptions(prefetch map[string]int, allowed int) []amqp.Subscription {
	subscriptions := make([]amqp.Subscription, len(p.consumed))
	for i, s := range p.consumed {
		if n, ok := prefetch[s.Queue]; ok {
			s.Prefetch = n
		}
		if allowed < p.config.Concurrency {
			s.Prefetch = max(1, min(s.Prefetch, allowed/len(p.consumed)))
		}
		subscriptions[i] = s
	}
	return subscriptions
}

// isUnused is true where no message is handled with the program. One that has been replaced stays so.
func (p *program) isUnused() bool { return p.users.Load() == 0 }
