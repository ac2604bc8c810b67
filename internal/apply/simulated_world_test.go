package apply_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// world is all that a simulation consists of: an API server with one Transport, its operators, its workers, producers, and people who change things.
type world struct {
	t      *testing.T
	random *rand.Rand
	trace  *[]string
	may    faults
	broker *simulatedBroker

	// stored is the Transport as the API server has it; nil where there is none.
	stored  *storedTransport
	version int
	// next is the spec of the Transport that follows one which is deleted.
	next     *v1alpha1.Transport
	policy   *v1alpha1.RetryPolicy
	compiled map[*v1alpha1.Transport]*compile.Result
	// renamed is how often the second worker group has had another name.
	renamed int
	// published are the configurations of the worker groups, by their names; nil where there is none.
	published map[string]*compile.Config
	named     map[string]bool
	pods      []*simulatedPod
	operators []*simulatedOperator
	late      []lateRequest
	// unbound is true since a late request has taken a binding away, until an operator has looked.
	unbound bool

	// givenUp is true for a Transport that was deleted with its messages.
	givenUp bool
	// downUntil is when the management API answers again.
	downUntil time.Time
	// handled is the last message that was handled of those in order.
	handled int

	// quiet is true when nothing but time and messages passes any more, and silent when there are no new messages either.
	quiet, silent bool
	messages      []outcome
	// led are the keys by which messages have come into queues since the spec has them.
	led map[string]bool
	// bound are the keys by which an application wants messages to come.
	bound map[string]bool
	// homes are the names by which retries come back, each with the time since when it leads somewhere; zero while the spec has none of that name.
	homes map[string]time.Time
	// dropped are former names that somebody has taken out of the spec: what comes back by one ends in the failure queue, as the docs say. A queue that
	// leaves by its own name gets its retries until it is gone.
	dropped map[string]bool
	// abandoned are queues that a Transport which was made again does not know of, and retained those of them without an owner mark.
	abandoned, retained map[string]bool
	// wasAdopted are queues that were adopted once: what is in them when they leave the spec is their owner's.
	wasAdopted map[string]bool
	// kept are queues that left the spec while they were adopted, and former is the spec before the last change.
	kept     map[string]bool
	former   *v1alpha1.Transport
	last     apply.Report
	problems []string
	// backup is the Transport of an earlier time, and backedUp are the configurations of workers by then.
	backup    *storedTransport
	backedUp  map[string]*compile.Config
	snapshots []snapshot
}

// faults are what may happen in a simulation.
type faults struct {
	// kills ends an operator before or after any of its writes.
	kills bool
	// late requests have no answer and are carried out minutes later.
	late bool
	// lies are lists that lack an object once.
	lies bool
	// shared are snapshots of the broker that others of an operator's process took up to five seconds ago.
	shared bool
	// badCounts are late, not known for a while, or of another leader.
	badCounts bool
	// cuts end the connections of workers, one or all at once.
	cuts bool
	// skews are clocks of operators that are wrong: each process has another one.
	skews bool
	// second is true where there are two operators, which may know an older version of the Transport.
	second bool
	// applications bind queues for themselves.
	applications bool
	// removals take queues out of the spec, or give their keys to others.
	removals bool
	// deletions of the Transport, which is made again.
	deletions bool
	// strips take the finalizer off a Transport that is being deleted. A process of the operator alone remembers its deletions.
	strips bool
	// silentPods take up to ten minutes to follow a configuration, and nobody can ask them.
	silentPods bool
	// stubborn messages fail many times.
	stubborn bool
	// ordered is true where the queue of the key mail is Strict from the first to the last, and its messages are handled in their order.
	ordered bool
	// unrouted is true where the Transport has a queue for unroutable messages.
	unrouted bool
	exchange v1alpha1.ExchangeType
	// adopts is true where queues are adopted for a while, and failureQueues where the failure queue gets another name now and then.
	adopts, failureQueues bool
	// shares is true where two queues have a key in common, and unroutedMoves where another queue, or none, gets what is unroutable now and then.
	shares, unroutedMoves bool
	// groups is true where there are two worker groups, between which queues move, and the second of which is renamed now and then.
	groups bool
	// forgets is true where the status is lost, or becomes an earlier one, and restores where all that the API server has becomes an earlier one.
	forgets, restores bool
	// slow requests take up to twelve seconds, and now and then a process stands for longer; slow work takes minutes; refusals are single writes
	// that the broker refuses, and reads that it does not answer.
	slow, slowWork, refusals bool
}

// storedTransport is a version of the Transport. What it holds is not changed.
type storedTransport struct {
	version  int
	spec     *v1alpha1.Transport
	deleting bool
	status   apply.State
}

// outcome is what became of a message.
type outcome struct {
	key               string
	handled, accepted bool
	// failed is why it came into the failure queue, without a problem; excused why it may be gone, and lost why it is though it must not.
	failed, excused, lost string
}

// lateRequest is one that the operator had no answer to, and that is carried out all the same.
type lateRequest struct {
	at   time.Time
	what string
	do   func()
}

// longestLate is a little less than the time for which the operator reckons with that.
const longestLate = 290 * time.Second

func newWorld(t *testing.T, seed uint64, trace *[]string) *world {
	t.Helper()
	time.Sleep(time.Duration(seed%10) * 100 * time.Millisecond) // No clock shows whole seconds.
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), trace: trace, broker: newSimulatedBroker(),
		compiled: map[*v1alpha1.Transport]*compile.Result{}, named: map[string]bool{}, led: map[string]bool{}, bound: map[string]bool{}, homes: map[string]time.Time{},
		abandoned: map[string]bool{}, retained: map[string]bool{}, wasAdopted: map[string]bool{}, dropped: map[string]bool{}, kept: map[string]bool{},
	}
	w.may = faults{
		kills: w.oneIn(3), late: w.oneIn(3), lies: w.oneIn(4), badCounts: w.oneIn(4), cuts: w.oneIn(3), skews: w.oneIn(4), second: w.oneIn(3),
		applications: w.oneIn(4), removals: w.oneIn(3), deletions: w.oneIn(3), silentPods: w.oneIn(8), stubborn: w.oneIn(4),
		exchange: v1alpha1.ExchangeDirect, unrouted: w.oneIn(2),
	}
	if w.oneIn(8) {
		w.may.exchange = v1alpha1.ExchangeTopic
	}
	w.may.strips = w.may.deletions && w.oneIn(3) && !w.may.kills && !w.may.second
	w.may.ordered = w.oneIn(2) && !w.may.removals && !w.may.deletions
	w.may.adopts, w.may.failureQueues = w.oneIn(3), w.oneIn(4)
	w.may.shares, w.may.unroutedMoves, w.may.groups = w.oneIn(4), w.oneIn(5), w.oneIn(3)
	if w.oneIn(8) {
		w.may.exchange = v1alpha1.ExchangeFanout
	}
	if w.may.forgets, w.may.restores = w.oneIn(8), w.oneIn(8); w.may.forgets || w.may.restores {
		w.may.late, w.may.adopts = false, false // which the status alone remembers
	}
	w.may.ordered = w.may.ordered && !w.may.shares && !w.may.forgets && !w.may.restores && w.may.exchange != v1alpha1.ExchangeFanout
	w.may.slow, w.may.slowWork, w.may.refusals = w.oneIn(3), w.oneIn(3), w.oneIn(3)
	w.broker.countAfter = func() time.Duration { return time.Duration(1+w.random.IntN(9)) * time.Second }
	w.broker.gone = w.isGone
	w.broker.arrived = w.hasArrived
	w.policy = w.aPolicy()
	w.create(w.firstSpec())
	w.operators = []*simulatedOperator{{w: w, name: "operator", skew: w.aSkew()}}
	if w.may.second {
		w.operators = append(w.operators, &simulatedOperator{w: w, name: "second operator", skew: w.aSkew()})
	}
	w.may.shared = w.may.second && !w.oneIn(4) // one alone would know of all that is written
	w.tellf("what may happen: %+v", w.may)
	return w
}

func (w *world) oneIn(n int) bool { return w.random.IntN(n) == 0 }

func (w *world) tellf(format string, arguments ...any) {
	if w.trace != nil {
		*w.trace = append(*w.trace, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, arguments...))
	}
}

func (w *world) problemf(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	w.tellf("!!! %s", text)
	if len(w.problems) < 20 {
		w.problems = append(w.problems, text)
	}
}

// run changes things by chance, leaves the Transport alone until its operator has nothing left to do, and looks for each message.
func (w *world) run() {
	changes := 2 + w.random.IntN(6)
	for step := 0; changes > 0 || step < 20; step++ {
		if changes > 0 && step > 6 && w.oneIn(4) {
			changes--
			w.change()
		}
		w.fault()
		operator := w.operators[0]
		if len(w.operators) > 1 && w.oneIn(5) {
			operator = w.operators[1]
		}
		operator.reconcile()
		wait := []time.Duration{0, time.Second, 2 * time.Second, 6 * time.Second, 11 * time.Second, 16 * time.Second, time.Minute, operator.due}
		w.pass(wait[w.random.IntN(len(wait))])
	}
	w.quiet = true
	w.tellf("from here on nobody changes anything")
	for _, q := range w.broker.queues {
		q.hidden = false
	}
	w.settle()
	w.silent = true
	const told = 36 // by then the grace of a quarantine queue is over, and what nobody reads is told
	for look := range 120 {
		w.pass(20 * time.Second)
		w.operators[0].reconcile()
		if !w.holds() && (look > told || !w.may.forgets && !w.may.deletions) {
			break
		}
	}
	w.account()
}

// holds is true while a queue holds messages for workers.
func (w *world) holds() bool {
	for name, q := range w.broker.queues {
		if !isFailure(name) && q.depth() > 0 && !w.abandoned[name] {
			return true
		}
	}
	return false
}

// settle lets the operator go on until it has nothing to do.
func (w *world) settle() {
	const longest = 3 * time.Hour
	began, idle := time.Now(), 0
	for idle < 4 {
		if time.Since(began) > longest {
			w.problemf("it does not end: %s, retiring %v, deleting %t, conflicts %v, problems %v, withheld %v", migrationsText(w.last),
				retirements(w.last.Retiring), w.stored != nil && w.stored.deleting, w.last.Conflicts, w.last.Problems, w.last.Withheld)
			return
		}
		switch {
		case w.stored == nil:
			w.create(w.next)
		case w.stored.deleting && time.Since(began) > time.Hour:
			spec := w.stored.spec.DeepCopy() // Nobody empties a queue, as the condition says.
			spec.Spec.DeletionPolicy = v1alpha1.DeletionRetain
			w.edit(spec)
		}
		operator := w.operators[0]
		operator.reconcile()
		if idle++; !w.rests() {
			idle = 0
		}
		w.pass(max(time.Second, operator.due))
	}
}

// migrationsText tells how far the migrations are.
func migrationsText(report apply.Report) string {
	texts := make([]string, len(report.Migrations))
	for i, m := range report.Migrations {
		texts[i] = fmt.Sprintf("%s<-%s %s %s", m.Queue, m.Standin, m.Step, report.StandIns[m.Queue].Reads)
	}
	return strings.Join(texts, ", ")
}

func retirements(states []v1alpha1.Retirement) (names []string) {
	for _, state := range states {
		names = append(names, state.Queue)
	}
	return names
}

// rests is true where the last look had nothing to do, but for what a person has to do.
func (w *world) rests() bool {
	if w.stored == nil || w.stored.deleting || len(w.late) > 0 {
		return false
	}
	if w.hasKnownConflict() {
		return true
	}
	for _, state := range w.last.Retiring {
		// One that was kept since nobody knew whether it was adopted is read by nobody when others have taken their bindings away.
		kept := w.may.forgets && w.isTold(state.Queue)
		if !w.abandoned[state.Queue] && w.named[state.Queue] && !kept {
			return false
		}
	}
	return len(w.last.Steps)+len(w.last.Migrations)+len(w.last.Conflicts)+len(w.last.Failures)+len(w.last.Withheld) == 0
}

// hasKnownConflict is true for a queue without a mark that an earlier Transport left: its arguments are not changed.
func (w *world) hasKnownConflict() bool {
	return len(w.last.Conflicts) > 0 && !slices.ContainsFunc(w.last.Conflicts, func(c topology.Conflict) bool {
		return !w.retained[c.Object.Name] && !w.wasAdopted[c.Object.Name]
	})
}

// account looks for each message.
func (w *world) account() {
	where := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(w.broker.queues)) {
		for _, message := range w.broker.queues[name].messages() {
			where[message.id] = name
		}
	}
	standing := map[string]int{}
	for id, outcome := range w.messages {
		if !outcome.accepted || outcome.handled || outcome.failed != "" || outcome.excused != "" {
			continue
		}
		queue, stands := where[id]
		switch {
		case stands && isFailure(queue):
		case stands:
			standing[queue]++
		case outcome.lost != "":
			w.problemf("message %d is lost: %s", id, outcome.lost)
		default:
			w.problemf("message %d is lost", id)
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(standing)) {
		consumers := w.broker.queues[queue].consumers
		// One that was kept since nobody knows whether it was adopted has been told of once.
		adopted := w.wasAdopted[queue] || w.stored != nil && slices.Contains(w.stored.status.Adopted, "queue/"+queue)
		found := w.isTold(queue) && (w.abandoned[queue] || !w.named[queue] || w.may.forgets)
		told := len(consumers) > 0 || adopted || w.hasKnownConflict() || w.retained[queue] || found
		if !told {
			w.problemf("%d messages stand in %s (told: %t)", standing[queue], queue, w.isTold(queue))
		}
	}
}

// isTold is true for a queue that the last report says something about.
func (w *world) isTold(queue string) bool {
	findings := slices.Concat(w.last.Warnings, w.last.Problems)
	return slices.ContainsFunc(findings, func(f topology.Finding) bool { return f.Object.Name == queue }) ||
		slices.ContainsFunc(w.last.Blocked, func(b apply.Blocked) bool { return b.Queue == queue })
}

// isGone notes a message that the broker has dropped.
func (w *world) isGone(message simulatedMessage, why string) {
	outcome := &w.messages[message.id]
	if w.stored != nil && w.stored.deleting && w.givenUp {
		outcome.excused = "it was given up"
		return
	}
	w.tellf("--- message %d (%q): %s", message.id, message.key, why)
	if outcome.lost = why; outcome.failed != "" && !outcome.handled {
		w.problemf("message %d had failed (%s) and is gone: %s", message.id, outcome.failed, why)
	}
}

// isHandled notes a message that a worker has handled.
func (w *world) isHandled(message simulatedMessage) {
	again := w.messages[message.id].handled
	w.messages[message.id].handled = true
	// While a queue of a topic exchange is renamed, both queues may get a message: the second copy is none out of order.
	if again || !w.may.ordered || w.messages[message.id].key != "mail" {
		return
	}
	if message.id < w.handled {
		w.problemf("message %d was handled after %d", message.id, w.handled)
	}
	w.handled = max(w.handled, message.id)
}

// hasArrived judges what comes into the failure queue.
func (w *world) hasArrived(queue string, message simulatedMessage) {
	if !isFailure(queue) {
		return
	}
	outcome := &w.messages[message.id]
	home, known := w.homes[message.key]
	switch {
	case message.reason != "":
		outcome.failed = message.reason
	case strings.HasPrefix(message.death, "expired in async.fallback.") && known && (w.dropped[message.key] || !home.IsZero() && !message.parked.After(home)):
		outcome.failed = "its queue had left the spec"
	case strings.HasPrefix(message.death, "expired in async.fallback.") && w.unbound:
		outcome.failed = "a late request had taken its way back"
	default:
		outcome.failed = "it should not have"
		w.problemf("message %d (%q) came into the failure queue: %s", message.id, message.key, message.death)
	}
}

// pass lets time go by.
func (w *world) pass(by time.Duration) {
	for range max(0, by/time.Second) {
		time.Sleep(time.Second)
		w.broker.pass()
		w.snapshot()
		w.happen()
		for _, pod := range slices.Clone(w.pods) {
			pod.work()
		}
		if !w.silent {
			for range w.random.IntN(3) {
				w.publish()
			}
		}
		w.readFailed()
	}
}

// happen carries out what is late, and notes which names lead somewhere.
func (w *world) happen() {
	now := time.Now()
	var left []lateRequest
	due := w.late
	w.late = nil
	for _, request := range due {
		if request.at.After(now) {
			left = append(left, request)
			continue
		}
		w.tellf("    late: %s", request.what)
		w.unbound = w.unbound || strings.HasPrefix(request.what, "- binding")
		request.do()
	}
	w.late = append(left, w.late...)
	if w.stored == nil {
		return
	}
	for name, since := range w.homes {
		switch has := w.hasHome(name); {
		case !has:
			w.homes[name] = time.Time{}
		case since.IsZero() && !slices.ContainsFunc(w.broker.route("async.return", simulatedMessage{key: name}), isFailure) &&
			w.broker.exchanges["async.return"].Name != "":
			w.homes[name] = now
		}
	}
}

// hasHome is true for a name by which the spec lets retries come back.
func (w *world) hasHome(name string) bool {
	work, quarantine := strings.CutSuffix(name, compile.QuarantineSuffix)
	return slices.ContainsFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool {
		return (q.Name == work || slices.Contains(q.PreviousNames, work)) && (!quarantine || q.Ordering == nil)
	})
}

// between is what others do between two requests of an operator.
func (w *world) between() {
	if !w.silent && w.oneIn(2) {
		w.publish()
	}
	if w.oneIn(4) {
		w.happen()
	}
	if len(w.pods) > 0 && w.oneIn(8) {
		w.pods[w.random.IntN(len(w.pods))].work()
	}
	if w.oneIn(200) {
		w.fault()
	}
	if w.may.applications && !w.quiet && w.stored != nil && w.oneIn(30) {
		w.application()
	}
	if w.may.slow && !w.quiet && w.oneIn(12) {
		w.pass(time.Duration(1+w.random.IntN(12)) * time.Second)
	}
}

// publish is a producer.
func (w *world) publish() {
	exchange, key := "async", []string{"test", "test", "mail", "app", "other app"}[w.random.IntN(5)]
	if key == "other app" {
		exchange = "amq.topic"
	}
	message := simulatedMessage{id: len(w.messages), key: key, parked: time.Now()}
	switch chance := w.random.IntN(100); {
	case chance < 3 && w.may.stubborn:
		message.stubborn = 10 + w.random.IntN(30)
	case chance < 10:
		message.stubborn = 1 + w.random.IntN(6)
	case chance < 30:
		message.stubborn = 1
	}
	queues := w.broker.route(exchange, message)
	if exchange == "async" && (w.may.exchange == v1alpha1.ExchangeFanout || w.may.shares && key == "mail" && w.oneIn(2)) {
		w.publishToFamilies(message)
		return
	}
	strays := slices.Equal(queues, []string{"lost"}) || w.may.unroutedMoves && w.isStray(exchange, message)
	if w.led[key] && (len(queues) == 0 || strays) && !w.leaves() && !w.unbound {
		w.problemf("message %d by %q has no way (%v)", message.id, key, queues)
		w.led[key] = false // once is enough
	}
	if len(queues) == 0 {
		return // and the producer knows
	}
	if strays {
		key = ""
	}
	w.messages = append(w.messages, outcome{key: key, accepted: true})
	w.broker.publish(exchange, message)
	if !strays && !w.leaves() && w.wants(key) && w.hasHome(strings.TrimSuffix(queues[0], ".migrating")) {
		w.led[key] = true
	}
}

// leaves is true where there is no Transport, or it is about to go.
func (w *world) leaves() bool { return w.stored == nil || w.stored.deleting }

// wants is true for a key that the spec has, or that is an application's.
func (w *world) wants(key string) bool {
	family, both := strings.CutSuffix(key, "|both")
	if both {
		return slices.ContainsFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool {
			return slices.Contains(q.BindingKeys, family) && (w.may.exchange == v1alpha1.ExchangeFanout || slices.Contains(q.BindingKeys, "both"))
		})
	}
	return slices.ContainsFunc(w.stored.spec.Spec.Queues, func(q v1alpha1.Queue) bool {
		return slices.Contains(q.BindingKeys, key) || w.bound[key] && slices.Contains(q.BindingKeys, "test")
	})
}

// readFailed is a person who takes messages out of the failure queue now and then.
func (w *world) readFailed() {
	for _, name := range failureNames() {
		if q := w.broker.queues[name]; q != nil && len(q.ready) > 0 && w.oneIn(10) {
			for _, m := range q.ready {
				if w.messages[m.id].failed == "" {
					w.messages[m.id].failed = "read"
				}
			}
			q.ready = nil
		}
	}
}

// save writes a status as the API server takes it: of the version that was read.
func (w *world) save(t *storedTransport) error {
	if w.stored == nil || w.stored.version != t.version {
		return errOutdated
	}
	w.version++
	t.version = w.version
	next := *t
	w.stored = &next
	return nil
}

var errOutdated = errors.New("the Transport has changed since it was read")

// compile gives what a spec comes to.
func (w *world) compile(spec *v1alpha1.Transport) *compile.Result {
	if known := w.compiled[spec]; known != nil {
		return known
	}
	asked := w.asked(spec).DeepCopy()
	// No simulated message has that priority, but a configuration has to name the policies of all rules.
	asked.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.priority > 5", RetryPolicyRef: v1alpha1.PolicyReference{Name: "urgent"}}}
	result, err := compile.Compile(asked, map[string]*v1alpha1.RetryPolicy{"policy": w.policy, "urgent": w.policy})
	if err != nil {
		w.t.Fatal(err)
	}
	w.compiled[spec] = result
	return result
}

// lives are the published configurations.
func (w *world) lives() (all []compile.Config) {
	for _, name := range slices.Sorted(maps.Keys(w.published)) {
		all = append(all, *w.published[name])
	}
	return all
}

// publishConfig writes the ConfigMap of a worker group, whose pods read it at their own pace.
func (w *world) publishConfig(config compile.Config) {
	if w.published == nil {
		w.published = map[string]*compile.Config{}
	}
	if err := config.Validate(); err != nil {
		w.t.Fatalf("workers would refuse the configuration of %s: %v", config.Worker, err)
	}
	group := config.Worker
	w.published[group] = &config
	var reads []string
	for _, queue := range config.Queues {
		for _, name := range append(queue.Holding(), queue.Quarantine) {
			w.named[name] = true
		}
		reads = append(reads, fmt.Sprintf("%v/%s%s", queue.Consumed(), queue.Quarantine, map[bool]string{true: " (leaving)"}[queue.Leaving]))
	}
	w.tellf("    published for %s: %s", group, strings.Join(reads, ", "))
	if !slices.ContainsFunc(w.pods, func(pod *simulatedPod) bool { return pod.group == group }) {
		suffix := map[bool]string{true: "", false: " of " + group}[group == "default"]
		w.pods = append(slices.Clip(w.pods), &simulatedPod{w: w, group: group, name: "pod a" + suffix}, &simulatedPod{w: w, group: group, name: "pod b" + suffix},
			&simulatedPod{w: w, group: group, name: "quarantine pod" + suffix, quarantine: true})
	}
	for _, pod := range w.pods {
		if pod.group != group {
			continue
		}
		longest := 5
		switch {
		case w.may.silentPods && !w.quiet:
			longest = 590
		case w.oneIn(3):
			longest = 90
		}
		pod.next, pod.at = &config, time.Now().Add(time.Duration(w.random.IntN(longest))*time.Second)
	}
}

// follow is true where all workers are known to consume a queue that is migrated as they are to.
func (o *simulatedOperator) follow(t *storedTransport) func(string, compile.Reading) bool {
	w := o.w
	return func(queue string, reads compile.Reading) bool {
		for _, live := range w.lives() {
			if !live.Follows(queue, reads) {
				return false
			}
		}
		if w.published == nil {
			return true
		}
		if w.may.silentPods {
			return slices.ContainsFunc(t.status.Migrations, func(m v1alpha1.Migration) bool {
				return m.Queue == queue && m.Since != nil && o.stamps.SinceStep(m, o.now()) >= topology.DefaultWaits().Grace
			})
		}
		return !slices.ContainsFunc(w.pods, func(pod *simulatedPod) bool { return !pod.quarantine && pod.config != w.published[pod.group] })
	}
}
