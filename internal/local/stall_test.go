package local

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

const (
	stallTransports = 6
	// otherQueues of the vhost beside the five of each Transport: all of them are about 130.
	otherQueues = 100
	// steadyPace are the messages a second that wait in the first lane of each Transport, and stallKills the kills of a run.
	steadyPace, stallKills = 50, 6
	// clusterKills are those of a run on three nodes, which take longer to start.
	clusterKills = 3
)

// expiring are messages that wait in lanes, each with the time at which it is due, and when it came into its work queue.
type expiring struct {
	mu   sync.Mutex
	due  map[string]time.Time
	came map[string][]time.Time
}

// stalls is a vhost of many quorum queues with Transports, of which nobody but the test consumes the work queues.
type stalls struct {
	*expiring

	t *testing.T
	// node is the one that all is asked of; kill and resume do with all nodes what they say.
	node         *testbroker.Broker
	kill, resume func(context.Context) error

	vhost  string
	units  []Unit
	policy *policyWrites
	log    printed
}

// policyWrites counts the changes of RabbitMQ policies, by name.
type policyWrites struct {
	mu     sync.Mutex
	counts map[string]int
}

func (w *policyWrites) see(r *http.Request) testtransport.Lie {
	if r.Method == http.MethodPut {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counts[r.URL.Path]++
	}
	return nil
}

// take gives the counts, and begins anew.
func (w *policyWrites) take() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := maps.Clone(w.counts)
	clear(w.counts)
	return counts
}

func newStalls(t *testing.T, lines ...string) *stalls {
	t.Helper()
	node := testbroker.Private(t, lines...)
	return newStallsOn(t, node, node.Kill, node.Resume)
}

func newStallsOn(t *testing.T, node *testbroker.Broker, kill, resume func(context.Context) error) *stalls {
	t.Helper()
	s := &stalls{
		expiring: &expiring{due: map[string]time.Time{}, came: map[string][]time.Time{}},
		t:        t, node: node, kill: kill, resume: resume, policy: &policyWrites{counts: map[string]int{}},
	}
	s.vhost = s.node.Vhost(t)
	transports := map[types.NamespacedName]*v1alpha1.Transport{}
	policies := map[types.NamespacedName]*v1alpha1.RetryPolicy{}
	for i := range stallTransports {
		transport := testtransport.New("http://127.0.0.1:1")
		transport.Name = fmt.Sprintf("t%d", i)
		transport.Spec.Exchange.Name = transport.Name
		transport.Spec.Queues[0].Name = workOf(i)
		transport.Spec.Workers[0].Replicas = new(int32(0))
		transports[types.NamespacedName{Namespace: "default", Name: transport.Name}] = transport
	}
	policy := &v1alpha1.RetryPolicy{Spec: testtransport.Explicit(time.Second, 2*time.Second)}
	policy.Namespace, policy.Name = "default", "policy"
	policies[types.NamespacedName{Namespace: "default", Name: "policy"}] = policy
	units, err := Prepare(&manifest.Set{Transports: transports, RetryPolicies: policies})
	if err != nil {
		t.Fatal(err)
	}
	s.units = units
	channel := testtransport.Connect(t, s.node.URL(s.vhost)).Channel()
	for i := range otherQueues {
		if _, err := channel.QueueDeclare(fmt.Sprintf("other-%03d", i), true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func workOf(transport int) string { return fmt.Sprintf("work-%d", transport) }

// run is `redrive run` without workers, until it is ended. It returns when all is made.
func (s *stalls) run() (end func()) {
	management := testtransport.NewManagement(s.t, s.node.ManagementURL)
	management.Answer(s.policy.see)
	brokers := map[types.NamespacedName]Broker{}
	for i := range s.units {
		on := brokerAt(s.t, s.node, s.vhost, testtransport.Address(s.t, s.node.AMQPURL))
		on.Management.URL = management.URL
		brokers[s.units[i].Name()] = on
	}
	runner := NewRunner(Options{
		Waits: topology.DefaultWaits(), Reapply: time.Minute, Refresh: time.Second, QuarantineStay: time.Minute, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
	})
	if err := runner.Take(s.units, brokers); err != nil {
		s.t.Fatal(err)
	}
	testtransport.Eventually(s.t, "all objects to be made", func() bool {
		for _, snapshot := range runner.Snapshots() {
			if snapshot.Problem != "" {
				return false
			}
		}
		return true
	})
	s.policy.take()
	return func() {
		if err := runner.Drain(context.Background()); err != nil {
			s.t.Error(err)
		}
	}
}

// wait puts a message into a lane. Only those that are confirmed are counted.
func (s *stalls) wait(channel *amqp091.Channel, transport int, lane time.Duration, id string) (*amqp091.DeferredConfirmation, error) {
	return channel.PublishWithDeferredConfirm(fmt.Sprintf("t%d.fallback", transport), workOf(transport), true, false, amqp091.Publishing{
		MessageId: id, DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{message.HeaderLane: lane.String()},
	})
}

// traffic fills the lanes until the broker is gone: the first at a pace, the second with three messages.
func (s *stalls) traffic(round int) {
	var all sync.WaitGroup
	for i := range stallTransports {
		channel := testtransport.Connect(s.t, s.node.URL(s.vhost)).Channel()
		all.Go(func() {
			tick := time.NewTicker(time.Second / steadyPace)
			defer tick.Stop()
			type sent struct {
				id      string
				due     time.Time
				confirm *amqp091.DeferredConfirmation
			}
			var messages []sent
			for n := 0; !channel.IsClosed(); n++ {
				lane := time.Second
				if n%steadyPace == 0 && n/steadyPace < 3 {
					lane = 2 * time.Second
				}
				id := strconv.Itoa(round) + "/" + strconv.Itoa(i) + "/" + strconv.Itoa(n)
				confirm, err := s.wait(channel, i, lane, id)
				if err != nil {
					break
				}
				messages = append(messages, sent{id, time.Now().Add(lane), confirm})
				<-tick.C
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range messages {
				if m.confirm.Acked() {
					s.due[m.id] = m.due
				}
			}
		})
	}
	all.Go(func() {
		time.Sleep(4 * time.Second) // the lanes are full then
		if err := s.kill(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	all.Wait()
}

// round kills the broker under traffic and gives how long after its start the last message came, of those that come within a limit, and
// how many have not come by then. doubled are those that came more than once.
func (s *stalls) round(number int, limit time.Duration) (last time.Duration, overdue, doubled int) {
	s.t.Helper()
	s.traffic(number)
	if err := s.resume(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	started := time.Now()
	channel := testtransport.Connect(s.t, s.node.URL(s.vhost)).Channel()
	for i := range stallTransports {
		deliveries, err := channel.Consume(workOf(i), "", true, false, false, false, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		go func() {
			for d := range deliveries {
				s.mu.Lock()
				s.came[d.MessageId] = append(s.came[d.MessageId], time.Now())
				s.mu.Unlock()
			}
		}()
	}
	left := func() (missing int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for id := range s.due {
			if len(s.came[id]) == 0 {
				missing++
			}
		}
		return missing
	}
	for overdue = left(); overdue > 0 && time.Since(started) < limit; overdue = left() {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(time.Second) // for what comes twice
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.due {
		if times := s.came[id]; len(times) > 0 {
			last = max(last, times[0].Sub(started))
			doubled += len(times) - 1
		}
	}
	_ = channel.Close()
	clear(s.came)
	if overdue == 0 {
		clear(s.due)
	}
	return last, overdue, doubled
}

// version of the node.
func (s *stalls) version() string {
	s.t.Helper()
	conn, err := amqp091.Dial(s.node.AMQPURL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	version, _ := conn.Properties["version"].(string)
	return version
}

// isKhepri is true for a node whose metadata store is Khepri, as a version says.
func (s *stalls) isKhepri() bool {
	s.t.Helper()
	version := s.version()
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		s.t.Fatalf("version %q: %v", version, err)
	}
	return major > 4 || major == 4 && minor >= 2
}

// Kills of a broker with many quorum queues, as designed: the messages that are due come soon after its start. Where the metadata store is
// not Khepri the touch does that, and without it lanes stand, or this shows nothing. Where it is, the shorter confirm timeout does.
func TestLanes_DoNotStandStillAfterAKill(t *testing.T) {
	testtransport.Long(t)
	s := newStalls(t, testbroker.LongConfirmTimeout)
	limit := 15 * time.Second
	if s.isKhepri() {
		s, limit = newStalls(t), 12*time.Second
	}
	s.doNotStandStill(stallKills, limit)
}

// The same where all nodes of a cluster are killed and started together.
func TestLanes_DoNotStandStillAfterThreeNodesAreKilled(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	s := newStallsOn(t, c.Nodes[0], c.Kill, func(ctx context.Context) error { return c.Resume(ctx) })
	limit := 15 * time.Second
	if s.isKhepri() {
		limit = 12 * time.Second
	}
	s.doNotStandStill(clusterKills, limit)
}

func (s *stalls) doNotStandStill(kills int, limit time.Duration) {
	t := s.t
	t.Helper()
	t.Logf("all have to come within %s of RabbitMQ %s", limit, s.version())
	defer s.run()()
	for round := range kills {
		last, overdue, doubled := s.round(round, time.Minute)
		writes := s.policy.take()
		t.Logf("kill %d: the last message came %s after the start, %d are overdue, %d came twice; policies written: %v",
			round, last.Round(10*time.Millisecond), overdue, doubled, writes)
		if last > limit || overdue > 0 || doubled > 2*stallTransports*32 {
			t.Errorf("kill %d: want all within %s, and at most 32 twice for each lane", round, limit)
		}
		for policy, times := range writes {
			if times > 3 {
				t.Errorf("kill %d: %s was written %d times", round, policy, times)
			}
		}
	}
}

// Without what TestLanes_DoNotStandStillAfterAKill has, a lane stands: its messages are late. Where the metadata store is Khepri the touch
// does not help, and it is told why; nothing is lost.
func TestLanes_StandStillAfterAKillWithoutCure(t *testing.T) {
	testtransport.Long(t)
	s := newStalls(t, testbroker.LongConfirmTimeout)
	end, khepri := s.run(), s.isKhepri()
	if !khepri {
		end()
		end = func() {}
	}
	defer func() { end() }()
	limit := 15 * time.Second
	if khepri {
		limit = 400 * time.Second
	}
	for round := range stallKills {
		last, overdue, _ := s.round(round, limit)
		told := strings.Contains(s.log.String(), "the broker started the lane before its work queue")
		t.Logf("kill %d: the last message came %s after the start, %d are overdue; told: %v", round, last.Round(10*time.Millisecond), overdue, told)
		switch {
		case !khepri && overdue > 0:
			return
		case khepri && last > time.Minute:
			if !told || overdue > 0 {
				t.Errorf("told: %v, %d are lost", told, overdue)
			}
			return
		}
	}
	t.Error("no lane stood still: this shows nothing of the cure")
}
