package apply_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// isStray is true for a message that comes by the exchange for what is unroutable.
func (w *world) isStray(exchange string, message simulatedMessage) bool {
	return !slices.ContainsFunc(w.broker.bindings, func(b topology.Binding) bool {
		return (b.Source == exchange || b.Source == "async.alternate") && matches(w.broker.exchanges[b.Source].Type, b, message)
	})
}

// familyOf is the key by which the names of a queue are known.
func familyOf(queue string) string {
	name := strings.TrimSuffix(strings.TrimSuffix(queue, ".migrating"), ".quarantine")
	for _, key := range []string{"test", "mail"} {
		if slices.Contains(namesFor(key), name) {
			return key
		}
	}
	return ""
}

// publishToFamilies publishes a message that several queues get, each its own copy.
func (w *world) publishToFamilies(message simulatedMessage) {
	key := "both"
	message.key = key
	queues := w.broker.route("async", message)
	if w.isStray("async", message) {
		for _, family := range []string{"test", "mail"} {
			if w.led[family+"|"+key] && !w.leaves() && !w.unbound {
				w.problemf("message %d by %q has no way to %s (%v)", message.id, key, family, queues)
				w.led[family+"|"+key] = false
			}
		}
		if len(queues) > 0 {
			w.messages = append(w.messages, outcome{key: "", accepted: true})
			w.broker.publish("async", message)
		}
		return
	}
	byFamily := map[string][]string{}
	for _, queue := range queues {
		byFamily[familyOf(queue)] = append(byFamily[familyOf(queue)], queue)
	}
	for _, family := range []string{"test", "mail", ""} {
		into, led := byFamily[family], family+"|"+key
		if w.led[led] && len(into) == 0 && !w.leaves() && !w.unbound && family != "" {
			w.problemf("message %d by %q has no way to %s (%v)", len(w.messages), key, family, queues)
			w.led[led] = false
		}
		if len(into) == 0 {
			continue
		}
		message.id = len(w.messages)
		w.messages = append(w.messages, outcome{key: family, accepted: true})
		for _, queue := range into {
			w.broker.queues[queue].published++
			w.broker.enqueue(w.broker.queues[queue], message)
		}
		// What a queue gets while nobody else does it may lose to another one again, as long as a request may still delete its own way.
		bound := slices.ContainsFunc(w.broker.bindings, func(b topology.Binding) bool {
			return b.Source == "async" && b.Destination == into[0] && b.Arguments.Owner() != ""
		})
		if family != "" && bound && !w.leaves() && w.wants(led) && w.hasHome(strings.TrimSuffix(into[0], ".migrating")) {
			w.led[led] = true
		}
	}
}

// judgeDrained tells of workers that are stopped though messages for them are left.
func (w *world) judgeDrained() {
	for _, name := range slices.Sorted(maps.Keys(w.broker.queues)) {
		if q := w.broker.queues[name]; w.named[name] && q.depth() > 0 && !w.givenUp && !w.wasAdopted[name] && !w.retained[name] {
			w.problemf("workers are stopped, and %s has %d messages", name, q.depth())
		}
	}
	for name, q := range w.broker.queues {
		if topology.RoleOf(q.Queue) == topology.RoleLane && q.depth() > 0 && !w.givenUp {
			w.problemf("workers are stopped, and %s has %d messages", name, q.depth())
		}
	}
}

// asked is a spec as it is written: one of a fanout exchange has no keys.
func (w *world) asked(spec *v1alpha1.Transport) *v1alpha1.Transport {
	if w.may.exchange != v1alpha1.ExchangeFanout {
		return spec
	}
	spec = spec.DeepCopy()
	for i := range spec.Spec.Queues {
		spec.Spec.Queues[i].BindingKeys = nil
	}
	return spec
}

// group gives each queue that has none to one of the worker groups: that of its former name, or any. Each has one of its own for good.
func (w *world) group(spec *v1alpha1.Transport) {
	if !w.may.groups {
		return
	}
	home := map[string]int{}
	for i := range spec.Spec.Workers {
		for _, name := range spec.Spec.Workers[i].Queues {
			home[name] = i
		}
		spec.Spec.Workers[i].Queues = nil
	}
	home["lost"], home["spare"] = 0, 1
	if second := &spec.Spec.Workers[1]; !w.may.restores && w.oneIn(6) {
		w.renamed++
		second.Name = fmt.Sprint("second-", w.renamed) // for good: the pods of a former name may still end
	}
	for _, queue := range spec.Spec.Queues {
		at, has := home[queue.Name]
		for _, former := range queue.PreviousNames {
			if before, had := home[former]; had && !has && !w.oneIn(3) {
				at, has = before, true
			}
		}
		if !has || queue.Name != "lost" && queue.Name != "spare" && w.oneIn(6) {
			at = w.random.IntN(2)
		}
		spec.Spec.Workers[at].Queues = append(spec.Spec.Workers[at].Queues, queue.Name)
	}
}

// removeGroup deletes the objects of a worker group. Its pods end what they have begun.
func (w *world) removeGroup(group string) {
	w.tellf("    the group %s is deleted", group)
	delete(w.published, group)
	for _, pod := range w.pods {
		if pod.group == group {
			pod.ending = true
		}
	}
}

// keepUnrouted lets the queue for unroutable messages be one that is there: the renamed one where it has been renamed.
func (w *world) keepUnrouted(spec *v1alpha1.Transport) {
	if !w.may.unroutedMoves || spec.Spec.Exchange.UnroutedTo == nil {
		return
	}
	name := *spec.Spec.Exchange.UnroutedTo
	for _, q := range spec.Spec.Queues {
		if q.Name == name {
			return
		}
	}
	for _, q := range spec.Spec.Queues {
		if slices.Contains(q.PreviousNames, name) {
			name = q.Name
			spec.Spec.Exchange.UnroutedTo = &name
			return
		}
	}
	spec.Spec.Exchange.UnroutedTo = nil
}

// forget takes the status away, or replaces it with an earlier one; or has the API server lose all that came after a backup.
func (w *world) forget() {
	if w.oneIn(12) {
		old := *w.stored
		w.backup, w.backedUp = &old, maps.Clone(w.published)
	}
	switch {
	case !w.oneIn(20), w.stored.deleting:
		return
	case w.may.restores && w.backup != nil && !w.backup.deleting:
		w.restore()
	case w.may.forgets:
		w.version++
		next := *w.stored
		next.version, next.status = w.version, apply.State{}
		if w.backup != nil && w.oneIn(2) {
			next.status = w.backup.status
		}
		w.tellf("the status is lost, or an earlier one: %d created, %d migrations", len(next.status.Created), len(next.status.Migrations))
		w.stored = &next
	}
	for name, q := range w.broker.queues {
		w.retained[name] = w.retained[name] || q.Type == topology.TypeClassic
	}
}

// restore takes the Transport and the configurations of workers back to an earlier time. Nobody knows of the queues that came since.
func (w *world) restore() {
	w.tellf("the API server is restored from a backup: %s", specText(w.backup.spec))
	w.edit(w.backup.spec)
	for key := range w.bound {
		w.led[key] = false // What applications have bound since goes with queues that nobody knows of.
	}
	next := *w.stored
	next.status = w.backup.status
	w.stored = &next
	for _, group := range slices.Sorted(maps.Keys(w.backedUp)) {
		w.publishConfig(*w.backedUp[group])
	}
	for name, q := range w.broker.queues {
		role := topology.RoleOf(q.Queue)
		known := role != topology.RoleWork && role != topology.RoleQuarantine || slices.ContainsFunc(w.lives(), func(live compile.Config) bool {
			return slices.Contains(live.Named(), name)
		})
		if !known {
			w.abandoned[name] = true
			delete(w.named, name)
		}
	}
}

// previouslyAdopted is true for an earlier name of a queue that is adopted, into which nothing is led.
func (w *world) previouslyAdopted(name string) bool {
	return slices.ContainsFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Adopt != nil && slices.Contains(q.PreviousNames, name) })
}

// follows is true where what applications have bound to the queue of the key test in an earlier spec leads into one of this spec: a former name that is
// taken out before its queue is gone breaks off the renaming, and its queue leaves with those bindings.
func (w *world) follows(before *v1alpha1.Transport) bool {
	for _, queue := range before.Spec.Queues {
		if slices.Contains(queue.BindingKeys, "test") {
			return !slices.ContainsFunc(append([]string{queue.Name}, queue.PreviousNames...), func(name string) bool {
				return (w.broker.queues[name] != nil || w.broker.queues[name+".migrating"] != nil) && !w.hasHome(name)
			})
		}
	}
	return true
}
