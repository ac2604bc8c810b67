package worker

import (
	"fmt"
	"reflect"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
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
	// queues by the names that they are consumed by.
	queues     map[string]compile.Queue
	consumed   []amqp.Subscription
	handler    handler.Handler
	protection protection
	// slots bounds the messages at the handler.
	slots chan struct{}
}

// newProgram prepares a configuration. From the program before it, it takes over what has not changed.
func (w *Worker) newProgram(config compile.Config, before *program) (*program, error) {
	data, err := compile.Encode(config)
	if err != nil {
		return nil, fmt.Errorf("hash the configuration: %w", err)
	}
	if w.options.Journal != nil {
		config.Concurrency = 1 // a suspect runs alone
	}
	p := &program{
		config:   config,
		hash:     compile.Hash(data),
		policies: make(map[string]*retry.Policy, len(config.Policies)),
		queues:   make(map[string]compile.Queue, len(config.Queues)),
	}
	if err := p.compile(); err != nil {
		return nil, err
	}
	p.consume(w.options.Journal != nil)
	if err := p.takeHandler(before, w.options.Handlers); err != nil {
		return nil, err
	}
	last := &protection{}
	if before != nil {
		last = &before.protection
	}
	// Last, for it changes what is in force.
	if p.protection, err = newProtection(&config, last, w.breakerChanged, w.options.Now()); err != nil {
		return nil, err
	}
	return p, nil
}

// takeHandler continues the handler and the slots before, or makes new ones.
func (p *program) takeHandler(before *program, makeHandler HandlerFactory) (err error) {
	if before != nil && before.config.Concurrency == p.config.Concurrency {
		p.slots = before.slots
		if reflect.DeepEqual(before.config.Handler, p.config.Handler) {
			p.handler = before.handler
			return nil
		}
	}
	if p.slots == nil {
		p.slots = make(chan struct{}, p.config.Concurrency)
	}
	if p.handler, err = makeHandler(p.config.Handler, p.config.Concurrency); err != nil {
		return fmt.Errorf("handler: %w", err)
	}
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
		whens[i] = rule.When
		p.chosen = append(p.chosen, p.policies[rule.Policy])
	}
	if p.rules, err = retry.CompileRules("rules", whens); err != nil {
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
	return p.policies[p.queueOf(m.Queue).Policy], problems
}

// queueOf gives the work queue of a queue that is consumed. One that left the configuration while a message was on loan from
// it has any of the policies, which is better than none.
func (p *program) queueOf(name string) compile.Queue {
	if queue, ok := p.queues[name]; ok {
		return queue
	}
	for _, queue := range p.config.Queues {
		if queue.Name == name {
			return queue
		}
	}
	return compile.Queue{Name: name, Policy: p.config.Queues[0].Policy}
}

// consume chooses what is consumed: the work queues, or their suspects' queues.
func (p *program) consume(suspects bool) {
	prefetch := p.config.Prefetch()
	for _, queue := range p.config.Queues {
		s := amqp.Subscription{Queue: queue.Name, Prefetch: prefetch}
		switch {
		case suspects && queue.Suspects == "":
			continue
		case suspects:
			s = amqp.Subscription{Queue: queue.Suspects, Prefetch: 1}
		case queue.Strict != "":
			s.Prefetch, s.Strict = 1, true
		}
		p.queues[s.Queue] = queue
		p.consumed = append(p.consumed, s)
	}
}

// subscriptions are what is consumed while so many messages at a time may be at the handler.
func (p *program) subscriptions(allowed int) []amqp.Subscription {
	if allowed >= p.config.Concurrency {
		return p.consumed
	}
	subscriptions := make([]amqp.Subscription, len(p.consumed))
	for i, s := range p.consumed {
		s.Prefetch = max(1, min(s.Prefetch, allowed/len(p.consumed)))
		subscriptions[i] = s
	}
	return subscriptions
}
