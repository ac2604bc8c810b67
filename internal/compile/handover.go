package compile

import (
	"maps"
	"slices"
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

// HandedOver are the names on the broker of what a group consumes by its last configuration and not by the next, and that no other group is ready to
// consume yet: as what leaves the spec, it goes on with it until then. With no next configuration the group itself leaves.
func (c *Config) HandedOver(next *Config, unserved map[string]bool) []string {
	names := map[string]bool{}
	for _, queue := range c.Queues {
		stays := next != nil && slices.ContainsFunc(next.Queues, func(q Queue) bool { return q.Name == queue.Name })
		if !stays && unserved[queue.Name] {
			names[queue.Name], names[queue.Standin], names[queue.Quarantine] = true, true, true
		}
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// Has is true where the configuration has a queue of the spec.
func (c *Config) Has(queue string) bool {
	return slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.Name == queue && !q.Leaving })
}
