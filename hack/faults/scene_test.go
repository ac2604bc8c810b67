package faults

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	concurrency = 4
	// prefetch is how many messages a worker has on loan at most.
	prefetch = 2 * concurrency

	// atOnceWithin bounds what is a matter of moments where the machine is not busy with others.
	atOnceWithin = testtransport.Patience
	// worksWithin bounds the time until the worker works again after a fault: the longest pause between two tries to connect is
	// 22 s, and the log of a case has the time that it took.
	worksWithin = testtransport.Patience
	// settlesWithin bounds the time until the last message has ended.
	settlesWithin = testtransport.Patience
	// quietPolls are the polls in a row that must find nothing on its way.
	quietPolls = 15
)

// plan of a scene; the zero value of each field is the plainest.
type plan struct {
	policy v1alpha1.RetryPolicySpec
	// more policies beside that one, by name, and what messages have them.
	policies map[string]v1alpha1.RetryPolicySpec
	rules    []v1alpha1.PolicyRule
	// answer of the partner; nil for success.
	answer func(call) int
	// replicas of the worker; 0 for one.
	replicas int
	// through gives the address that wires lead to, for the broker's.
	through func(address string) string
	// steppedClock gives the workers a clock that the scene sets.
	steppedClock bool
	// more work queues beside testtransport.Queue.
	more []string
	// concurrency of a worker; 0 for the one that the bounds on duplicates are for.
	concurrency int
	// serving lets the workers serve their endpoints at addresses that are known.
	serving bool
	// change, if any, is what is different of the worker group.
	change func(*v1alpha1.Worker)
	// secure is how the partner speaks TLS, if it does, and files the folder of what its handler takes from Secrets.
	secure *tls.Config
	files  string
	// names, if any, are by what the workers find the broker, and the partner.
	names *nameserver
}

// scene is a Transport on a broker of which the messages are counted, its partner, and its worker group.
type scene struct {
	*testtransport.Broker

	t       testing.TB
	node    *testbroker.Broker
	vhost   string
	partner *partner
	group   *group
	// wire of the first worker.
	wire *wire

	config   string
	target   string
	username string
	password string
	logins   []login
	// queues are all work queues.
	queues  []string
	serving bool
	// clock is the file with the offset of the workers' clock; empty where it is the machine's.
	clock string
	files string
	names *nameserver

	published int
	failed    map[int]int
	recovered []time.Duration
}

// newScene makes a Transport's topology, and starts its worker group.
func newScene(t testing.TB, node *testbroker.Broker, p plan) *scene {
	t.Helper()
	s, transport, result := newStage(t, node, p)
	s.Broker = testtransport.Declare(t, node.URL(s.vhost), transport, result)
	s.permit()
	s.group = s.startGroup(max(1, p.replicas))
	s.wire = s.group.workers[0].wire
	return s
}

// newStage is a scene that nothing is on yet: no topology and no worker group.
func newStage(t testing.TB, node *testbroker.Broker, p plan) (*scene, *v1alpha1.Transport, *compile.Result) {
	t.Helper()
	if p.answer == nil {
		p.answer = success
	}
	s := &scene{
		t: t, node: node, vhost: node.Vhost(t), partner: newPartner(t, p.answer, delays(p.policy), p.secure),
		target: testtransport.Address(t, node.AMQPURL), failed: map[int]int{},
		queues: append([]string{testtransport.Queue}, p.more...), serving: p.serving, files: p.files, names: p.names,
	}
	s.username = "worker-" + s.vhost
	if p.through != nil {
		s.target = p.through(s.target)
	}
	if p.steppedClock {
		s.clock = filepath.Join(t.TempDir(), "clock")
		s.stepClock(0)
	}
	transport := testtransport.New(s.names.named(s.partner.URL, partnerName))
	for _, queue := range p.more {
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: queue, BindingKeys: []string{queue}})
	}
	transport.Spec.Workers[0].Concurrency = new(int32(cmp.Or(p.concurrency, concurrency)))
	if p.change != nil {
		p.change(&transport.Spec.Workers[0])
	}
	policies := map[string]v1alpha1.RetryPolicySpec{"policy": p.policy}
	maps.Copy(policies, p.policies)
	transport.Spec.RetryPolicies = p.rules
	result := testtransport.CompileAll(t, transport, policies)
	if got := result.Workers[0].Loans(); p.concurrency == 0 && got != prefetch {
		t.Fatalf("the prefetch is %d; the bounds on duplicates are for %d", got, prefetch)
	}
	config, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	s.config = string(config)
	return s, transport, result
}

// permit makes the workers' user, with exactly the rights that docs/worker.md names, and a new password.
func (s *scene) permit() {
	s.t.Helper()
	s.password = s.node.User(s.t, s.username, "", s.vhost, "^$", allExchanges, s.allQueues())
	for _, l := range s.logins {
		l.write(s)
	}
}

// allExchanges are those that a worker publishes to, as a pattern.
const allExchanges = `^async\.(fallback|return|failed)$`

// allQueues are those that a worker consumes, as a pattern.
func (s *scene) allQueues() string {
	return `^(` + strings.Join(s.queues, "|") + `)(\.(quarantine|migrating))?$`
}

// login is the mounted Secret of one process.
type login struct{ folder, address string }

func (l login) write(s *scene) {
	u := url.URL{Host: l.address}
	for key, value := range map[string]string{
		"host": u.Hostname(), "port": u.Port(), "username": s.username, "password": s.password, "vhost": s.vhost,
	} {
		write(s.t, filepath.Join(l.folder, key), value)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	// Renamed, so that nobody reads the half of it.
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// publish publishes messages with the next numbers and returns the first of these. All are confirmed.
func (s *scene) publish(messages int) (first int) {
	s.t.Helper()
	first = s.published
	batch := make([]amqp091.Publishing, messages)
	for i := range batch {
		batch[i].MessageId = strconv.Itoa(first + i)
	}
	s.Publish("async", testtransport.Queue, batch...)
	s.published += messages
	return first
}

// await polls.
func (s *scene) await(limit time.Duration, what string, condition func() bool) {
	s.t.Helper()
	testtransport.EventuallyWithin(s.t, limit, what, condition)
}

// worksAgain measures how long it takes from now until done, and fails where it takes too long.
func (s *scene) worksAgain(done func() bool) {
	s.t.Helper()
	began := time.Now()
	s.await(worksWithin, "the worker to work again", done)
	s.recovered = append(s.recovered, time.Since(began))
}

// acknowledgesAgain waits for the next message that is settled.
func (s *scene) acknowledgesAgain() {
	s.t.Helper()
	before := s.acknowledged()
	s.worksAgain(func() bool { return s.acknowledged() > before })
}

// acknowledged is the number of messages that the group has settled.
func (s *scene) acknowledged() int {
	total := 0
	for _, p := range s.group.all() {
		total += p.wire.count(point{fromClient, basicAck})
	}
	return total
}

// ends of each message: how often it was answered with success or arrived in the failure queue.
func (s *scene) ends() map[int]int {
	s.t.Helper()
	for _, d := range s.TakeAll("async.failed") {
		id, err := strconv.Atoi(d.MessageId)
		if err != nil {
			s.t.Errorf("a message with the id %q failed", d.MessageId)
		}
		s.failed[id]++
	}
	ends := s.partner.successes()
	for id, times := range s.failed {
		ends[id] += times
	}
	return ends
}

// hasEnded waits until all messages from first on have.
func (s *scene) hasEnded(limit time.Duration, first int) {
	s.t.Helper()
	s.await(limit, fmt.Sprintf("the messages from %d on to end", first), func() bool {
		ends := s.ends()
		for id := first; id < s.published; id++ {
			if ends[id] == 0 {
				return false
			}
		}
		return true
	})
}

// idle waits until no message is on its way.
func (s *scene) idle() {
	s.t.Helper()
	polls, requests := 0, -1
	s.await(settlesWithin, "nothing to be on its way", func() bool {
		now := s.partner.requests()
		if now != requests || s.group.onLoan() != 0 || s.Stored() != 0 {
			polls, requests = 0, now
			return false
		}
		polls++
		return polls == quietPolls
	})
}

// bounds of a case.
type bounds struct {
	faults int
	// duplicates that the faults may have made, and those that they must have made, or they were not where they should be. No
	// more messages are quarantined either.
	duplicates, atLeast int
	// lost by the hand of whoever deleted the queue that they were in.
	deleted []int
	// refused is true where the broker may refuse what is moved to the quarantine queue. Each try counts there.
	refused bool
}

// settle waits for the end of all messages and counts them.
func (s *scene) settle(b bounds) {
	s.t.Helper()
	s.group.revive()
	s.idle() // a message that has not ended by then is nowhere
	s.group.stop()
	if stuck := s.Stored(); stuck != 0 {
		s.t.Errorf("%d messages are stuck", stuck)
	}
	ends, duplicates := s.ends(), 0
	for id, times := range ends {
		if id >= s.published {
			s.t.Errorf("message %d was never published", id)
		}
		duplicates += times - 1
	}
	lost, quarantined := s.missing(b.deleted), s.quarantined()
	s.t.Logf("faults=%d published=%d ended=%d failed=%d lost=%d deleted=%d duplicates=%d quarantined=%d (at most %d) late=%s works again within %s",
		b.faults, s.published, len(ends), len(s.failed), len(lost), s.published-len(ends)-len(lost), duplicates, quarantined, b.duplicates,
		s.partner.latest(), s.slowest())
	if len(lost) != 0 {
		s.t.Errorf("%d messages are lost, such as %v", len(lost), lost[:min(10, len(lost))])
	}
	if duplicates > b.duplicates || duplicates < b.atLeast {
		s.t.Errorf("%d duplicates, want %d to %d", duplicates, b.atLeast, b.duplicates)
	}
	if quarantined > b.duplicates && !b.refused {
		s.t.Errorf("%d messages were quarantined, want at most %d", quarantined, b.duplicates)
	}
}

// quarantined is how many messages were moved to the quarantine queue.
func (s *scene) quarantined() int {
	total := 0
	for _, p := range s.group.all() {
		_, quarantined := p.wire.suspicions()
		total += quarantined
	}
	return total
}

// missing are the messages without an end, but for those that may be.
func (s *scene) missing(deleted []int) []int {
	ends, missing := s.ends(), []int(nil)
	for id := range s.published {
		if ends[id] == 0 && !slices.Contains(deleted, id) {
			missing = append(missing, id)
		}
	}
	return missing
}

// slowest return to work.
func (s *scene) slowest() time.Duration {
	if len(s.recovered) == 0 {
		return 0
	}
	return slices.Max(s.recovered).Round(10 * time.Millisecond)
}
