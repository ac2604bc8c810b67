package apply_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// flow is a producer that publishes without a pause, and workers that follow what the engine says, with a ledger of both.
type flow struct {
	s *stage
	// exchange and keys by which it publishes.
	exchange string
	keys     []string
	// parks is true where some messages fail once and wait in a lane.
	parks bool
	// within is how long a migration may take.
	within time.Duration
	// next is the number of the next message.
	next atomic.Int64
	stop chan struct{}
	done sync.WaitGroup

	// mayReturn is true where messages may be unroutable; those are not published then.
	mayReturn bool
	returned  atomic.Int64
	mu        sync.Mutex
	// gone are the messages that were returned.
	gone map[string]bool
	// as are queues whose messages count as those of another one.
	as map[string]string
	// confirmed are the messages that the broker took, and handled how often each was handled, by queue and number; order is that
	// of the handling.
	confirmed map[string]bool
	handled   map[string]int
	order     map[string][]int
	consumers map[string]*tap
}

// tap is a consumer of one queue.
type tap struct {
	channel *amqp091.Channel
	ended   chan struct{}
}

func newFlow(s *stage, parks bool, keys ...string) *flow {
	f := &flow{
		s: s, exchange: "async", keys: keys, parks: parks, within: 2 * testtransport.Patience, stop: make(chan struct{}),
		confirmed: map[string]bool{}, gone: map[string]bool{}, handled: map[string]int{},
		order: map[string][]int{}, consumers: map[string]*tap{},
	}
	s.t.Cleanup(f.end)
	return f
}

// enough is how many messages are published at least, on a machine however slow.
const enough = 100

func (f *flow) end() {
	select {
	case <-f.stop:
	default:
		for until := time.Now().Add(patience); f.published() < enough && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
		close(f.stop)
	}
	f.done.Wait()
}

// published is how many messages the broker has taken.
func (f *flow) published() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.confirmed)
}

// publish keeps publishing numbers to the exchange, a hundred a second, each confirmed, until its connection ends.
func (f *flow) publish() {
	channel := f.s.channel()
	returns := channel.NotifyReturn(make(chan amqp091.Return, 4096))
	f.done.Go(func() {
		for r := range returns {
			f.returned.Add(1)
			f.mu.Lock()
			f.gone[r.MessageId] = true
			f.mu.Unlock()
		}
	})
	f.done.Go(func() {
		defer func() { _ = channel.Close() }()
		pace := time.NewTicker(8 * time.Millisecond)
		defer pace.Stop()
		type pending struct {
			id      string
			confirm *amqp091.DeferredConfirmation
		}
		window, settled := make(chan pending, 256), make(chan struct{})
		go func() {
			defer close(settled)
			for p := range window {
				if p.confirm.Wait() {
					f.mu.Lock()
					f.confirmed[p.id] = true
					f.mu.Unlock()
				}
			}
		}()
		defer func() {
			close(window)
			select {
			case <-settled:
			case <-time.After(patience): // What is not confirmed is not counted.
			}
		}()
		for {
			select {
			case <-f.stop:
				return
			case <-pace.C:
			}
			n := int(f.next.Add(1)) - 1
			id := strconv.Itoa(n)
			confirm, err := channel.PublishWithDeferredConfirm(f.exchange, f.keys[n%len(f.keys)], true, false, amqp091.Publishing{
				MessageId: id, DeliveryMode: amqp091.Persistent,
			})
			if err != nil {
				return
			}
			select { // what was published just before the stop counts, too
			case window <- pending{id, confirm}:
				continue
			default:
			}
			select {
			case window <- pending{id, confirm}:
			case <-f.stop:
				return
			}
		}
	})
}

// follow consumes work queues as the engine says; a queue that is not there yet is tried again the next time.
func (f *flow) follow(report apply.Report, queues ...string) {
	f.s.t.Helper()
	wanted := map[string]string{}
	for _, queue := range queues {
		config := compile.Queue{Name: queue}
		if standin, migrated := report.StandIns[queue]; migrated {
			config.Standin, config.Reads = standin.Queue, standin.Reads
		}
		for _, name := range config.Consumed() {
			wanted[name] = queue
		}
	}
	for _, name := range report.Leaving {
		if !strings.HasSuffix(name, compile.QuarantineSuffix) {
			wanted[name] = name
		}
	}
	for name, tap := range f.consumers {
		select {
		case <-tap.ended: // The queue is gone.
			delete(f.consumers, name)
			continue
		default:
		}
		if wanted[name] == "" {
			_ = tap.channel.Cancel(name, false)
			<-tap.ended
			delete(f.consumers, name)
		}
	}
	present, err := f.s.client.Observe(context.Background())
	if err != nil {
		return // it is tried again with the next look
	}
	for name, queue := range wanted {
		if _, exists := present.Queues[name]; exists && f.consumers[name] == nil {
			f.tap(name, queue)
		}
	}
}

func (f *flow) tap(name, queue string) {
	channel, out := f.s.channel(), f.s.channel()
	if err := channel.Qos(10, 0, false); err != nil {
		f.s.t.Fatal(err)
	}
	deliveries, err := channel.Consume(name, name, false, false, false, false, nil)
	if err != nil {
		_ = channel.Close() // It has gone since.
		return
	}
	tap := &tap{channel: channel, ended: make(chan struct{})}
	f.consumers[name] = tap
	go func() {
		defer close(tap.ended)
		for delivery := range deliveries {
			f.handle(out, queue, delivery)
		}
	}()
}

// handle counts a message, or lets it fail once: then it comes back by the name of its work queue.
func (f *flow) handle(out *amqp091.Channel, queue string, d amqp091.Delivery) {
	number, _ := strconv.Atoi(d.MessageId)
	if _, parked := d.Headers[message.HeaderLane]; f.parks && !parked && number%20 == 0 {
		confirm, err := out.PublishWithDeferredConfirm("async.fallback", queue, true, false, amqp091.Publishing{
			MessageId: d.MessageId, DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{message.HeaderLane: "3s"},
		})
		if err == nil && confirm.Wait() {
			_ = d.Ack(false)
		}
		return
	}
	f.mu.Lock()
	queue = cmp.Or(f.as[queue], queue)
	f.handled[queue+"/"+d.MessageId]++
	f.order[queue] = append(f.order[queue], number)
	f.mu.Unlock()
	_ = d.Ack(false)
}

// check waits until all is handled, and tells what is lost and what was handled twice by one queue.
func (f *flow) check(queues ...string) (doubled int) {
	t := f.s.t
	t.Helper()
	f.end()
	missing := func() (ids []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for id := range f.confirmed {
			for _, queue := range queues {
				if f.handled[queue+"/"+id] == 0 && (!f.mayReturn || !f.gone[id]) {
					ids = append(ids, queue+"/"+id)
				}
			}
		}
		return ids
	}
	deadline := time.Now().Add(testtransport.Patience) // after a kill a lane may stand for three minutes
	for len(missing()) > 0 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond) // polls for what is still on its way
	}
	if lost := missing(); len(lost) > 0 {
		t.Errorf("lost %d of %d: %v", len(lost), len(f.confirmed), lost[:min(len(lost), 20)])
	}
	if n := f.returned.Load(); n > 0 && !f.mayReturn {
		t.Errorf("%d messages were unroutable", n)
	}
	for _, times := range f.handled {
		doubled += times - 1
	}
	t.Logf("%d messages were published, %d doubled", len(f.confirmed), doubled)
	if len(f.confirmed) < enough {
		t.Error("hardly anything was published meanwhile")
	}
	return doubled
}

// migrating goes on with the engine, as it is run with the port, until no migration is under way; look is called after each run.
func (f *flow) migrating(port apply.Port, queues []string, look func(apply.Report)) (steps []v1alpha1.MigrationStep) {
	s := f.s
	s.t.Helper()
	deadline, idle := time.Now().Add(f.within), 0
	for idle < 2 {
		if time.Now().After(deadline) {
			s.t.Fatalf("the exchange does not end: %+v, %+v", s.state.Migrations, s.state.Retiring)
		}
		report, err := s.onceBy(port)
		if err == nil {
			f.follow(report, queues...)
			if len(report.Conflicts)+len(report.Failures) > 0 {
				s.t.Fatalf("conflicts %v, failures %v", report.Conflicts, report.Failures)
			}
			if idle++; len(report.Migrations)+len(report.Retiring)+len(report.Steps) > 0 {
				idle = 0
			}
			for _, m := range report.Migrations {
				if m.Queue == "test" && (len(steps) == 0 || steps[len(steps)-1] != m.Step) {
					steps = append(steps, m.Step)
				}
			}
		}
		if look != nil {
			look(report)
		}
		time.Sleep(min(300*time.Millisecond, max(10*time.Millisecond, report.RequeueAfter))) // sooner than the engine asks for
	}
	return steps
}

// onceBy runs once, and keeps the state only where the run came to its end.
func (s *stage) onceBy(port apply.Port) (apply.Report, error) {
	s.t.Helper()
	s.now = time.Now()
	report, err := apply.Once(context.Background(), port, s.input(), func(_ context.Context, created []string) error {
		s.state.Created = created
		return nil
	})
	_, young := errors.AsType[*apply.TooYoungError](err)
	if err != nil && !young && !errors.Is(err, errKilled) && !errors.Is(err, broker.ErrUnreachable) { // a loaded broker is asked again
		if _, overtaken := errors.AsType[*apply.OvertakenError](err); !overtaken {
			s.t.Fatal(err)
		}
	}
	if err == nil || young {
		s.state.Keep(&report)
	}
	return report, err
}

// errKilled ends a run as a kill does.
var errKilled = fmt.Errorf("killed: %w", context.Canceled)

// mortal is a broker that carries out one write for each run, and then the run is killed.
type mortal struct {
	apply.Port

	written bool
	kills   int
}

func (m *mortal) Observe(ctx context.Context) (topology.Observed, error) {
	m.written = false
	return m.Port.Observe(ctx)
}

func (m *mortal) write() error {
	if m.written {
		m.kills++
		return errKilled
	}
	m.written = true
	return nil
}

func (m *mortal) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if err := m.write(); err != nil {
		return false, err
	}
	return m.Port.Apply(ctx, step)
}

func (m *mortal) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	if err := m.write(); err != nil {
		return err
	}
	return m.Port.DeleteQueue(ctx, name, ifEmpty, ifUnused)
}

// wholeWay are the steps of every migration.
func wholeWay() []v1alpha1.MigrationStep {
	return []v1alpha1.MigrationStep{
		v1alpha1.MigrationPrepare, v1alpha1.MigrationDivert, v1alpha1.MigrationDrain, v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore,
		v1alpha1.MigrationCleanup,
	}
}

// settled makes the stage as its spec asks for, with lanes, and begins a flow.
func (s *stage) settled(parks bool, keys ...string) *flow {
	s.t.Helper()
	s.stand()
	f := newFlow(s, parks, keys...)
	f.begin()
	return f
}

// begin handles what is in the queue "test", and publishes.
func (f *flow) begin() {
	f.s.t.Helper()
	f.follow(apply.Report{}, "test")
	f.publish()
}

// stand makes the stage as its spec asks for.
func (s *stage) stand() {
	s.t.Helper()
	s.waits = realWaits()
	s.eventually("the objects", func() bool {
		_, err := s.onceBy(s.client)
		return err == nil
	})
	s.allCounted()
	s.eventually("the policy of the exchange to apply", func() bool { return s.snapshot().Exchanges["async"].Policy != "" })
}

func (s *stage) queue(name string) *v1alpha1.Queue {
	for i := range s.spec.Spec.Queues {
		if s.spec.Spec.Queues[i].Name == name {
			return &s.spec.Spec.Queues[i]
		}
	}
	s.t.Fatalf("there is no queue %s", name)
	return nil
}

func TestMigration_LosesNothingUnderTraffic(t *testing.T) {
	t.Parallel()
	classic, quorum := v1alpha1.QueueClassic, v1alpha1.QueueQuorum
	strict := &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	for name, c := range map[string]struct {
		before, after func(q *v1alpha1.Queue)
		ordered       bool
		// nowhere is true where no queue gets what is unroutable.
		nowhere bool
	}{
		"Classic to Quorum":               {before: func(q *v1alpha1.Queue) { q.Type = &classic }, after: func(q *v1alpha1.Queue) { q.Type = &quorum }},
		"Quorum to Classic":               {after: func(q *v1alpha1.Queue) { q.Type = &classic }},
		"no queue for what is unroutable": {after: func(q *v1alpha1.Queue) { q.Type = &classic }, nowhere: true},
		"single active consumer on":       {after: func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) }, ordered: true},
		"single active consumer off": {
			before: func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) }, after: func(q *v1alpha1.Queue) { q.SingleActiveConsumer = nil },
			ordered: true,
		},
		"Strict order on": {after: func(q *v1alpha1.Queue) { q.Ordering = strict }, ordered: true},
		"Classic to Quorum, Strict order": {
			before: func(q *v1alpha1.Queue) { q.Type = &classic }, after: func(q *v1alpha1.Queue) { q.Type, q.Ordering = nil, strict }, ordered: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if c.nowhere {
				s.spec.Spec.Exchange.UnroutedTo = nil
			}
			if c.before != nil {
				c.before(s.queue("test"))
			}
			f := s.settled(!c.ordered, "test")
			c.after(s.queue("test"))
			s.migratedOnce(f)
			if c.ordered && !slices.IsSorted(f.order["test"]) {
				t.Error("the order is lost")
			}
		})
	}
}

// migratedOnce sees the migration of the queue "test" through, in which no message is lost or doubled.
func (s *stage) migratedOnce(f *flow) {
	t := s.t
	t.Helper()
	if told := s.doubling(); len(told) > 0 {
		t.Errorf("messages may be doubled that come by %v", told)
	}
	if steps := f.migrating(s.client, []string{"test"}, nil); !slices.Equal(steps, wholeWay()) {
		t.Errorf("it took the steps %v", steps)
	}
	if doubled := f.check("test"); doubled > 0 {
		t.Errorf("%d messages were handled twice", doubled)
	}
	if s.exists("test.migrating") {
		t.Error("the stand-in is left")
	}
	if !topology.Diff(s.input().Desired, s.snapshot(), s.state.Created).Empty() {
		t.Error("something differs at the end")
	}
}

// doubling are the ways into the queue "test", which is to be migrated, by which messages may come to both queues.
func (s *stage) doubling() []topology.Binding {
	s.t.Helper()
	diff := topology.Diff(s.input().Desired, s.snapshot(), s.state.Created)
	if len(diff.Migrations) != 1 || diff.Migrations[0].Step != v1alpha1.MigrationPrepare {
		s.t.Fatalf("it is not the queue that is about to be migrated: %+v", diff.Migrations)
	}
	return diff.Migrations[0].Doubling
}

func TestMigration_LosesNothingBehindExchangesWithOtherRoutes(t *testing.T) {
	t.Parallel()
	classic := v1alpha1.QueueClassic
	for name, c := range map[string]struct {
		change func(s *stage)
		// exchange and key by which messages come; "async" and "test" where they are empty.
		exchange, key string
	}{
		"topic": {change: func(s *stage) {
			s.spec.Spec.Exchange.Type = v1alpha1.ExchangeTopic
			s.queue("test").BindingKeys = []string{"test.#"}
		}},
		"fanout": {change: func(s *stage) {
			s.spec.Spec.Exchange.Type = v1alpha1.ExchangeFanout
			s.queue("test").BindingKeys, s.queue("lost").BindingKeys = nil, nil
		}},
		"a second queue with the key": {change: func(s *stage) { s.queue("lost").BindingKeys = []string{"lost", "test"} }},
		"a queue for what is unroutable": {change: func(s *stage) {
			s.spec.Spec.Exchange.UnroutedTo = new("test")
			s.queue("test").BindingKeys = nil
		}},
		"an exchange of others": {exchange: "shop.events", key: "order.created", change: func(s *stage) {
			if err := s.amqp.ExchangeDeclare("shop.events", "topic", true, false, false, false, nil); err != nil {
				s.t.Fatal(err)
			}
			s.queue("test").Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#"}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			c.change(s)
			s.stand()
			f := newFlow(s, true, cmp.Or(c.key, "test"))
			f.exchange = cmp.Or(c.exchange, f.exchange)
			f.begin()
			s.queue("test").Type = &classic
			if len(s.doubling()) == 0 {
				t.Error("the plan does not tell that messages may be doubled")
			}
			f.migrating(s.client, []string{"test"}, nil)
			f.check("test")
		})
	}
}

func TestMigration_GoesOnWhenKilledAfterEachStep(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	f := s.settled(true, "test")
	s.bindByAnApplication("test")
	s.queue("test").SingleActiveConsumer = new(true)
	port := &mortal{Port: s.client}
	f.migrating(port, []string{"test"}, nil)
	s.isBoundByTheApplication("test")
	if doubled := f.check("test"); doubled > 0 {
		t.Errorf("%d messages were handled twice", doubled)
	}
	if port.kills < 10 {
		t.Errorf("only %d runs were killed", port.kills)
	}
}

// bindByAnApplication binds a queue as many applications do when they start, once by the key by which the Transport binds it, too.
func (s *stage) bindByAnApplication(queue string) {
	s.t.Helper()
	for _, key := range []string{"test", "theirs"} {
		if err := s.amqp.QueueBind(queue, key, "async", false, amqp091.Table{"note": "kept"}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// isBoundByTheApplication expects its bindings at a queue, and no others that are not ours.
func (s *stage) isBoundByTheApplication(queue string) {
	s.t.Helper()
	var keys []string
	for _, way := range s.snapshot().BindingsTo(queue) {
		if !topology.IsMarked(way) {
			keys = append(keys, fmt.Sprint(way.Source, " ", way.RoutingKey, " ", way.Arguments["note"]))
		}
	}
	slices.Sort(keys)
	if want := []string{"async test kept", "async theirs kept"}; !slices.Equal(keys, want) {
		s.t.Errorf("the application had bound %s by %v, and now has by %v", queue, want, keys)
	}
}

func TestMigration_LosesNothingUnderTwoOperators(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	f := s.settled(true, "test")
	other := &stage{
		t: t, client: s.client, amqp: s.amqp, lanes: s.lanes, owner: s.owner, spec: s.spec, waits: s.waits, url: s.url, state: s.state,
	}
	s.queue("test").SingleActiveConsumer = new(true)
	f.migrating(s.client, []string{"test"}, func(apply.Report) {
		_, _ = other.onceBy(other.client)
	})
	if doubled := f.check("test"); doubled > 0 {
		t.Errorf("%d messages were handled twice", doubled)
	}
}

func TestMigration_LosesNothingWhenTakenBack(t *testing.T) {
	t.Parallel()
	for _, at := range wholeWay() {
		t.Run(string(at), func(t *testing.T) {
			s := newStage(t)
			f := s.settled(true, "test")
			s.queue("test").Type = new(v1alpha1.QueueClassic)
			taken := false
			f.migrating(s.client, []string{"test"}, func(report apply.Report) {
				if len(report.Migrations) > 0 && report.Migrations[0].Step == at && !taken {
					taken = true
					s.queue("test").Type = nil
				}
			})
			if doubled := f.check("test"); doubled > 0 {
				t.Errorf("%d messages were handled twice", doubled)
			}
			if kind := s.snapshot().Queues["test"].Type; !taken || kind != topology.TypeQuorum {
				t.Errorf("the queue is %q at the end", kind)
			}
		})
	}
}

func TestMigration_KeepsTheOrderWhenTakenBack(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	s.queue("test").SingleActiveConsumer = new(true)
	f := s.settled(false, "test")
	s.queue("test").SingleActiveConsumer = nil
	taken := false
	f.migrating(s.client, []string{"test"}, func(report apply.Report) {
		if len(report.Migrations) > 0 && report.Migrations[0].Step == v1alpha1.MigrationDrain && !taken {
			taken = true
			s.queue("test").SingleActiveConsumer = new(true)
		}
	})
	if !taken {
		t.Fatal("the exchange was not taken back: it was never seen to drain")
	}
	f.check("test")
	if !slices.IsSorted(f.order["test"]) {
		t.Error("the order is lost")
	}
}

func TestDeletion_WaitsForStandIns(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	f := s.settled(true, "test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	var report apply.Report
	for len(report.Migrations) == 0 || report.Migrations[0].Step != v1alpha1.MigrationDrain {
		var err error
		if report, err = s.onceBy(s.client); err != nil {
			t.Fatal(err)
		}
		f.follow(report, "test")
	}
	f.end()
	s.state.Retiring = nil
	gone := false
	for done := false; !done; {
		s.now = time.Now()
		deleted := s.remove(gone, false)
		done = deleted.Done
		if deleted.Drained && !gone {
			gone = true
			f.follow(apply.Report{})
		}
		time.Sleep(min(200*time.Millisecond, max(10*time.Millisecond, deleted.RequeueAfter)))
	}
	f.check("test")
	if left := slices.Collect(maps.Keys(s.snapshot().Queues)); len(left) > 0 {
		t.Errorf("left is %v", left)
	}
}

func TestMigration_ConflictsWithAQueueNamedLikeItsStandIn(t *testing.T) {
	s := newStage(t)
	s.once()
	if _, err := s.amqp.QueueDeclare("test.migrating", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	s.queue("test").SingleActiveConsumer = new(true)
	report := s.once()
	if len(report.Conflicts) == 0 || !strings.Contains(report.Conflicts[0].String(), "test.migrating") || len(report.Migrations) > 0 {
		t.Errorf("conflicts %v, migrations %v", report.Conflicts, report.Migrations)
	}
}
