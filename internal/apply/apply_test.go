package apply_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

func TestOnce_WritesNothingInASecondRun(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{
		Name: "wörk / 1.2+", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"a b/ü", ""},
		SingleActiveConsumer: new(true),
		Limits:               &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Hour), DropOldestAfter: new(int64(9))},
		Bindings:             []v1alpha1.Binding{{Exchange: "amq.topic", Keys: []string{"order.#"}}},
	})
	first := s.once()
	if !first.Converged() || int64(len(first.Steps)) != s.writes.Load() {
		t.Errorf("%d writes for %d steps: %+v", s.writes.Load(), len(first.Steps), first)
	}
	if want := []string{"exchange/async", "queue/wörk / 1.2+"}; !slices.Equal(first.Created, want) {
		t.Errorf("want created %v, got %v", want, first.Created)
	}
	s.writes.Store(0)
	second := s.once()
	if s.writes.Load() != 0 || len(second.Steps) != 0 || !second.Converged() || len(second.Warnings) != 0 {
		t.Errorf("%d writes: %+v", s.writes.Load(), second)
	}
	if len(second.Queues) != 9 || second.Identity.Cluster == "" || len(second.Adopted) != 0 {
		t.Errorf("counts of 9 queues, an identity and nothing adopted: %+v", second)
	}
	s.allCounted()
	if third := s.once(); s.writes.Load() != 0 || len(third.Warnings) != 0 {
		t.Errorf("%d writes when the broker's figures have come: %+v", s.writes.Load(), third.Warnings)
	}
}

func TestOnce_RepairsDrift(t *testing.T) {
	s := newStage(t)
	s.once()
	ctx := context.Background()
	if err := s.client.DeleteQueue(ctx, "async.fallback.1s", false, false); err != nil {
		t.Fatal(err)
	}
	if err := s.amqp.QueueUnbind("test", "test", "async", amqp091.Table{"redrive-owner": owner}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Apply(ctx, topology.Step{Action: topology.ActionUpdate, Policy: &topology.Policy{
		Name: "redrive.async:queue:test", Pattern: "^test$", ApplyTo: "queues", Priority: 100,
		Definition: topology.Arguments{"delivery-limit": 3},
	}}); err != nil {
		t.Fatal(err)
	}
	want := `+ queue async.fallback.1s  x-dead-letter-exchange=async.return, x-dead-letter-strategy=at-least-once, x-message-ttl=1000, x-overflow=reject-publish, x-queue-type=quorum
~ policy redrive.async:queue:test  delivery-limit: 3 -> 20
+ binding async.fallback -> async.fallback.1s redrive-lane=1s
+ binding async -> test "test"`
	if got := steps(s.once().Steps); got != want {
		t.Errorf("want:\n%s\ngot:\n%s", want, got)
	}
}

func TestOnce_MakesTheWaysThatMessagesTake(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "1s"})
	if got := s.take("test"); got.RoutingKey != "test" {
		t.Errorf("a retry comes back with its routing key, got %q", got.RoutingKey)
	}
	s.publish("async.return", "test", nil)
	s.take("test")
	s.publish("async.failed", "anything", nil)
	s.take("async.failed")
	s.publish("async.return", "a queue that is gone", nil)
	s.take("async.failed")

	s.publish("async", "test", nil)
	delivery := s.get("test")
	if err := delivery.Reject(false); err != nil {
		t.Fatal(err)
	}
	s.take("async.failed")
}

// get waits for one message and leaves it unacknowledged.
func (s *stage) get(queue string) amqp091.Delivery {
	s.t.Helper()
	var got amqp091.Delivery
	s.eventually("a message in "+queue, func() bool {
		delivery, ok, err := s.amqp.Get(queue, false)
		if err != nil {
			s.t.Fatal(err)
		}
		got = delivery
		return ok
	})
	return got
}

func TestFailureQueue_KeepsAMessageHoweverOftenItIsReturned(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async.failed", "", nil)
	for range 30 {
		if err := s.get("async.failed").Reject(true); err != nil {
			t.Fatal(err)
		}
	}
	s.take("async.failed")
}

func TestExchange_WorksForAProducerThatDeclaresItPlainly(t *testing.T) {
	s := newStage(t)
	s.once()
	if err := s.amqp.ExchangeDeclare("async", "direct", true, false, false, false, nil); err != nil {
		t.Fatalf("a plain declaration: %v", err)
	}
	if err := s.amqp.QueueBind("test", "test", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	s.publish("async", "test", nil)
	s.take("test")
	if _, again, err := s.amqp.Get("test", true); again || err != nil {
		t.Errorf("a producer's own binding beside ours doubles messages: %v, %v", again, err)
	}
	s.publish("async", "a key that nobody bound", nil)
	if got := s.take("lost"); got.RoutingKey != "a key that nobody bound" {
		t.Errorf("got routing key %q", got.RoutingKey)
	}
	s.writes.Store(0)
	if report := s.once(); s.writes.Load() != 0 {
		t.Errorf("the producer's binding is none of ours: %s", steps(report.Steps))
	}
}

func TestUnroutedTo_ReturnsUnroutableMessagesWhereItIsUnset(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Exchange.UnroutedTo = nil
	s.once()
	returns := s.amqp.NotifyReturn(make(chan amqp091.Return, 1))
	if err := s.amqp.Publish("async", "a key that nobody bound", true, false, amqp091.Publishing{}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-returns:
		if got.ReplyCode != amqp091.NoRoute {
			t.Errorf("got %d %s", got.ReplyCode, got.ReplyText)
		}
	case <-time.After(10 * time.Second):
		t.Error("a mandatory message that nobody takes must come back")
	}
}

func TestConflict_StopsNothingElse(t *testing.T) {
	s := newStage(t)
	if _, err := s.amqp.QueueDeclare("test", true, false, false, false, amqp091.Table{"x-max-length": 5}); err != nil {
		t.Fatal(err)
	}
	report := s.once()
	if len(report.Conflicts) != 1 || !strings.Contains(report.Conflicts[0].String(), `queue "test": type is classic, wanted is quorum`) {
		t.Errorf("conflicts: %v", report.Conflicts)
	}
	if len(report.Withheld) != 2 || report.Converged() {
		t.Errorf("withheld: %v", report.Withheld)
	}
	s.publish("async", "test", nil)
	s.publish("async", "lost", nil)
	for range 2 { // "test" is unroutable as long as it is in conflict, and goes to "lost" too.
		s.take("lost")
	}
	if _, ok, err := s.amqp.Get("test", true); ok || err != nil {
		t.Errorf("a message came into the queue in conflict: %v, %v", ok, err)
	}
}

func TestAdoption_TakesWhatExistedAndNeverDeletesIt(t *testing.T) {
	s := newStage(t)
	if err := s.amqp.ExchangeDeclare("async", "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.amqp.QueueDeclare("theirs", true, false, false, false, amqp091.Table{"x-dead-letter-exchange": "async.failed"}); err != nil {
		t.Fatal(err)
	}
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{
		Name: "theirs", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"theirs"},
	})
	report := s.once()
	if want := []string{"exchange/async", "queue/theirs"}; !slices.Equal(report.Adopted, want) || len(report.Created) != 0 {
		t.Errorf("want adopted %v and nothing created, got %v, %v", want, report.Adopted, report.Created)
	}
	s.allCounted()
	if report := s.remove(true, true); !report.Done {
		t.Errorf("not done: %+v", report)
	}
	observed, err := s.client.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, kept := observed.Exchanges["async"]; !kept || len(observed.Queues) != 2 || len(observed.Bindings) != 1 || len(observed.Policies) != 1 {
		t.Errorf("only what was adopted, and what it dead-letters to, may be left: %v, %v, %v", observed.Queues, observed.Bindings, observed.Policies)
	}
}

func TestRetirement_RemovesALaneOnceItsMessagesAreBack(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "3s"})
	s.lanes = s.lanes[:1]

	if report := s.once(); len(report.Steps) != 0 || len(report.Retiring) != 1 || report.RequeueAfter < 9*time.Minute {
		t.Errorf("workers may still publish into it: %+v", report)
	}
	s.allCounted() // A count that was there is told from the next; the first one of all is only noted.
	s.later(11 * time.Minute)
	if got := steps(s.once().Steps); got != "- binding async.fallback -> async.fallback.3s redrive-lane=3s" {
		t.Errorf("want it unbound, got %s", got)
	}
	s.take("test")
	s.counted("async.fallback.3s", 0)
	s.later(16 * time.Second)
	s.once()
	if !s.exists("async.fallback.3s") {
		t.Fatal("it is gone too early")
	}
	for range 5 { // The count of a busy broker may be from before, and another look is needed then.
		s.later(11 * time.Second)
		if s.once(); !s.exists("async.fallback.3s") {
			break
		}
	}
	if s.exists("async.fallback.3s") || len(s.state.Retiring) != 0 {
		t.Errorf("it is still there: %+v", s.state.Retiring)
	}
}

func TestRetirement_KeepsALaneThatIsWantedAgain(t *testing.T) {
	s := newStage(t)
	s.once()
	all := s.lanes
	s.lanes = all[:1]
	s.once()
	s.later(11 * time.Minute)
	s.once()
	s.lanes = all
	report := s.once()
	if got := steps(report.Steps); got != "+ binding async.fallback -> async.fallback.3s redrive-lane=3s" || len(report.Retiring) != 0 {
		t.Errorf("want it bound again, got %s, %v", got, report.Retiring)
	}
}

func TestRetirement_KeepsAWorkQueueWhileItHoldsMessages(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]

	if got := steps(s.once().Steps); got != `- binding async -> test "test"` {
		t.Errorf("want the producers' side unbound, got %s", got)
	}
	s.publish("async.return", "test", nil) // A retry that still comes back.
	s.counted("test", 2)
	s.later(16 * time.Second)
	report := s.once()
	if want := []apply.Blocked{{Queue: "test", Messages: 2}}; !slices.Equal(report.Blocked, want) || report.RequeueAfter == 0 {
		t.Errorf("want %v, got %+v", want, report)
	}
	s.take("test")
	s.take("test")
	s.counted("test", 0)
	s.eventually("the way back from the lanes unbound", func() bool { // whoever took the messages may have put them into a lane
		s.later(16 * time.Second)
		return steps(s.once().Steps) == `- binding async.return -> test "test"`
	})
	s.later(16 * time.Second)
	s.once()
	s.later(11 * time.Second)
	s.once()
	if s.exists("test") {
		t.Error("it is still there")
	}
	if got := steps(s.once().Steps); got != "- policy redrive.async:queue:test" {
		t.Errorf("its policy goes last: %s", got)
	}
	s.untilRetired()
	if report := s.once(); s.exists("test.quarantine") || !report.Converged() {
		t.Errorf("its quarantine queue goes after it: %+v", report)
	}
}

// The wait for lanes began when the queue was unbound. Behind a backlog it was over long before the last message was handled, and a retry that went into a
// lane then did not come back, but into the failure queue.
func TestRetirement_WaitsForLanesFromTheLastMessageOfWorkers(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.allCounted()
	s.spec.Spec.Queues, s.consumed = s.spec.Spec.Queues[:1], []string{"test"}
	s.once()
	s.later(16 * time.Second)
	if s.once(); s.retiring("test").Unbound != nil {
		t.Errorf("the wait has begun: %+v", s.retiring("test"))
	}
	s.take("test")
	s.counted("test", 0)
	s.later(time.Second)
	if report := s.once(); len(report.Steps) > 0 {
		t.Errorf("a retry of the last message cannot come back: %s", steps(report.Steps))
	}
	s.consumed = nil // by now a worker would have handled it
	s.untilRetired()
	if s.exists("test") {
		t.Error("it is still there")
	}
}

func TestOnce_LeavesOtherTransportsOfTheVHostAlone(t *testing.T) {
	s := newStage(t)
	other := s.beside("blog")
	s.once()
	other.once()
	for range 2 {
		if report := s.once(); len(report.Steps) != 0 || !report.Converged() {
			t.Errorf("async: %+v", report)
		}
		if report := other.once(); len(report.Steps) != 0 || !report.Converged() {
			t.Errorf("blog: %+v", report)
		}
	}
	if report := s.remove(true, true); !report.Done {
		t.Errorf("not done: %+v", report)
	}
	if report := other.once(); len(report.Steps) != 0 || !report.Converged() {
		t.Errorf("the other one lost something: %s", steps(report.Steps))
	}

	same := s.beside("thief")
	same.spec.Spec.Prefix = new("blog")
	report := same.once()
	if len(report.Conflicts) == 0 || !strings.Contains(report.Conflicts[0].String(), "owned by the Transport shop/blog") {
		t.Errorf("a prefix can be used once: %v", report.Conflicts)
	}
	if report := other.once(); len(report.Steps) != 0 || !report.Converged() {
		t.Errorf("the owner of the prefix lost something: %+v", report)
	}
}

func TestOnce_MakesNothingBeforeItIsWrittenDown(t *testing.T) {
	s := newStage(t)
	_, err := apply.Once(context.Background(), s.client, s.input(), func(_ context.Context, created []string) error {
		if s.writes.Load() != 0 || !slices.Equal(created, []string{"exchange/async"}) {
			t.Errorf("%d writes before %v was written down", s.writes.Load(), created)
		}
		return errors.New("the API server is away")
	})
	if err == nil || s.writes.Load() != 0 {
		t.Errorf("want no write, got %d, %v", s.writes.Load(), err)
	}
}

func TestCheckIdentity_RefusesAnotherBroker(t *testing.T) {
	s := newStage(t)
	s.state.Broker = &v1alpha1.BrokerIdentity{Cluster: "elsewhere", VHost: "/"}
	_, err := apply.Once(context.Background(), s.client, s.input(), nil)
	var changed *apply.BrokerChangedError
	if !errors.As(err, &changed) || s.writes.Load() != 0 || !strings.Contains(err.Error(), `cluster "elsewhere"`) {
		t.Errorf("want a BrokerChangedError and no write, got %v", err)
	}
	here := s.snapshot().Identity
	if here.ClusterID == "" {
		t.Error("the broker has no ID")
	}
	s.state.Broker = &v1alpha1.BrokerIdentity{Cluster: here.Cluster, ClusterID: "another", VHost: here.VHost}
	_, err = apply.Once(context.Background(), s.client, s.input(), nil)
	if !errors.As(err, &changed) || s.writes.Load() != 0 || !strings.Contains(err.Error(), "another one of that name (its ID is "+here.ClusterID) {
		t.Errorf("want a BrokerChangedError and no write, got %v", err)
	}
	_, err = apply.Delete(context.Background(), s.client, apply.DeleteInput{Owner: owner, Prefix: "async", State: s.state})
	if !errors.As(err, &changed) || s.writes.Load() != 0 {
		t.Errorf("want a BrokerChangedError and no write, got %v", err)
	}
}

// A cluster into which the definitions of another are imported takes its ID: that is how one is moved or restored.
func TestCheckIdentity_RefusesABrokerWithDefinitionsOfAnother(t *testing.T) {
	s := newStage(t)
	s.once()
	here := s.snapshot()
	if len(here.Nodes) == 0 {
		t.Fatal("the broker names no node")
	}
	s.state.Broker = &v1alpha1.BrokerIdentity{
		Cluster: here.Cluster, ClusterID: here.ClusterID, VHost: here.VHost, Nodes: here.Nodes,
	}
	s.once()

	second, err := testbroker.Start(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	second.Import(t, testbroker.Shared(t), here.VHost)
	found, err := credentials.FromURLs(second.AMQPURL, second.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	end, err := found.Management()
	if err != nil {
		t.Fatal(err)
	}
	there, err := broker.New(broker.Config{ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: here.VHost})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(there.Close)
	seen, err := there.Observe(t.Context())
	if err != nil || len(seen.Queues) != len(here.Queues) || slices.Equal(seen.Nodes, here.Nodes) {
		t.Fatalf("want another broker with the queues of the first: %v, %v", seen.Nodes, err)
	}
	port := &unwritten{Port: there}
	_, err = apply.Once(t.Context(), port, s.input(), nil)
	var changed *apply.BrokerChangedError
	if !errors.As(err, &changed) {
		t.Errorf("want a BrokerChangedError, got %v", err)
	}
	if _, err = apply.Delete(t.Context(), port, apply.DeleteInput{Owner: owner, Prefix: "async", State: s.state}); !errors.As(err, &changed) {
		t.Errorf("want a BrokerChangedError, got %v", err)
	}
	if port.writes > 0 {
		t.Errorf("%d writes to the broker of another", port.writes)
	}
}

// unwritten counts what would be written, and writes nothing.
type unwritten struct {
	apply.Port

	writes int
}

func (u *unwritten) Apply(context.Context, topology.Step) (bool, error) {
	u.writes++
	return false, nil
}

func (u *unwritten) DeleteQueue(context.Context, string, bool, bool) error {
	u.writes++
	return nil
}

func (u *unwritten) DeleteExchange(context.Context, string) error {
	u.writes++
	return nil
}
