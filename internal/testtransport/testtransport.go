// Package testtransport declares a Transport's topology on a real broker and moves messages in and out of it, for the
// tests of what runs on it.
package testtransport

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Queue is the work queue, and its binding key, of the Transport that New returns.
const Queue = "test"

// New returns the Transport `async` with the work queue `test` and one worker group that posts to url.
func New(url string) *v1alpha1.Transport {
	return &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "async"},
		Spec: v1alpha1.TransportSpec{
			Broker:         v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
			Exchange:       &v1alpha1.Exchange{Name: "async", Type: v1alpha1.ExchangeDirect},
			RetryPolicyRef: &v1alpha1.PolicyReference{Name: "policy"},
			Queues:         []v1alpha1.Queue{{Name: Queue, BindingKeys: []string{Queue}}},
			Workers:        []v1alpha1.Worker{{Name: "default", Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: url}}}},
		},
	}
}

// Compile compiles the Transport with its one policy, named `policy`.
func Compile(t testing.TB, transport *v1alpha1.Transport, policy v1alpha1.RetryPolicySpec) *compile.Result {
	t.Helper()
	return CompileAll(t, transport, map[string]v1alpha1.RetryPolicySpec{"policy": policy})
}

// CompileAll compiles the Transport with its policies by their names, of which one is `policy`.
func CompileAll(t testing.TB, transport *v1alpha1.Transport, policies map[string]v1alpha1.RetryPolicySpec) *compile.Result {
	t.Helper()
	objects := make(map[string]*v1alpha1.RetryPolicy, len(policies))
	for name, spec := range policies {
		objects[name] = &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: transport.Namespace, Name: name}, Spec: spec}
	}
	result, err := compile.Compile(transport, objects)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	return result
}

// Explicit is a policy with these delays, one retry for each, and with no lanes but theirs: what the handler asks for is ignored.
// A test of that sets HandlerAdvice to Follow.
func Explicit(delays ...time.Duration) v1alpha1.RetryPolicySpec {
	retries := int32(len(delays)) //nolint:gosec // a handful
	policy := v1alpha1.RetryPolicySpec{MaxRetries: &retries, HandlerAdvice: v1alpha1.HandlerAdviceIgnore}
	if retries == 0 {
		return policy
	}
	policy.Backoff = &v1alpha1.Backoff{Type: v1alpha1.BackoffExplicit}
	for _, delay := range delays {
		policy.Backoff.Delays = append(policy.Backoff.Delays, *v1alpha1.NewDuration(delay))
	}
	return policy
}

// Broker is a vhost with a Transport's topology on it.
type Broker struct {
	t       testing.TB
	conn    *amqp091.Connection
	channel *amqp091.Channel
	objects topology.Objects
}

// Declare makes the topology in the vhost that url names. RabbitMQ policies are left out.
func Declare(t testing.TB, url string, transport *v1alpha1.Transport, result *compile.Result) *Broker {
	t.Helper()
	b := Expect(t, url, transport, result)
	b.Restore()
	return b
}

// Expect is Declare for a topology that someone else makes.
func Expect(t testing.TB, url string, transport *v1alpha1.Transport, result *compile.Result) *Broker {
	t.Helper()
	objects, err := topology.Desired(transport, result.Needs, "test/default/async")
	if err != nil {
		t.Fatalf("desired topology: %v", err)
	}
	b := Connect(t, url)
	b.objects = objects
	return b
}

// Restore makes again what was deleted of the topology.
func (b *Broker) Restore() {
	b.t.Helper()
	for _, e := range b.objects.Exchanges {
		must(b.t, b.channel.ExchangeDeclare(e.Name, e.Type, e.Durable, e.AutoDelete, e.Internal, false, amqp091.Table(e.Arguments)))
	}
	for _, q := range b.objects.Queues {
		_, err := b.channel.QueueDeclare(q.Name, q.Durable, q.AutoDelete, q.Exclusive, false, amqp091.Table(q.Arguments))
		must(b.t, err)
	}
	for _, binding := range b.objects.Bindings {
		must(b.t, b.channel.QueueBind(binding.Destination, binding.RoutingKey, binding.Source, false, amqp091.Table(binding.Arguments)))
	}
}

// Connect opens a channel with confirms on a vhost on which everything stands already.
func Connect(t testing.TB, url string) *Broker {
	t.Helper()
	conn, err := amqp091.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	channel, err := conn.Channel()
	must(t, err)
	must(t, channel.Confirm(false))
	return &Broker{t: t, conn: conn, channel: channel}
}

// IsSince is true of a broker of this version of RabbitMQ, or a later one.
func (b *Broker) IsSince(major, minor int) bool {
	b.t.Helper()
	version, _ := b.conn.Properties["version"].(string)
	its := [2]int{}
	_, err := fmt.Sscanf(version, "%d.%d", &its[0], &its[1])
	must(b.t, err)
	return slices.Compare(its[:], []int{major, minor}) >= 0
}

// Reconnect returns the same vhost on a new connection, for after the broker was restarted.
func (b *Broker) Reconnect(url string) *Broker {
	b.t.Helper()
	again := Connect(b.t, url)
	again.objects = b.objects
	return again
}

// Publish publishes to an exchange and waits for the confirm.
func (b *Broker) Publish(exchange, key string, messages ...amqp091.Publishing) {
	b.t.Helper()
	confirms := make([]*amqp091.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		m.DeliveryMode = amqp091.Persistent
		confirm, err := b.channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		must(b.t, err)
		confirms = append(confirms, confirm)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, confirm := range confirms {
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			b.t.Fatalf("publish to %q: confirmed %v, %v", exchange, acked, err)
		}
	}
}

// Take waits for one message in a queue and acknowledges it.
func (b *Broker) Take(queue string) amqp091.Delivery {
	b.t.Helper()
	var taken amqp091.Delivery
	Eventually(b.t, "a message in "+queue, func() bool {
		d, ok, err := b.channel.Get(queue, true)
		must(b.t, err)
		taken = d
		return ok
	})
	return taken
}

// TakeAll takes what is in a queue now.
func (b *Broker) TakeAll(queue string) []amqp091.Delivery {
	b.t.Helper()
	var all []amqp091.Delivery
	for {
		d, ok, err := b.channel.Get(queue, true)
		must(b.t, err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// Ready is the number of messages in a queue that wait for a consumer.
func (b *Broker) Ready(queue string) int {
	b.t.Helper()
	q, err := b.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	must(b.t, err)
	return q.Messages
}

// Waiting is the number of messages in all lanes.
func (b *Broker) Waiting() int {
	b.t.Helper()
	total := 0
	for _, lane := range b.Lanes() {
		total += b.Ready(lane)
	}
	return total
}

// Lanes are the queues of the lanes, the shortest first.
func (b *Broker) Lanes() []string { return b.objects.QueuesOf(topology.RoleLane) }

// Stored is the number of messages that wait in any queue but the failure queue.
func (b *Broker) Stored() int {
	b.t.Helper()
	total := 0
	for _, q := range b.objects.Queues {
		if q.Role != topology.RoleFailure {
			total += b.Ready(q.Name)
		}
	}
	return total
}

// Close ends the connection.
func (b *Broker) Close() error { return b.conn.Close() } //nolint:wrapcheck // a test says what it did

// Channel for what has no method here.
func (b *Broker) Channel() *amqp091.Channel { return b.channel }

// Address is the host:port of an AMQP URL.
func Address(t testing.TB, url string) string {
	t.Helper()
	uri, err := amqp091.ParseURI(url)
	must(t, err)
	return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
}

// Patience is how long a test waits for what must happen. A test that passes takes no longer for it, and a machine that is busy with
// others may need minutes for what else takes a second.
const Patience = 5 * time.Minute

// LongVariable is set where the tests that take long are to run, too.
const LongVariable = "REDRIVE_LONG"

// Long marks a test that takes long and proves what seldom happens, such as each stage of a deletion killed: `make test` leaves it out, and
// `make test-all` and `make test-touched` run it. Each feature has a test that is not long.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv(LongVariable) == "" {
		t.Skipf("it takes long: make test-all runs it, and go test with %s=1", LongVariable)
	}
}

// Eventually polls until a condition holds, and fails the test when its patience ends.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	EventuallyWithin(t, Patience, what, condition)
}

// EventuallyWithin is Eventually with another limit. The longer it takes, the less often it looks: many tests that wait side by side
// would else keep the machine from what they wait for.
func EventuallyWithin(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	const often, seldom = 20 * time.Millisecond, 200 * time.Millisecond
	for start := time.Now(); !condition(); {
		waited := time.Since(start)
		if waited > limit {
			t.Fatalf("waited %s for %s", limit, what)
		}
		time.Sleep(min(max(often, waited/20), seldom))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
