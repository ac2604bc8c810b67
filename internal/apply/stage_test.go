package apply_test

import (
	"context"
	"flag"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

func TestMain(m *testing.M) {
	// The tests wait for the broker's figures, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

const owner = "c1/shop/async"

// stage is a vhost of a real broker, with one Transport whose clock the test moves.
type stage struct {
	t      *testing.T
	client *broker.Client
	writes atomic.Int64
	amqp   *amqp091.Channel
	spec   *v1alpha1.Transport
	lanes  retry.Lanes
	// deliveries that strictly ordered queues need.
	deliveries map[string]int64
	// consumed are the queues that a published configuration names.
	consumed []string
	// others are deletions of other Transports.
	others []v1alpha1.Deletion
	owner  string
	// workersGone is true when a deletion has said that they have nothing left to do.
	workersGone bool
	state       apply.State
	waits       topology.Waits
	now         time.Time
	// moved is how often the clock was moved.
	moved int64
	// url of the vhost, and the way to its management API.
	url    string
	config broker.Config
}

func newStage(t *testing.T) *stage {
	t.Helper()
	t.Parallel() // Every stage has its vhost, and much of the time goes into waiting for the broker's late figures.
	return newStageOn(t, testbroker.Shared(t))
}

func newStageOn(t *testing.T, b *testbroker.Broker) *stage {
	t.Helper()
	vhost := b.Vhost(t)
	found, err := credentials.FromURLs(b.AMQPURL, b.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	end, err := found.Management()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{
		t: t, spec: async(), lanes: retry.Lanes{time.Second, 3 * time.Second}, owner: owner, waits: atOnce(),
		// Times in the state are whole seconds.
		now: time.Now().Truncate(time.Second), url: b.URL(vhost),
	}
	s.config = broker.Config{ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: vhost, TLS: end.TLS}
	s.client, err = broker.New(s.config,
		broker.WithTransport(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodGet {
					s.writes.Add(1)
				}
				return patient(next, r)
			})
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	s.amqp = s.channel()
	return s
}

// patient asks once more where RabbitMQ answers a question with 500, as it does now and then when it is busy. Whoever looks at a broker by the
// clock asks with the next look.
func patient(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	const tries, pause = 20, 100 * time.Millisecond
	for try := 1; ; try++ {
		response, err := next.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusInternalServerError || r.Method != http.MethodGet || try == tries {
			return response, err
		}
		_ = response.Body.Close()
		time.Sleep(pause)
	}
}

// atOnce are the waits of a test whose broker is not killed: it need not wait until a queue is old enough.
func atOnce() topology.Waits {
	waits := topology.DefaultWaits()
	waits.Young = 0
	return waits
}

// patience is for a broker that does not end what it began, such as a queue that never gets a leader.
const patience = 30 * time.Second

// channel opens a channel with confirms on a connection of its own.
func (s *stage) channel() *amqp091.Channel {
	s.t.Helper()
	connection, err := amqp091.Dial(s.url)
	if err != nil {
		s.t.Fatal("no AMQP connection")
	}
	s.t.Cleanup(func() { _ = connection.CloseDeadline(time.Now().Add(patience)) })
	channel, err := connection.Channel()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		s.t.Fatal(err)
	}
	return channel
}

// beside is another Transport in the same vhost.
func (s *stage) beside(name string) *stage {
	other := &stage{
		t: s.t, client: s.client, amqp: s.amqp, lanes: s.lanes, owner: "c1/shop/" + name, now: s.now, spec: async(),
		waits: s.waits, url: s.url,
	}
	other.spec.Name, other.spec.Spec.Exchange.Name = name, name
	other.spec.Spec.Exchange.UnroutedTo = nil
	other.spec.Spec.Queues = []v1alpha1.Queue{{Name: name + "-work", BindingKeys: []string{"work"}}}
	return other
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func async() *v1alpha1.Transport {
	return &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"},
		Spec: v1alpha1.TransportSpec{
			Exchange: &v1alpha1.Exchange{Name: "async", Type: v1alpha1.ExchangeDirect, UnroutedTo: new("lost")},
			Queues: []v1alpha1.Queue{
				{Name: "lost", BindingKeys: []string{"lost"}},
				{Name: "test", BindingKeys: []string{"test"}},
			},
		},
	}
}

func (s *stage) input() apply.Input {
	s.t.Helper()
	objects, err := topology.Desired(s.spec, compile.Needs{Lanes: s.lanes, Deliveries: s.deliveries}, s.owner)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Doubts = s.state.Doubts.See(slices.Concat(s.state.Deletions, s.others), s.now)
	return apply.Input{
		Desired: objects, State: s.state, Published: naming(s.consumed...), Others: s.others, Waits: s.waits, Now: s.now, WriteDeletions: s.writeDeletions,
	}
}

// writeDeletions keeps what is about to be deleted, whatever becomes of the run.
func (s *stage) writeDeletions(_ context.Context, deletions []v1alpha1.Deletion) error {
	s.state.Deletions = deletions
	return nil
}

// once runs once and keeps the state.
func (s *stage) once() apply.Report {
	s.t.Helper()
	report := s.onceOn(s.client)
	for _, failure := range report.Failures {
		s.t.Errorf("%s: %v", failure.Step, failure.Err)
	}
	return report
}

// onceOn runs once on a broker that may refuse steps, and keeps the state.
func (s *stage) onceOn(port apply.Port) apply.Report {
	s.t.Helper()
	report, err := apply.Once(context.Background(), ahead{port, s.moved}, s.input(), func(_ context.Context, created []string) error {
		s.state.Created = created
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Keep(&report)
	return report
}

// remove takes the deletion one run further.
func (s *stage) remove(workersGone, force bool) apply.DeleteReport {
	s.t.Helper()
	s.state.Doubts = s.state.Doubts.See(s.state.Deletions, s.now)
	report, err := apply.Delete(context.Background(), ahead{s.client, s.moved}, apply.DeleteInput{
		Owner: s.owner, Prefix: "async", State: s.state, Force: force, WorkersGone: workersGone,
		Waits: s.waits, Now: s.now, WriteDeletions: s.writeDeletions,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, failure := range report.Failures {
		s.t.Errorf("%s: %v", failure.Step, failure.Err)
	}
	s.state.Created, s.state.Retiring, s.state.Deletions = report.Created, report.Retiring, report.Deletions
	return report
}

// untilDrained removes until nothing is left for the workers to do. The broker's figures come late, and a queue whose count of
// published messages has changed between two looks is looked at anew.
func (s *stage) untilDrained() {
	s.t.Helper()
	s.eventually("the queues to be drained", func() bool {
		if s.remove(false, false).Drained {
			return true
		}
		s.later(11 * time.Second)
		return false
	})
}

// retiring is the state of a queue on its way out.
func (s *stage) retiring(queue string) v1alpha1.Retirement {
	for _, state := range s.state.Retiring {
		if state.Queue == queue {
			return state
		}
	}
	return v1alpha1.Retirement{}
}

// untilRetired goes on until no queue is on its way out any more.
func (s *stage) untilRetired() apply.Report {
	s.t.Helper()
	s.allCounted() // The clock runs ahead of the broker's figures.
	for range 20 {
		report := s.once()
		if len(report.Retiring) == 0 {
			return report
		}
		if report.RequeueAfter <= 0 {
			s.t.Fatalf("it does not say when to go on: %+v", report)
		}
		s.later(report.RequeueAfter + time.Second)
	}
	s.t.Fatalf("still on their way out: %+v", s.state.Retiring)
	return apply.Report{}
}

func (s *stage) later(by time.Duration) { s.now, s.moved = s.now.Add(by), s.moved+1 }

// ahead is the broker as the stage's clock has it: since that was moved the leaders have counted. Whether they have in truth is seen to by
// counted.
type ahead struct {
	apply.Port

	moved int64
}

func (a ahead) Observe(ctx context.Context) (topology.Observed, error) {
	observed, err := a.Port.Observe(ctx)
	for name, state := range observed.Queues {
		if state.Tick != 0 {
			state.Tick += a.moved
			observed.Queues[name] = state
		}
	}
	return observed, err
}

func (a ahead) Queue(ctx context.Context, name string) (topology.QueueState, error) {
	state, err := a.Port.Queue(ctx, name)
	if state.Tick != 0 {
		state.Tick += a.moved
	}
	return state, err
}

// publish publishes and waits for the confirm.
func (s *stage) publish(exchange, key string, headers amqp091.Table) {
	s.t.Helper()
	confirmation, err := s.amqp.PublishWithDeferredConfirm(exchange, key, false, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Headers: headers, Body: []byte("hello"),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if acked, err := confirmation.WaitContext(ctx); err != nil || !acked {
		s.t.Fatalf("publish to %s: acked %v, %v", exchange, acked, err)
	}
}

// take waits for one message, and acknowledges it.
func (s *stage) take(queue string) amqp091.Delivery {
	s.t.Helper()
	var got amqp091.Delivery
	s.eventually("a message in "+queue, func() bool {
		delivery, ok, err := s.amqp.Get(queue, true)
		if err != nil {
			s.t.Fatal(err)
		}
		got = delivery
		return ok
	})
	return got
}

// counted waits until the management API shows a number of messages; its figures are some seconds late.
func (s *stage) counted(queue string, messages int64) {
	s.t.Helper()
	s.eventually("the count of "+queue, func() bool {
		state, err := s.client.Queue(context.Background(), queue)
		if err != nil {
			s.t.Fatal(err)
		}
		return state.Messages != nil && *state.Messages == messages
	})
}

// allCounted waits until the management API has counted all queues.
func (s *stage) allCounted() topology.Observed {
	s.t.Helper()
	var observed topology.Observed
	s.eventually("the counts of all queues", func() bool {
		var err error
		if observed, err = s.client.Observe(context.Background()); err != nil {
			s.t.Fatal(err)
		}
		for _, queue := range observed.Queues {
			if queue.Messages == nil {
				return false
			}
		}
		return true
	})
	return observed
}

func (s *stage) eventually(what string, ready func() bool) {
	s.t.Helper()
	testtransport.Eventually(s.t, what, ready)
}

func (s *stage) snapshot() topology.Observed {
	s.t.Helper()
	observed, err := s.client.Observe(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return observed
}

func (s *stage) exists(queue string) bool {
	s.t.Helper()
	_, exists := s.snapshot().Queues[queue]
	return exists
}

func steps(steps []topology.Step) string {
	texts := make([]string, len(steps))
	for i, step := range steps {
		texts[i] = step.String()
	}
	return strings.Join(texts, "\n")
}

// naming is the configuration of workers that consume some queues.
func naming(queues ...string) []compile.Config {
	var config compile.Config
	for _, name := range queues {
		config.Queues = append(config.Queues, compile.Queue{Name: name})
	}
	return []compile.Config{config}
}
