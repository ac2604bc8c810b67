package apply_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/migration"
	"redrive.dev/redrive/internal/topology"
)

// simulatedOperator is a process of the operator, with what it keeps in memory. It does what controllers do with the broker, the configuration of
// workers and the status, in their order.
type simulatedOperator struct {
	w      *world
	name   string
	memory apply.Memory
	doubts apply.Doubts
	stamps topology.Stamps
	// skew is by how much its clock is ahead; negative where it is behind.
	skew time.Duration
	// sent are the deletions without an answer of Transports whose finalizer was taken off.
	sent []v1alpha1.Deletion
	// seen is the Transport as it was read last, and due when the next step is.
	seen *storedTransport
	due  time.Duration
	// left are the writes until it is killed; zero where it is not.
	left int
	// wrote is when it wrote last: no older snapshot serves it. stale is true where another one did.
	wrote time.Time
	stale bool
}

// aSkew is by how much the clock of a process is ahead: by chance, an hour or ten at most.
func (w *world) aSkew() time.Duration {
	if !w.may.skews {
		return 0
	}
	return []time.Duration{0, -10 * time.Hour, -time.Hour, time.Hour, 10 * time.Hour}[w.random.IntN(5)]
}

// now is what the clock of the operator says.
func (o *simulatedOperator) now() time.Time { return time.Now().Add(o.skew) }

// killed is what ends an operator.
type killed struct{}

func (o *simulatedOperator) reconcile() {
	w := o.w
	defer func() {
		switch reason := recover(); reason.(type) {
		case nil:
		case killed:
			w.tellf("  %s is killed", o.name)
			*o = simulatedOperator{w: w, name: o.name, due: time.Duration(w.random.IntN(60)) * time.Second, skew: w.aSkew(), wrote: time.Now()}
		default:
			panic(reason)
		}
	}()
	if lags := len(w.operators) > 1 && !w.quiet && w.oneIn(3); !lags || o.seen == nil {
		o.seen = w.stored
	}
	if o.seen == nil {
		return
	}
	if o.left = 0; w.may.kills && !w.quiet && w.oneIn(4) {
		o.left = 1 + w.random.IntN(14)
	}
	t := *o.seen
	var err error
	if t.deleting {
		err = o.takeDown(&t)
	} else {
		err = o.converge(&t)
	}
	o.due = max(o.due, time.Second)
	if err != nil {
		w.tellf("  %s: %v", o.name, err)
	}
}

// writes is one write: the operator may be killed before it and after it.
func (o *simulatedOperator) writes(do func()) {
	if o.left--; o.left == 0 {
		if o.w.oneIn(2) {
			do()
		}
		panic(killed{})
	}
	do()
}

func (o *simulatedOperator) writeStatus(t *storedTransport) (err error) {
	if o.w.stored != nil && o.w.stored.version == t.version && reflect.DeepEqual(o.w.stored.status, t.status) {
		return nil
	}
	o.w.between()
	o.writes(func() { err = o.w.save(t) })
	return err
}

// current asks the API server whether the Transport still is what was read.
func (o *simulatedOperator) current(t *storedTransport) error {
	if o.w.stored == nil || o.w.stored.version != t.version {
		return errOutdated
	}
	return nil
}

func (o *simulatedOperator) state(t *storedTransport) apply.State {
	state := t.status
	state.Adopted = slices.Clone(state.Adopted)
	for _, q := range t.spec.Spec.Queues {
		if q.Adopt != nil && *q.Adopt {
			state.Adopted = append(state.Adopted, "queue/"+q.Name)
		}
	}
	o.doubts = o.doubts.See(slices.Concat(state.Deletions, o.sent), o.now())
	o.stamps = o.stamps.See(state.Retiring, state.Migrations, o.now())
	state.Memory, state.Doubts, state.Stamps = o.memory, o.doubts, o.stamps
	return state
}

func (o *simulatedOperator) writeDeletions(t *storedTransport) func(context.Context, []v1alpha1.Deletion) error {
	return func(_ context.Context, deletions []v1alpha1.Deletion) error {
		t.status.Deletions = deletions
		if err := o.writeStatus(t); err != nil {
			return err
		}
		return o.current(t)
	}
}

// converge is one reconcile of a Transport.
func (o *simulatedOperator) converge(t *storedTransport) error {
	w, ctx := o.w, context.Background()
	o.due = 5 * time.Second
	result := w.compile(t.spec)
	needs := result.Needs
	for _, live := range w.lives() {
		needs.Lanes = slices.Concat(needs.Lanes, live.Lanes)
		slices.Sort(needs.Lanes)
		needs.Lanes = slices.Compact(needs.Lanes)
	}
	desired, err := topology.Desired(w.asked(t.spec), needs, owner)
	if err != nil {
		w.t.Fatal(err)
	}
	port := simulatedPort{o}
	observed, err := port.Observe(ctx)
	if err != nil {
		return err
	}
	input := apply.Input{
		Desired: desired, State: o.state(t), Published: w.lives(), Follows: o.follow(t), Waits: topology.DefaultWaits(), Now: o.now(),
		WriteDeletions: o.writeDeletions(t), Others: o.sent,
	}
	prepared, err := apply.Prepare(input, observed)
	if err != nil {
		return err
	}
	if d := prepared.Difference; o.stale && (!input.State.Begun && len(d.ExtraQueues) > 0 || d.Moves() || len(d.Conflicts)+len(d.Problems) > 0) {
		o.wrote = time.Now() // from now on it looks itself
		if observed, err = port.Observe(ctx); err != nil {
			return err
		}
		if prepared, err = apply.Prepare(input, observed); err != nil {
			return err
		}
	}
	t.status.Broker = &v1alpha1.BrokerIdentity{Cluster: observed.Cluster, VHost: observed.VHost}
	t.status.Begun, t.status.Created = true, prepared.Created
	for _, kept := range prepared.Kept {
		if !slices.Contains(t.status.Adopted, kept) {
			t.status.Adopted = append(slices.Clip(t.status.Adopted), kept)
		}
	}
	if len(prepared.Plan) > 0 {
		if err := o.writeStatus(t); err != nil {
			return err
		}
	}
	if !prepared.Difference.Empty() {
		if err := o.current(t); err != nil {
			return err
		}
	}
	report, err := prepared.CarryOut(ctx, port)
	o.memory = report.Memory
	o.stamps = o.stamps.See(report.Retiring, report.Migrations, o.now())
	t.status.Created, t.status.Adopted, t.status.Deletions = report.Created, report.Adopted, report.Deletions
	t.status.Retiring, t.status.Migrations = report.Retiring, report.Migrations
	w.last = report
	o.tellStatus(t, report)
	if report.RequeueAfter > 0 {
		o.due = min(report.RequeueAfter, time.Minute)
	} else if err == nil {
		o.due = time.Minute
	}
	if err == nil {
		w.unbound = false
		o.configure(result, report)
	}
	if left := o.writeStatus(t); err == nil {
		err = left
	}
	return err
}

func (o *simulatedOperator) tellStatus(t *storedTransport, report apply.Report) {
	if o.w.trace == nil {
		return
	}
	var texts []string
	if len(report.Migrations) > 0 {
		texts = append(texts, migrationsText(report))
	}
	for _, state := range report.Retiring {
		texts = append(texts, "-"+state.Queue)
	}
	for _, deletion := range t.status.Deletions {
		texts = append(texts, "?"+deletion.Object)
	}
	if len(report.Conflicts)+len(report.Failures)+len(report.Skipped)+len(report.Problems) > 0 {
		texts = append(texts, fmt.Sprintf("conflicts %v, failures %v, skipped %d, problems %v", report.Conflicts, report.Failures, len(report.Skipped),
			report.Problems))
	}
	if len(texts) > 0 || len(report.Steps) > 0 {
		o.w.tellf("  %s: %s leaving %v", o.name, strings.Join(texts, "; "), report.Leaving)
	}
}

// configure publishes what the workers are to do, and runs the pod for quarantined messages.
func (o *simulatedOperator) configure(result *compile.Result, report apply.Report) {
	w := o.w
	keeps := len(report.Conflicts) > 0 || report.KeepsWorkers()
	for i := range result.Workers {
		if last := w.published[result.Workers[i].Worker]; last != nil {
			keeps = keeps || report.Unreachable(*last, result.Workers[i].WithStandIns(report.StandIns)) != ""
		}
	}
	groups := make([]compile.Config, len(result.Workers))
	for i := range groups {
		groups[i] = result.Workers[i].WithStandIns(report.StandIns)
	}
	unserved := compile.Unserved(groups, func(group, queue string) bool { return w.published[group] != nil && w.published[group].Has(queue) })
	for i := range result.Workers {
		last := w.published[result.Workers[i].Worker]
		var next compile.Config
		var publishes bool
		switch {
		case keeps && last == nil:
			continue
		case keeps:
			var follows, holds bool
			next, follows = last.Following(report.StandIns, report.Leaving, report.There())
			next, holds = next.Holding(report.Holds(next, w.lives()))
			publishes = follows || holds
		default:
			next = groups[i]
			if last != nil {
				next = next.WithHandedOver(last, groups, unserved)
				next = next.WithLeaving(*last, report.Leaving)
			}
			next, _ = next.Holding(report.Holds(next, w.lives()))
			publishes = last == nil || !reflect.DeepEqual(next, *last)
		}
		if publishes {
			w.between()
			o.writes(func() { w.publishConfig(next) })
		}
	}
	counts := map[string]int64{}
	for _, queue := range report.Queues {
		if queue.Messages != nil {
			counts[queue.Name] = *queue.Messages
		}
	}
	w.runQuarantine(counts)
	for _, name := range slices.Sorted(maps.Keys(w.published)) {
		if !slices.ContainsFunc(groups, func(c compile.Config) bool { return c.Worker == name }) {
			o.configureFormer(w.published[name], groups, unserved, keeps, report)
		}
	}
}

// configureFormer publishes what a group that has left the spec goes on with, and deletes one that has nothing to do any more.
func (o *simulatedOperator) configureFormer(
	last *compile.Config, groups []compile.Config, unserved map[string]bool, keeps bool, report apply.Report,
) {
	w := o.w
	next, goesOn := last.Former(groups, unserved, report.Leaving)
	if keeps {
		next, _ = last.Following(report.StandIns, report.Leaving, report.There())
		goesOn = true
	}
	next, _ = next.Holding(report.Holds(next, w.lives()))
	switch {
	case !goesOn:
		w.between()
		o.writes(func() { w.removeGroup(last.Worker) })
	case !reflect.DeepEqual(next, *last):
		w.between()
		o.writes(func() { w.publishConfig(next) })
	}
}

// runQuarantine runs the pod for quarantined messages where there are some.
func (w *world) runQuarantine(counts map[string]int64) {
	for _, pod := range w.pods {
		if !pod.quarantine {
			continue
		}
		if w.published[pod.group] == nil {
			continue // its group is gone, and it ends
		}
		some, known := false, true
		for _, queue := range w.published[pod.group].Queues {
			messages, counted := counts[queue.Quarantine]
			some, known = some || messages > 0, known && (counted || queue.Quarantine == "")
		}
		if some && pod.idle {
			pod.starts = time.Now().Add(time.Duration(w.random.IntN(100)) * time.Second)
		}
		if some || known {
			pod.idle = !some
		}
	}
}

// takeDown is one reconcile of a Transport that is deleted.
func (o *simulatedOperator) takeDown(t *storedTransport) error {
	w := o.w
	o.due = 5 * time.Second
	if t.status.Broker == nil {
		return o.release(t, "nothing was ever made")
	}
	if t.spec.Spec.DeletionPolicy == v1alpha1.DeletionRetain {
		if left := o.state(t).Doubts.Awaited(t.status.Deletions, topology.DefaultWaits(), o.now()); left > 0 {
			o.due = left
			return nil
		}
		return o.release(t, "Retain")
	}
	if err := o.current(t); err != nil {
		return err
	}
	gone := len(w.pods) == 0
	report, err := apply.Delete(context.Background(), simulatedPort{o}, apply.DeleteInput{
		Owner: owner, Prefix: "async", State: o.state(t), Force: t.spec.Spec.DeletionPolicy == v1alpha1.DeletionDelete, WorkersGone: gone,
		Waits: topology.DefaultWaits(), Now: o.now(), WriteDeletions: o.writeDeletions(t),
	})
	t.status.Created, t.status.Deletions, t.status.Retiring = report.Created, report.Deletions, report.Retiring
	o.stamps = o.stamps.See(report.Retiring, nil, o.now())
	w.tellf("  %s: deleting, drained %t, blocked %v, uncounted %v, retiring %v", o.name, report.Drained, report.Blocked, report.Uncounted,
		retirements(report.Retiring))
	if report.RequeueAfter > 0 {
		o.due = min(report.RequeueAfter, time.Minute)
	}
	switch {
	case err != nil:
	case report.Done:
		return o.release(t, "all is gone")
	case gone:
	case report.Drained:
		w.judgeDrained()
		for _, pod := range w.pods {
			pod.ending = true
		}
	default:
		counts := map[string]int64{}
		for _, blocked := range report.Blocked {
			counts[blocked.Queue] = blocked.Messages
		}
		if w.published != nil {
			w.runQuarantine(counts)
			o.readOn(report.Retiring)
		}
	}
	if left := o.writeStatus(t); err == nil {
		err = left
	}
	return err
}

// readOn lets workers go on to the other one of a queue and its stand-in when that which they read is empty.
func (o *simulatedOperator) readOn(states []v1alpha1.Retirement) {
	w := o.w
	for _, group := range slices.Sorted(maps.Keys(w.published)) {
		live := w.published[group]
		next, changed := migration.ReadOn(*live, o.stamps.Retiring(states, o.now()), topology.DefaultWaits().Unbound, o.now())
		if changed {
			o.writes(func() { w.publishConfig(next) })
		}
	}
}

// release lets the Transport go, and its workers with it.
func (o *simulatedOperator) release(t *storedTransport, why string) error {
	if err := o.current(t); err != nil {
		return err
	}
	w := o.w
	o.writes(func() {
		w.tellf("  the Transport is gone: %s", why)
		w.end()
	})
	*o = simulatedOperator{w: w, name: o.name, left: o.left, sent: o.sent, skew: o.skew, wrote: o.wrote}
	return nil
}

// end takes the Transport and its workers away.
func (w *world) end() {
	w.stored, w.published = nil, nil
	for _, pod := range w.pods {
		pod.cut()
	}
	w.pods = nil
}

// remember keeps what a Transport has deleted without an answer, and begins with the next one.
func (o *simulatedOperator) remember(sent []v1alpha1.Deletion) {
	*o = simulatedOperator{w: o.w, name: o.name, doubts: o.doubts, sent: slices.Concat(o.sent, sent), skew: o.skew, wrote: o.wrote}
}

// simulatedPort is the management API, as one operator reaches it.
type simulatedPort struct{ o *simulatedOperator }

func (p simulatedPort) Observe(context.Context) (topology.Observed, error) {
	w := p.o.w
	if w.between(); w.isDown() {
		return topology.Observed{}, broker.ErrUnreachable
	}
	observed := w.broker.observe()
	if p.o.stale = false; w.may.shared && !w.quiet && w.oneIn(2) {
		if old := w.snapshotsSince(p.o.wrote); len(old) > 0 {
			observed, p.o.stale = old[w.random.IntN(len(old))].observed, true
		}
	}
	if w.may.lies && !w.quiet && w.oneIn(6) {
		lacking, what, err := w.broker.lacks(observed, w.random.IntN)
		w.tellf("  the list lacks %s", what)
		return lacking, err
	}
	return observed, nil
}

// refuses is true for a request that the broker does not carry out.
func (w *world) refuses() bool { return w.may.refusals && !w.quiet && w.oneIn(20) }

// snapshot is what somebody saw on the broker.
type snapshot struct {
	at       time.Time
	observed topology.Observed
}

// snapshot takes one, as another Transport of the vhost does. Those of the last five seconds are kept.
func (w *world) snapshot() {
	if w.may.shared && !w.isDown() {
		w.snapshots = append(w.snapshots, snapshot{time.Now(), w.broker.observe()})
		w.snapshots = w.snapshots[max(0, len(w.snapshots)-5):]
	}
}

func (w *world) snapshotsSince(wrote time.Time) []snapshot {
	return slices.DeleteFunc(slices.Clone(w.snapshots), func(s snapshot) bool { return time.Since(s.at) >= 5*time.Second || !s.at.After(wrote) })
}

func (p simulatedPort) Queue(_ context.Context, name string) (topology.QueueState, error) {
	if p.o.w.between(); p.o.w.isDown() || p.o.w.refuses() {
		return topology.QueueState{}, broker.ErrUnreachable
	}
	if q := p.o.w.broker.queues[name]; q != nil {
		return p.o.w.broker.state(q), nil
	}
	return topology.QueueState{}, broker.ErrNotFound
}

func (p simulatedPort) Bindings(_ context.Context, queue string) ([]topology.Binding, error) {
	if p.o.w.between(); p.o.w.isDown() || p.o.w.refuses() {
		return nil, broker.ErrUnreachable
	}
	return p.o.w.broker.bindingsTo(queue), nil
}

func (p simulatedPort) Apply(_ context.Context, step topology.Step) (bool, error) {
	w := p.o.w
	if b := step.Binding; b != nil && step.Action == topology.ActionCreate && !w.may.late && !w.may.second {
		if q := w.broker.queues[b.Destination]; q != nil && q.quorum() && time.Since(q.made) < time.Second {
			w.problemf("%s is bound in its first second", b.Destination)
		}
	}
	return p.write(strings.SplitN(step.String(), "  ", 2)[0], func() (bool, error) { return w.broker.apply(step) })
}

func (p simulatedPort) DeleteQueue(_ context.Context, name string, ifEmpty, ifUnused bool) error {
	if p.o.w.kept[name] && !p.o.w.may.second {
		p.o.w.problemf("%s is deleted, and was adopted", name)
	}
	_, err := p.write("- queue "+name, func() (bool, error) { return false, p.o.w.broker.deleteQueue(name, ifEmpty, ifUnused) })
	return err
}

func (p simulatedPort) DeleteExchange(_ context.Context, name string) error {
	_, err := p.write("- exchange "+name, func() (bool, error) { return false, p.o.w.broker.deleteExchange(name) })
	return err
}

// write is a request that changes something. It may be carried out late, and its operator may be killed.
func (p simulatedPort) write(what string, do func() (bool, error)) (existed bool, err error) {
	w := p.o.w
	defer func() { p.o.wrote = time.Now() }()
	if w.between(); w.isDown() {
		return false, broker.ErrUnreachable
	}
	if w.refuses() {
		w.tellf("    %s: refused", what)
		return false, broker.ErrForbidden
	}
	if w.may.late && !w.quiet && w.oneIn(25) {
		after := time.Duration(1+w.random.Int64N(int64(longestLate/time.Second))) * time.Second
		if w.may.ordered && strings.HasPrefix(what, "+ binding") {
			// Creations are not written down, and one that is minutes late leads into a queue that has been replaced meanwhile: docs/reliability.md.
			after = min(after, 20*time.Second)
		}
		w.tellf("    %s: no answer; carried out in %s", what, after)
		w.late = append(w.late, lateRequest{at: time.Now().Add(after), what: what, do: func() { _, _ = do() }})
		p.o.writes(func() {})
		w.pass(time.Duration(w.random.IntN(2)) * 30 * time.Second)
		return false, broker.ErrUnreachable
	}
	p.o.writes(func() {
		existed, err = do()
		w.tellf("    %s%s", what, map[bool]string{true: fmt.Sprintf(": %v", err)}[err != nil])
	})
	w.between()
	return existed, err
}
