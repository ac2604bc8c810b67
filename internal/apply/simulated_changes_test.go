package apply_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// fault is something that nobody wants.
func (w *world) fault() {
	if w.quiet {
		return
	}
	if len(w.pods) > 0 && (w.may.cuts && (w.oneIn(8) || len(w.last.Retiring) > 0 && w.oneIn(4)) || w.leaves() && w.oneIn(4)) {
		pod := w.pods[w.random.IntN(len(w.pods))]
		w.tellf("the connection of %s is cut", pod.name)
		pod.cut()
	}
	if w.may.cuts && w.oneIn(30) {
		w.tellf("the broker restarts")
		w.downUntil = time.Now().Add(time.Duration(1+w.random.IntN(20)) * time.Second)
		for _, pod := range w.pods {
			pod.cut()
		}
	}
	if w.may.badCounts && w.oneIn(4) {
		w.misleadCounts()
	}
	if w.may.applications && w.stored != nil && w.oneIn(6) {
		w.application()
	}
	if w.stored != nil && w.stored.deleting && w.oneIn(15) {
		w.tellf("somebody deletes the workers")
		for _, pod := range w.pods {
			pod.cut()
		}
		w.pods = nil
	}
	if w.stored != nil && (w.may.forgets || w.may.restores) {
		w.forget()
	}
}

// misleadCounts hides counts, has queues led by another node, and has leaders show old figures.
func (w *world) misleadCounts() {
	for _, name := range slices.Sorted(maps.Keys(w.broker.queues)) {
		q := w.broker.queues[name]
		// One that serves has a leader, and so a count.
		leaves := slices.Contains(retirements(w.last.Retiring), name) || topology.RoleOf(q.Queue) == topology.RoleLane
		if q.hidden = w.oneIn(6) && leaves && time.Since(q.made) > time.Minute; w.oneIn(12) {
			w.broker.lead(q, []string{"rabbit@a", "rabbit@b"}[w.random.IntN(2)])
		}
		if q.quorum() && w.oneIn(6) {
			q.nextCount = time.Now().Add(time.Duration(w.random.IntN(map[bool]int{false: 40, true: 150}[leaves])) * time.Second)
		}
	}
}

// isDown is true while the broker starts again.
func (w *world) isDown() bool { return time.Now().Before(w.downUntil) }

// application binds a queue for itself, or takes its binding away.
func (w *world) application() {
	at := slices.IndexFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool { return slices.Contains(q.BindingKeys, "test") })
	if at < 0 || w.stored.deleting {
		return
	}
	binding := topology.Binding{Source: "async", Destination: w.stored.spec.Spec.Queues[at].Name, RoutingKey: "app"}
	for _, former := range w.stored.spec.Spec.Queues[at].PreviousNames {
		if w.broker.queues[former] != nil && w.oneIn(2) {
			binding.Destination = former // as it was called when the application was written
		}
	}
	if w.oneIn(3) {
		binding.Source, binding.RoutingKey = "amq.topic", "other app"
	}
	if w.oneIn(4) {
		w.led[binding.RoutingKey], w.bound[binding.RoutingKey] = false, false
		w.tellf("an application takes away its bindings by %q", binding.RoutingKey)
		w.broker.dropBindings(func(b topology.Binding) bool { return b.RoutingKey == binding.RoutingKey && b.Arguments.Owner() == "" })
		return
	}
	if slices.ContainsFunc(w.broker.route("async.return", simulatedMessage{key: binding.Destination}), isFailure) {
		return // Retries could not come back yet: an application waits until the Transport is ready.
	}
	if w.broker.bind(binding) == nil {
		w.bound[binding.RoutingKey] = true
		w.tellf("an application binds %s", binding.Name())
	}
}

func (w *world) aPolicy() *v1alpha1.RetryPolicy {
	all := []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, time.Minute, 3 * time.Minute}
	var delays []v1alpha1.Duration
	for _, delay := range all {
		if w.oneIn(2) {
			delays = append(delays, *v1alpha1.NewDuration(delay))
		}
	}
	if len(delays) == 0 {
		delays = append(delays, *v1alpha1.NewDuration(2 * time.Second))
	}
	retries := int32(3)
	if w.may.stubborn {
		retries, delays = 30, []v1alpha1.Duration{*v1alpha1.NewDuration(time.Second), *v1alpha1.NewDuration(4 * time.Second)}
	}
	return &v1alpha1.RetryPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "policy", Namespace: "shop"},
		Spec:       v1alpha1.RetryPolicySpec{MaxRetries: &retries, Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffExplicit, Delays: delays}},
	}
}

func (w *world) firstSpec() *v1alpha1.Transport {
	spec := async()
	spec.Spec.Exchange.Type = w.may.exchange
	spec.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "policy"}
	spec.Spec.DeletionPolicy = v1alpha1.DeletionDeleteIfEmpty
	spec.Spec.Queues = []v1alpha1.Queue{{Name: "lost", BindingKeys: []string{"lost"}}, w.aQueue("test", "test"), w.aQueue("mail", "mail")}
	if !w.may.unrouted {
		spec.Spec.Exchange.UnroutedTo = nil
	}
	spec.Spec.Workers = []v1alpha1.Worker{{Name: "default", Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1"}}}}
	if w.may.groups {
		spec.Spec.Queues = append(spec.Spec.Queues, v1alpha1.Queue{Name: "spare"})
		spec.Spec.Workers = append(spec.Spec.Workers, *spec.Spec.Workers[0].DeepCopy())
		spec.Spec.Workers[1].Name = "second"
		w.group(spec)
	}
	return spec
}

// aQueue has arguments by chance.
func (w *world) aQueue(name, key string) v1alpha1.Queue {
	queue := v1alpha1.Queue{Name: name, BindingKeys: []string{key}}
	if w.may.shares && !w.oneIn(4) {
		queue.BindingKeys = append(queue.BindingKeys, "both")
	}
	if w.may.ordered && key == "mail" {
		queue.Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		return queue
	}
	switch w.random.IntN(5) {
	case 0:
		queue.Type = new(v1alpha1.QueueClassic)
	case 1:
		queue.SingleActiveConsumer = new(true)
	case 2:
		queue.Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	}
	return queue
}

// create makes the Transport.
func (w *world) create(spec *v1alpha1.Transport) {
	w.version++
	w.stored, w.givenUp = &storedTransport{version: w.version, spec: spec}, false
	w.tellf("CREATE %s", specText(spec))
	for name, q := range w.broker.queues {
		w.retained[name] = w.retained[name] || q.Type == topology.TypeClassic
	}
	w.abandon()
	w.takeBack(spec)
	w.keepHomes()
}

// abandon notes the queues that no worker has been told of and that the spec does not have: nobody empties them before they are put into it again.
func (w *world) abandon() {
	for name, q := range w.broker.queues {
		role := topology.RoleOf(q.Queue)
		if role == topology.RoleWork {
			work := strings.TrimSuffix(name, ".migrating")
			w.abandoned[name] = w.retained[work] || !w.hasHome(work) || w.previouslyAdopted(work)
		}
		if role == topology.RoleQuarantine {
			w.abandoned[name] = !slices.ContainsFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool {
				return q.Name+compile.QuarantineSuffix == name && q.Ordering == nil
			})
		}
	}
}

// takeBack notes which queues are Redrive's again that were adopted.
func (w *world) takeBack(spec *v1alpha1.Transport) {
	for _, queue := range spec.Spec.Queues {
		if queue.Adopt == nil {
			w.kept[queue.Name] = false
		}
	}
}

// edit replaces the spec.
func (w *world) edit(spec *v1alpha1.Transport) {
	w.version++
	before, next := w.stored.spec, *w.stored
	w.former = before
	for _, queue := range before.Spec.Queues {
		if queue.Adopt != nil {
			w.kept[queue.Name] = true
		}
	}
	w.takeBack(spec)
	next.version, next.spec = w.version, spec
	if w.stored = &next; w.published == nil {
		w.abandon()
	}
	for _, queue := range before.Spec.Queues {
		names := queue.PreviousNames
		takenBack := slices.ContainsFunc(names, w.hasHome)
		if takenBack || w.broker.queues[queue.Name] == nil { // a renaming is taken back, or broken off: retries by the new name may come to the former queue
			names = append(slices.Clip(names), queue.Name)
		}
		for _, name := range names {
			w.dropped[name], w.dropped[name+compile.QuarantineSuffix] = true, true
		}
	}
	w.keepHomes()
	for key := range w.led {
		w.led[key] = w.led[key] && w.wants(key) && (!strings.HasSuffix(key, "app") || w.follows(before))
	}
}

func (w *world) keepHomes() {
	for _, queue := range w.stored.spec.Spec.Queues {
		for _, name := range append([]string{queue.Name}, queue.PreviousNames...) {
			for _, home := range []string{name, name + compile.QuarantineSuffix} {
				if _, known := w.homes[home]; !known {
					w.homes[home] = time.Time{}
				}
			}
		}
	}
	for name := range w.homes {
		if !w.hasHome(name) {
			w.homes[name] = time.Time{}
		} else {
			w.dropped[name] = false
		}
	}
}

// change is what a person does to the Transport.
func (w *world) change() {
	if w.stored == nil {
		w.create(w.next)
		return
	}
	spec := w.stored.spec.DeepCopy()
	if w.stored.deleting && w.may.strips && w.oneIn(3) {
		w.strip()
		return
	}
	if w.stored.deleting {
		spec.Spec.DeletionPolicy = []v1alpha1.DeletionPolicy{v1alpha1.DeletionDeleteIfEmpty, v1alpha1.DeletionRetain}[w.random.IntN(2)]
		w.tellf("CHANGE deletionPolicy %s", spec.Spec.DeletionPolicy)
		w.edit(spec)
		return
	}
	switch chance := w.random.IntN(12); {
	case w.may.late && w.may.removals && !w.may.adopts && !w.may.groups && w.former != nil && w.oneIn(3): // what is being deleted is to be made again
		spec = w.former.DeepCopy()
	case chance == 0:
		w.policy = w.aPolicy()
		w.tellf("CHANGE delays %v", w.policy.Spec.Backoff.Delays)
		w.edit(spec) // as the operator looks again
		return
	case chance == 2 && w.may.failureQueues:
		spec.Spec.Failure = &v1alpha1.Failure{Queue: new(failureNames()[w.random.IntN(len(failureNames()))])}
	case chance%3 == 1 && w.may.deletions:
		w.remove(spec)
		return
	case chance == 3 && w.may.unroutedMoves:
		all := []string{""}
		for _, q := range spec.Spec.Queues {
			all = append(all, q.Name)
		}
		spec.Spec.Exchange.UnroutedTo = nil
		if name := all[w.random.IntN(len(all))]; name != "" {
			spec.Spec.Exchange.UnroutedTo = &name
		}
	default:
		w.changeQueue(spec)
	}
	w.keepUnrouted(spec)
	w.group(spec)
	if _, err := topology.Desired(w.asked(spec), compile.Needs{}, owner); err != nil {
		w.tellf("the API server refuses: %v", err)
		return
	}
	w.tellf("CHANGE %s", specText(spec))
	w.edit(spec)
}

// strip takes the finalizer off a Transport that is being deleted: it is gone, with its workers, and what its deletions came to is not known.
func (w *world) strip() {
	w.tellf("the finalizer is taken off")
	for _, operator := range w.operators {
		operator.remember(w.stored.status.Deletions)
	}
	w.end()
}

// remove deletes the Transport, and decides how it will be made again.
func (w *world) remove(spec *v1alpha1.Transport) {
	policies := []v1alpha1.DeletionPolicy{v1alpha1.DeletionDeleteIfEmpty, v1alpha1.DeletionDeleteIfEmpty, v1alpha1.DeletionRetain, v1alpha1.DeletionDelete}
	spec.Spec.DeletionPolicy = policies[w.random.IntN(len(policies))]
	w.tellf("DELETE with %s", spec.Spec.DeletionPolicy)
	w.edit(spec)
	w.stored.deleting, w.givenUp = true, spec.Spec.DeletionPolicy == v1alpha1.DeletionDelete
	clear(w.led)
	w.next = spec.DeepCopy()
	w.next.Spec.DeletionPolicy = v1alpha1.DeletionDeleteIfEmpty
	if w.oneIn(2) {
		w.changeQueue(w.next)
		w.keepUnrouted(w.next)
		w.group(w.next)
		if _, err := topology.Desired(w.asked(w.next), compile.Needs{}, owner); err != nil {
			w.next = spec.DeepCopy()
		}
	}
	for i := range w.next.Spec.Queues {
		w.next.Spec.Queues[i].Adopt = nil
	}
}

// namesFor are the names that a queue may have, by its key.
func namesFor(key string) []string {
	if key == "test" {
		return []string{"test", "orders", "bills"}
	}
	return []string{"mail", "post"}
}

func (w *world) changeQueue(spec *v1alpha1.Transport) {
	key := []string{"test", "test", "mail"}[w.random.IntN(3)]
	names := namesFor(key)
	at := slices.IndexFunc(spec.Spec.Queues, func(q v1alpha1.Queue) bool { return slices.Contains(q.BindingKeys, key) })
	if at < 0 {
		spec.Spec.Queues = append(spec.Spec.Queues, w.aQueue(names[w.random.IntN(len(names))], key))
		return
	}
	queue := &spec.Spec.Queues[at]
	others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == queue.Name })
	other := others[w.random.IntN(len(others))]
	if w.may.adopts && w.oneIn(3) && (!w.may.ordered || key != "mail") {
		w.adopt(queue)
		return
	}
	queue.Adopt = nil
	switch chance := w.random.IntN(11); {
	case chance == 10 && w.may.ordered && key == "mail": // which has no order without it, as the docs say
	case chance == 10:
		queue.PreviousNames = nil // as where the name is taken to have done its work
		if w.oneIn(2) && w.may.removals {
			queue.Name = other // a rename is taken back without it
		}
	case chance < 4:
		former := []string{queue.Name}
		for _, name := range queue.PreviousNames {
			if name != other && !slices.Contains(former, name) {
				former = append(former, name)
			}
		}
		if w.oneIn(2) {
			slices.Reverse(former)
		}
		if w.oneIn(4) {
			next := w.aQueue(other, key)
			next.PreviousNames = former
			*queue = next
			return
		}
		queue.Name, queue.PreviousNames = other, former
	case chance < 7:
		next := w.aQueue(queue.Name, key)
		next.PreviousNames = queue.PreviousNames
		*queue = next
	case chance == 7:
		queue.Limits = nil
		if w.oneIn(2) {
			queue.Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(500 * time.Hour)}
		}
	case chance == 8 && w.may.removals:
		spec.Spec.Queues = slices.Delete(spec.Spec.Queues, at, at+1)
	case w.may.removals:
		*queue = w.aQueue(other, key) // another one, without a previous name
	}
}

// adopt has a queue that is there taken as it is, or one that was adopted be Redrive's again.
func (w *world) adopt(queue *v1alpha1.Queue) {
	switch {
	case queue.Adopt != nil:
		queue.Adopt = nil
	case w.broker.queues[queue.Name] != nil:
		queue.Adopt, queue.Type, queue.SingleActiveConsumer, queue.Ordering = new(true), nil, nil, nil
		w.wasAdopted[queue.Name] = true
	}
}

func specText(spec *v1alpha1.Transport) string {
	var texts []string
	for _, queue := range spec.Spec.Queues {
		text := queue.Name
		if len(queue.PreviousNames) > 0 {
			text += fmt.Sprintf(" (previously %v)", queue.PreviousNames)
		}
		for word, is := range map[string]bool{
			" adopted": queue.Adopt != nil, " classic": queue.Type != nil, " single": queue.SingleActiveConsumer != nil, " strict": queue.Ordering != nil, " limited": queue.Limits != nil,
		} {
			if is {
				text += word
			}
		}
		texts = append(texts, text)
	}
	text := "queues " + strings.Join(texts, ", ")
	if len(spec.Spec.Workers) > 1 {
		text += fmt.Sprintf("; second group %v", spec.Spec.Workers[1].Queues)
	}
	if spec.Spec.Failure != nil {
		text += "; failure queue " + *spec.Spec.Failure.Queue
	}
	return text
}
