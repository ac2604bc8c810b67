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
	rules    []rule
	queues   map[string]compile.Queue
	handler  handler.Handler
	// slots bounds the messages at the handler.
	slots chan struct{}
}

type rule struct {
	match  *retry.Match
	policy *retry.Policy
}

// newProgram prepares a configuration. From the program before it, it takes over what has not changed.
func newProgram(config compile.Config, makeHandler HandlerFactory, before *program) (*program, error) {
	data, err := compile.Encode(config)
	if err != nil {
		return nil, fmt.Errorf("hash the configuration: %w", err)
	}
	p := &program{
		config:   config,
		hash:     compile.Hash(data),
		policies: make(map[string]*retry.Policy, len(config.Policies)),
		queues:   make(map[string]compile.Queue, len(config.Queues)),
	}
	for name, spec := range config.Policies {
		if p.policies[name], err = retry.Compile(name, spec); err != nil {
			return nil, fmt.Errorf("policy %s: %w", name, err)
		}
	}
	for i, r := range config.Rules {
		match, err := retry.CompileMatch(fmt.Sprintf("rules[%d].when", i), r.When)
		if err != nil {
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		p.rules = append(p.rules, rule{match: match, policy: p.policies[r.Policy]})
	}
	for _, queue := range config.Queues {
		p.queues[queue.Name] = queue
	}
	if before != nil && before.config.Concurrency == config.Concurrency {
		p.slots = before.slots
		if reflect.DeepEqual(before.config.Handler, config.Handler) {
			p.handler = before.handler
			return p, nil
		}
	}
	if p.slots == nil {
		p.slots = make(chan struct{}, config.Concurrency)
	}
	if p.handler, err = makeHandler(config.Handler, config.Concurrency); err != nil {
		return nil, fmt.Errorf("handler: %w", err)
	}
	return p, nil
}

// policyFor chooses the policy of a message: the first rule that matches, else the queue's. Rules that fail on the message
// do not match; their errors are returned beside the choice.
func (p *program) policyFor(m retry.Message) (*retry.Policy, []error) {
	var problems []error
	for _, r := range p.rules {
		matches, err := r.match.Matches(m)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if matches {
			return r.policy, problems
		}
	}
	if queue, ok := p.queues[m.Queue]; ok {
		return p.policies[queue.Policy], problems
	}
	// The queue left the configuration while the message was on loan from it: any of the policies is better than none.
	return p.policies[p.config.Queues[0].Policy], problems
}

func (p *program) subscriptions() []amqp.Subscription {
	prefetch := p.config.Prefetch()
	subscriptions := make([]amqp.Subscription, len(p.config.Queues))
	for i, queue := range p.config.Queues {
		subscriptions[i] = amqp.Subscription{Queue: queue.Name, Prefetch: prefetch}
	}
	return subscriptions
}
