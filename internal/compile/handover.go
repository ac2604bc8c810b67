package compile

import (
	"maps"
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
)

// Unserved are the queues of some worker groups' configurations that no group is ready to consume.
func Unserved(groups []Config, ready func(group, queue string) bool) map[string]bool {
	unserved := map[string]bool{}
	for i := range groups {
		for _, queue := range groups[i].Queues {
			if !queue.Leaving {
				unserved[queue.Name] = true
			}
		}
	}
	for i := range groups {
		for _, queue := range groups[i].Queues {
			if !queue.Leaving && unserved[queue.Name] && ready(groups[i].Worker, queue.Name) {
				delete(unserved, queue.Name)
			}
		}
	}
	return unserved
}

// WithHandedOver is the configuration with those queues of other groups that the group consumes by its last configuration, which is in force, under
// their present name or a former one, and that no group is ready to consume yet. It goes on with them until then, through migrations too; but not where
// its handler changes, for the next one may not know their messages: these wait for the other group. groups are the configurations of the groups in the
// spec, with the stand-ins of their queues.
func (c *Config) WithHandedOver(last *Config, groups []Config, unserved map[string]bool) Config {
	with := c.extensible()
	if c.changesHandler(last) {
		return with
	}
	held := last.holding()
	for i := range groups {
		for _, queue := range groups[i].Queues {
			has := slices.ContainsFunc(with.Queues, func(q Queue) bool { return q.Name == queue.Name })
			if has || queue.Leaving || !unserved[queue.Name] ||
				!slices.ContainsFunc(queue.Holding(), func(name string) bool { return held[name] }) {
				continue
			}
			queue.Leaving = true
			with.include(queue, &groups[i])
		}
	}
	with.Version = with.version()
	return with
}

// extensible is a copy that can be given further queues.
func (c *Config) extensible() Config {
	with := *c
	with.Queues, with.Policies = slices.Clone(c.Queues), map[string]v1alpha1.RetryPolicySpec{}
	maps.Copy(with.Policies, c.Policies)
	return with
}

// include adds a queue of another configuration, with what its workers need to know for it.
func (c *Config) include(queue Queue, from *Config) {
	c.Queues = append(c.Queues, queue)
	if _, has := c.Policies[queue.Policy]; !has {
		c.Policies[queue.Policy] = from.Policies[queue.Policy]
	}
	c.includeLanes(from)
}

// mostIncluded is how many lanes a configuration has at most with those of queues that leave: twice the most of a spec.
const mostIncluded = 128

// includeLanes adds the lanes of another configuration, for the policies of its queues. By those of the spec alone, retries of an hour might wait
// in a lane of a second 3,600 times. They are on the broker, since the other configuration is in force or has those of the spec; but twins
// for messages of high priority are not where that one has none, and a retry that misses its lane takes the next longer one.
func (c *Config) includeLanes(from *Config) {
	if len(c.Lanes) == 0 {
		c.Lanes, c.HighLanes = from.Lanes, from.HighLanes
		return
	}
	lanes := c.Lanes.With(from.Lanes)
	if len(lanes) <= mostIncluded && (from.HighLanes || !c.HighLanes) {
		c.Lanes = lanes
	}
}

// Former is the configuration of a group that has left the spec, by its last one, which is in force: with what no group of the spec consumes yet, as in
// WithHandedOver, and with what is left in queues that none is to consume, as in WithLeaving. goesOn is false where it has nothing to do any more. An empty
// quarantine queue is a reason to stay: it is deleted, whoever reads it, when nothing can come back into it from the lanes.
func (c *Config) Former(groups []Config, unserved map[string]bool, leaving []string) (next Config, goesOn bool) {
	next = c.WithoutQueues()
	next = next.WithHandedOver(c, groups, unserved)
	next = next.WithLeaving(*c, leaving)
	if len(groups) > 0 { // The rules are the Transport's, and their policies have the lanes of the spec.
		next.Rules = groups[0].Rules
		if len(next.Rules) > 0 {
			next.includeLanes(&groups[0])
		}
	}
	next.includeRules(append(slices.Clip(groups), *c))
	return next, len(next.Queues) > 0
}

// includeRules adds the policies that rules name, each of the first configuration that has it.
func (c *Config) includeRules(configs []Config) {
	for _, rule := range c.Rules {
		for i := range configs {
			policy, known := configs[i].Policies[rule.Policy]
			if _, has := c.Policies[rule.Policy]; known && !has {
				c.Policies[rule.Policy] = policy
			}
		}
	}
}

// WithoutQueues is the configuration of a group that has left the spec, before it is given what it goes on with.
func (c *Config) WithoutQueues() Config {
	with := *c
	with.Queues, with.Policies, with.Lanes, with.HighLanes = nil, nil, nil, false
	return with
}

// Unread are those of some queues that no configuration has workers read, nor its quarantine worker.
func Unread(queues []string, configs []Config) []string {
	read := Held(configs)
	for i := range configs {
		for _, queue := range configs[i].Queues {
			read[queue.Quarantine] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(queues), func(name string) bool { return read[name] })
}

// Held are the queues on the broker that hold messages of the work queues of some configurations.
func Held(configs []Config) map[string]bool {
	held := map[string]bool{}
	for i := range configs {
		maps.Copy(held, configs[i].holding())
	}
	return held
}

// holding are the queues on the broker that hold messages of the configuration's work queues.
func (c *Config) holding() map[string]bool {
	held := map[string]bool{}
	for _, queue := range c.Queues {
		for _, name := range queue.Holding() {
			held[name] = true
		}
	}
	return held
}

// Has is true where the configuration has a queue of the spec, and not only for pods that are still to come.
func (c *Config) Has(queue string) bool {
	return slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.Name == queue && !q.Leaving && q.Hold != HoldNewToPods })
}
