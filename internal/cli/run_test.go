package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// partner answers every fifth message with 502 once, every seventh with 422, and the rest with 200.
type partner struct {
	mu       sync.Mutex
	attempts map[string]int
	handled  map[string]int
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n int
	id := r.Header.Get("Redrive-Message-Id")
	_, _ = fmt.Sscanf(id, "m-%d", &n)
	p.attempts[id]++
	switch {
	case n%7 == 0:
		w.WriteHeader(http.StatusUnprocessableEntity)
	case n%5 == 0 && p.attempts[id] == 1:
		w.WriteHeader(http.StatusBadGateway)
	default:
		p.handled[id]++
	}
}

func (p *partner) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.handled)
}

func publish(b *testtransport.Broker, key string, from, to int) {
	for n := from; n <= to; n++ {
		b.Publish("async", key, amqp091.Publishing{MessageId: fmt.Sprintf("m-%d", n), Body: []byte("{}")})
	}
}

func TestRun_HandlesReloadsAndDrains(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	transport := strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL)
	dir := folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML})

	b.refuse(true)
	run := b.start(t, "run", "-f", dir)
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(run.log.String(), text) }
	}
	testtransport.Eventually(t, "run to wait for the broker", logged("waits for the broker"))
	b.refuse(false)
	testtransport.Eventually(t, "the topology", logged("as it should be"))

	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 1, 45)
	publish(broker, "nobody-bound-this", 46, 50)
	const rejected = 7 // 7, 14, …, 49
	testtransport.Eventually(t, "50 messages to be handled or failed", func() bool {
		return p.count() == 50-rejected && broker.Ready("async.failed") == rejected
	})

	t.Run("a changed file adds a lane without a new session", func(t *testing.T) {
		put(t, dir, "policy.yaml", strings.Replace(policyYAML, "{type: Constant, delay: 200ms}", "{type: Explicit, delays: [300ms, 200ms]}", 1))
		testtransport.Eventually(t, "the worker to take it over", logged("configuration taken over"))
		if ready := broker.Ready("async.fallback.300ms"); ready != 0 {
			t.Errorf("%d messages in the new lane", ready)
		}
		publish(broker, "test", 51, 55)
		testtransport.Eventually(t, "the retry by the new lane", func() bool { return p.count() == 50-rejected+5 })
		if sessions := strings.Count(run.log.String(), "broker session started"); sessions != 2 {
			t.Errorf("%d sessions were started, want one to consume and one to publish", sessions)
		}
	})
	t.Run("an invalid file changes nothing", func(t *testing.T) {
		put(t, dir, "policy.yaml", "kind: [")
		testtransport.Eventually(t, "the refusal", logged("the changed files are invalid"))
		publish(broker, "test", 57, 57)
		testtransport.Eventually(t, "the message", func() bool { return p.count() == 50-rejected+6 })
	})
	t.Run("workers and queues come and go with the files", func(t *testing.T) {
		put(t, dir, "policy.yaml", policyYAML)
		more := strings.Replace(transport, "bindingKeys: [test]}", "bindingKeys: [test]}, {name: more, bindingKeys: [more]}", 1)
		more += fmt.Sprintf("  - {name: second, queues: [more], handler: {http: {url: %q}}}\n", server.URL)
		put(t, dir, "transport.yaml", strings.Replace(more, "name: default,", "name: default, queues: [test],", 1))
		testtransport.Eventually(t, "the second worker", logged("worker=second"))
		publish(broker, "more", 58, 58)
		// It is settled once it is counted: the connection that is cut next would take the answer away.
		testtransport.Eventually(t, "its message", func() bool { return strings.Contains(run.out.String(), "more ready=0 handled=1") })
	})
	t.Run("a broker that goes away is waited for", func(t *testing.T) {
		b.refuse(true)
		publish(broker, "test", 59, 59)
		testtransport.Eventually(t, "both sessions to end", func() bool {
			return strings.Count(run.log.String(), "broker session ended") >= 4
		})
		b.refuse(false)
		testtransport.Eventually(t, "the message", func() bool { return p.count() == 50-rejected+8 })
	})

	testtransport.Eventually(t, "the table to add up", func() bool {
		out := run.out.String()
		return strings.Contains(out, "async.failed 7") && strings.Contains(out, "failed=7")
	})
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Fatalf("exit code %d: %s", code, run.log.String())
	}
	for id, n := range p.handled {
		if n != 1 {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
}

func TestRun_StopsAtOnceAtASecondSignal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reached, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(reached)
		<-release
	}))
	defer server.Close()
	defer close(release)
	dir := folder(t, map[string]string{"transport.yaml": strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL), "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	publish(testtransport.Connect(t, b.direct), "test", 1, 1)
	<-reached
	run.signals <- nil
	testtransport.Eventually(t, "the drain to begin", func() bool { return strings.Contains(run.log.String(), "draining") })
	<-time.After(oneCtrlC)
	run.signals <- nil
	if code := <-run.code; code != exitError || !strings.Contains(run.log.String(), "the broker delivers the rest again") {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}

func TestRun_LeavesWorkersAsTheyAreInAConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.foreign(t, "test")
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	transport := strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL)
	dir := folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(run.log.String(), text) }
	}
	testtransport.Eventually(t, "the topology", logged("as it should be"))

	strict := strings.Replace(transport, "{name: test, ", "{name: test, ordering: {type: Strict}, ", 1)
	strict += fmt.Sprintf("  - {name: second, handler: {http: {url: %q}}}\n", server.URL)
	strict = strings.Replace(strict, "name: default,", "name: default, queues: [test],", 1)
	strict = strings.Replace(strict, "bindingKeys: [test]}", "bindingKeys: [test]}, {name: more, bindingKeys: [more]}", 1)
	put(t, dir, "transport.yaml", strings.Replace(strict, "name: second,", "name: second, queues: [more],", 1))
	testtransport.Eventually(t, "the conflict", logged(
		`conflict: queue \"test\": x-single-active-consumer is false`))
	if !logged("until that is fixed the workers keep their present configuration, not started: second")() {
		t.Errorf("the log does not say what becomes of the workers:\n%s", run.log.String())
	}
	broker := testtransport.Connect(t, b.direct)
	publish(broker, "test", 5, 5)
	testtransport.Eventually(t, "a message to be handled as before, at the second attempt", func() bool { return p.count() == 1 })
	if logged("configuration taken over")() || logged("worker=second")() {
		t.Errorf("the workers are not as they were:\n%s", run.log.String())
	}

	put(t, dir, "transport.yaml", strings.Replace(transport, "timeout: 5s", "timeout: 6s", 1))
	testtransport.Eventually(t, "the worker to go on with the files", logged("configuration taken over"))
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}

func TestRun_StartsNoWorkerIntoAConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	channel := testtransport.Connect(t, b.direct).Channel()
	if _, err := channel.QueueDeclare("test", true, false, false, false, map[string]any{"x-queue-type": "classic"}); err != nil {
		t.Fatal(err)
	}
	dir := folder(t, map[string]string{"transport.yaml": transportYAML, "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(run.log.String(), text) }
	}
	testtransport.Eventually(t, "the conflict", logged("not started: default"))
	if logged("worker=default")() {
		t.Errorf("the worker was started:\n%s", run.log.String())
	}
	if _, err := channel.QueueDelete("test", false, false, false); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "transport.yaml", strings.Replace(transportYAML, "timeout: 5s", "timeout: 6s", 1))
	testtransport.Eventually(t, "the worker", logged("worker=default"))
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}

func TestRun_ShowsWhatHoldsMessagesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := &partner{attempts: map[string]int{}, handled: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	transport := strings.ReplaceAll(transportYAML, "http://127.0.0.1:1", server.URL)
	transport = strings.Replace(transport, "{name: test, ", "{name: test, ordering: {type: Strict, onFailure: Block}, ", 1)
	run := b.start(t, "run", "-f", folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML}))
	testtransport.Eventually(t, "the topology", func() bool { return strings.Contains(run.log.String(), "as it should be") })
	publish(testtransport.Connect(t, b.direct), "test", 7, 7) // which is rejected
	testtransport.Eventually(t, "the trouble to show", func() bool {
		return strings.Contains(run.out.String(), `; worker default: queue "test" stops at a message that was given up`)
	})
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}

// The broker refused the binding by which retries come back. The worker consumed nevertheless, and each message failed at its first attempt.
func TestRun_StartsNoWorkerWhereTheBrokerRefusesAStep(t *testing.T) {
	t.Parallel()
	b, server := newBench(t), testbroker.Shared(t)
	channel := testtransport.Connect(t, b.direct).Channel()
	if _, err := channel.QueueDeclare("test", true, false, false, false, map[string]any{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	vhost := b.direct[strings.LastIndex(b.direct, "/")+1:]
	login := url.UserPassword("team-"+vhost, server.User(t, "team-"+vhost, "policymaker", vhost, ".*", "^async", ".*"))
	for _, address := range []*string{&b.amqpURL, &b.management} {
		as, err := url.Parse(*address)
		if err != nil {
			t.Fatal(err)
		}
		as.User = login
		*address = as.String()
	}
	transport := strings.Replace(transportYAML, "{name: test, ", "{name: test, adopt: true, ", 1)
	dir := folder(t, map[string]string{"transport.yaml": transport, "policy.yaml": policyYAML})
	run := b.start(t, "run", "-f", dir)
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(run.log.String(), text) }
	}
	testtransport.Eventually(t, "the refused binding", logged("not started: default"))
	if logged("worker=default")() {
		t.Errorf("the worker was started:\n%s", run.log.String())
	}
	server.Permit(t, "team-"+vhost, vhost, ".*", ".*", ".*")
	put(t, dir, "transport.yaml", strings.Replace(transport, "timeout: 5s", "timeout: 6s", 1))
	testtransport.Eventually(t, "the worker", logged("worker=default"))
	run.signals <- nil
	if code := <-run.code; code != exitOK {
		t.Errorf("exit code %d: %s", code, run.log.String())
	}
}
