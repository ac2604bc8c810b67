package controllers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/cli"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
	"redrive.dev/redrive/internal/workload"
)

const (
	adoptingPage = "../docs/adopting.md"
	// oldDelay is the TTL of the old fallback queues; the page speaks of a minute.
	oldDelay = 5 * time.Second
)

// ledger is kept outside of everything that is tested: which messages were confirmed, and who handled each how often.
type ledger struct {
	mu        sync.Mutex
	published map[string]string // id to key
	returned  int
	failure   error
	old, new  map[string]int
}

func (l *ledger) note(counts map[string]int, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts[id]++
}

// tally is how many messages were published, and handled by each side.
func (l *ledger) tally() (published, byOld, byNew int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.published), len(l.old), len(l.new)
}

// doubled are the messages that were handled more than once.
func (l *ledger) doubled() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.published {
		if l.old[id]+l.new[id] > 1 {
			ids = append(ids, id)
		}
	}
	return ids
}

// missing are the messages that nobody has handled.
func (l *ledger) missing() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.published {
		if l.old[id]+l.new[id] == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// founding is a team's own retry set-up, running, and the way from there to Redrive.
type founding struct {
	*world
	ledger    *ledger
	handler   *httptest.Server
	transport *v1alpha1.Transport
	workers   *workers
	// failed are the messages that were taken out of the failure queue.
	failed map[string]int
	// stopOld asks the old consumers to stop, oldGone waits until they have.
	stopOld context.CancelFunc
	oldGone sync.WaitGroup
}

func newFounding(t *testing.T) *founding {
	f := &founding{world: newWorld(t), failed: map[string]int{}, ledger: &ledger{published: map[string]string{}, old: map[string]int{}, new: map[string]int{}}}
	channel := f.amqp.Channel()
	for _, exchange := range []string{"async", "async.fallback"} {
		must(t, channel.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	}
	for _, queue := range []string{"test", "test_2", "lost"} {
		f.amqpDeclare(queue, nil)
		must(t, channel.QueueBind(queue, queue, "async", false, nil))
	}
	for _, queue := range []string{"test", "test_2"} {
		f.amqpDeclare(queue+".fallback", amqp091.Table{
			"x-message-ttl": oldDelay.Milliseconds(), "x-dead-letter-exchange": "async", "x-dead-letter-routing-key": queue,
		})
		must(t, channel.QueueBind(queue+".fallback", queue+".fallback", "async.fallback", false, nil))
	}
	f.handler = httptest.NewServer(http.HandlerFunc(f.handle))
	t.Cleanup(f.handler.Close)
	f.workers = &workers{world: f.world, prefix: "async.redrive"}
	return f
}

// number of a message decides what becomes of it.
func number(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "m-"))
	return n
}

// handle is the team's code behind the workers: some messages fail at first, and a few each time.
func (f *founding) handle(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	id := r.Header.Get("Redrive-Message-Id")
	if n := number(id); n%97 == 0 || (n%7 == 0 && r.Header.Get("Redrive-Attempt") == "1") {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	f.ledger.note(f.ledger.new, id)
}

func (f *founding) connect() *amqp091.Channel {
	return testtransport.Connect(f.T, testbroker.Shared(f.T).URL(f.vhost)).Channel()
}

// publish publishes to async until the context ends, and writes down what the broker confirmed.
func (f *founding) publish(ctx context.Context, done func()) {
	channel := f.connect()
	returns := channel.NotifyReturn(make(chan amqp091.Return, 1000))
	go func() {
		defer done()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ctx.Err() == nil; n++ {
			id, key := fmt.Sprintf("m-%d", n), []string{"test", "test_2", "lost"}[n%3]
			confirm, err := channel.PublishWithDeferredConfirm("async", key, true, false, amqp091.Publishing{
				MessageId: id, DeliveryMode: amqp091.Persistent, Body: []byte(id),
			})
			if err == nil {
				_, err = confirm.WaitContext(context.WithoutCancel(ctx))
			}
			f.ledger.mu.Lock()
			f.ledger.published[id], f.ledger.returned = key, f.ledger.returned+len(returns)
			if f.ledger.failure = err; err != nil || len(returns) > 0 {
				f.ledger.mu.Unlock()
				return
			}
			f.ledger.mu.Unlock()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
}

// consume is a consumer of the old kind: what fails goes to the fallback queue, and is acknowledged.
func (f *founding) consume(ctx context.Context, queue string) {
	channel := f.connect()
	must(f.T, channel.Qos(5, 0, false))
	deliveries, err := channel.Consume(queue, "old", false, false, false, false, nil)
	must(f.T, err)
	context.AfterFunc(ctx, func() { _ = channel.Cancel("old", false) })
	f.oldGone.Go(func() {
		for d := range deliveries {
			if _, again := d.Headers["x-death"]; number(d.MessageId)%5 == 0 && !again && queue != "lost" {
				confirm, err := channel.PublishWithDeferredConfirm("async.fallback", queue+".fallback", true, false, amqp091.Publishing{
					MessageId: d.MessageId, DeliveryMode: amqp091.Persistent, Headers: d.Headers, Body: d.Body,
				})
				if err != nil || !confirm.Wait() {
					f.Errorf("an old consumer could not publish: %v", err)
				}
			} else {
				f.ledger.note(f.ledger.old, d.MessageId)
			}
			if err := d.Ack(false); err != nil {
				f.Errorf("an old consumer could not acknowledge: %v", err)
			}
		}
	})
}

// workers are the pods of the Deployments: two processes' worth of workers, which follow their ConfigMap.
type workers struct {
	*world
	// prefix of the names of the Transport's own objects.
	prefix  string
	running []*worker.Worker
}

// follow starts workers for the first configuration, and lets them take over every other.
func (p *workers) follow() {
	p.Helper()
	for _, configMap := range p.configMaps() {
		config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
		must(p.T, err)
		if p.running == nil {
			p.running = []*worker.Worker{p.start(config, 1), p.start(config, 2)}
		}
		for _, running := range p.running {
			must(p.T, running.Reload(config))
			testtransport.Eventually(p, "a worker to be ready", func() bool { return running.Ready() == nil })
		}
	}
}

// start runs a worker with the rights that the page names.
func (p *workers) start(config compile.Config, number int) *worker.Worker {
	p.Helper()
	server := testbroker.Shared(p.T)
	user := fmt.Sprintf("worker-%d-%s", number, p.vhost)
	target := amqp.Target{
		Address: testtransport.Address(p, server.AMQPURL), VHost: p.vhost, Username: user,
		Password: server.User(p.T, user, "", p.vhost, "^$", "^"+regexp.QuoteMeta(p.prefix)+`\.(fallback|return|failed)$`, `^(test|test_2|lost|test\.native)(\.(quarantine|migrating))?$`),
	}
	made, err := worker.New(worker.Options{
		Config: config, Source: func() (amqp.Target, error) { return target, nil },
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.New(spec, handler.Options{Concurrency: concurrency, Version: "test"})
		},
		Now: time.Now, Rand: worker.Random{}, Metrics: worker.NewMetrics(prometheus.NewRegistry()),
		Log: slog.New(slog.NewTextHandler(p.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	must(p.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { made.Run(ctx) })
	p.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	return made
}

// kubectlApply applies a file of the page. What differs from the page is where the broker and the handler are.
func (f *founding) kubectlApply(file string) {
	f.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	must(f.T, err)
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind struct{ Kind string }
		must(f.T, yaml.Unmarshal(document, &kind))
		if kind.Kind == "RetryPolicy" {
			policy := &v1alpha1.RetryPolicy{}
			must(f.T, yaml.UnmarshalStrict(document, policy))
			policy.Namespace = f.namespace
			f.create(policy)
			continue
		}
		wanted := &v1alpha1.Transport{}
		must(f.T, yaml.UnmarshalStrict(document, wanted))
		wanted.Namespace, wanted.Spec.Broker.VHost = f.namespace, &f.vhost
		wanted.Spec.Workers[0].Handler.HTTP.URL = f.handler.URL
		f.transport = wanted.DeepCopy()
		if err := f.client.Create(f.Context(), f.transport); apierrors.IsAlreadyExists(err) {
			edit(f.world, f.transport, func(t *v1alpha1.Transport) { t.Spec = wanted.Spec })
		} else {
			must(f.T, err)
		}
	}
}

// kubectlWait waits for the Transport as kubectl does, and for its pods to be as their ConfigMap says.
func (f *founding) kubectlWait() {
	f.Helper()
	f.awaitReady(f.transport)
	f.workers.follow()
}

var curlCommand = regexp.MustCompile(`^curl -fsS (?:-X ([A-Z]+) )?"\$MANAGEMENT(/api/[a-z]+/)shop([^"]*)"$`)

// curl carries out a command of the page and returns the answer; it fails where curl would.
func (f *founding) curl(command string) []byte {
	f.Helper()
	parts := curlCommand.FindStringSubmatch(command)
	if parts == nil {
		f.Fatalf("not a command that the test can carry out: %s", command)
	}
	management, err := url.Parse(testbroker.Shared(f.T).ManagementURL)
	must(f.T, err)
	request, err := http.NewRequestWithContext(f.Context(), parts[1], "http://"+management.Host+parts[2]+f.vhost+parts[3], http.NoBody)
	must(f.T, err)
	password, _ := management.User.Password()
	request.SetBasicAuth(management.User.Username(), password)
	response, err := testbroker.Client.Do(request)
	must(f.T, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(f.T, err)
	if response.StatusCode >= http.StatusBadRequest {
		f.Fatalf("%s: %s: %s", command, response.Status, body)
	}
	return body
}

// curlUntilEmpty repeats a command that lists queues until these have no messages.
func (f *founding) curlUntilEmpty(command string, queues ...string) {
	f.Helper()
	testtransport.Eventually(f, fmt.Sprintf("the queues %q to be empty", queues), func() bool {
		var rows []struct {
			Name     string
			Messages *int
		}
		must(f.T, json.Unmarshal(f.curl(command), &rows))
		empty := 0
		for _, row := range rows {
			if slices.Contains(queues, row.Name) && row.Messages != nil && *row.Messages == 0 {
				empty++
			}
		}
		return empty == len(queues)
	})
}

// plan carries out redrive plan and checks that it would only add.
func (f *founding) plan(file string) {
	f.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	must(f.T, err)
	server := testbroker.Shared(f.T)
	variables := map[string]string{"AMQP_URL": server.URL(f.vhost), "MANAGEMENT_URL": server.ManagementURL}
	var out, errors bytes.Buffer
	code := cli.Main(f.Context(), cli.Environment{
		In:  strings.NewReader(strings.Replace(string(text), "vhost: shop", "vhost: "+f.vhost, 1)),
		Out: &out, Err: &errors, Getenv: func(name string) string { return variables[name] },
	}, []string{"plan", "-f", "-"})
	if code != 2 || errors.Len() > 0 {
		f.Fatalf("exit code %d\n%s\n%s", code, out.String(), errors.String())
	}
	additions := 0
	for line := range strings.Lines(out.String()) {
		switch strings.TrimSpace(line + " ")[0] {
		case '+':
			additions++
		case '~', '-', '!':
			f.Errorf("the plan is not only to add: %s", line)
		}
	}
	if additions < 20 {
		f.Errorf("the plan has %d additions:\n%s", additions, out.String())
	}
}

// command of the page, with what it stands for in the test.
type command struct {
	text string
	do   func(text string)
}

// commands are those of the page's steps, in their order.
func (f *founding) commands() []command {
	const (
		list = `curl -fsS "$MANAGEMENT/api/queues/shop?columns=name,messages,consumers"`
		wait = "kubectl wait transport/async --for=condition=Ready --timeout=5m"
	)
	apply := func(text string) { f.kubectlApply(strings.TrimPrefix(text, "kubectl apply -f ")) }
	ready := func(string) { f.kubectlWait() }
	send := func(text string) { f.curl(text) }
	return []command{
		{
			"AMQP_URL=amqp://worker:change-me@rabbitmq MANAGEMENT_URL=$MANAGEMENT redrive plan -f docs/examples/adopting/1-beside.yaml",
			func(text string) { f.plan(text[strings.LastIndex(text, " ")+1:]) },
		},
		{"kubectl apply -f docs/examples/adopting/1-beside.yaml", apply},
		{wait, ready},
		{"kubectl get events --field-selector reason=Adopted", func(string) {
			f.awaitEvent("Adopted", "adopted queue test with ")
			f.sideBySide()
		}},
		{"kubectl scale deployment/async-consumer --replicas=0", func(string) { f.stopOld() }},
		{"kubectl wait pod --selector=app=async-consumer --for=delete --timeout=5m", func(string) { f.oldGone.Wait() }},
		{"sleep 75", func(string) {
			testtransport.Eventually(f, "the TTL to pass", func() bool {
				return f.amqp.Ready("test.fallback")+f.amqp.Ready("test_2.fallback") == 0
			})
		}},
		{list, func(text string) { f.curlUntilEmpty(text, "test.fallback", "test_2.fallback") }},
		{`curl -fsS -X DELETE "$MANAGEMENT/api/queues/shop/test.fallback?if-empty=true"`, send},
		{`curl -fsS -X DELETE "$MANAGEMENT/api/queues/shop/test_2.fallback?if-empty=true"`, send},
		{`curl -fsS -X DELETE "$MANAGEMENT/api/exchanges/shop/async.fallback?if-unused=true"`, send},
		{`curl -fsS -X DELETE "$MANAGEMENT/api/bindings/shop/e/async/q/test/test"`, func(text string) {
			if doubled := f.ledger.doubled(); len(doubled) > 0 {
				f.Errorf("handled more than once until here: %v", doubled)
			}
			f.curl(text)
		}},
		{"kubectl apply -f docs/examples/adopting/2-native.yaml", apply},
		{wait, ready},
		{list, func(text string) {
			f.curlUntilEmpty(text, "test")
			f.awaitRetries()
		}},
		{"kubectl apply -f docs/examples/adopting/3-done.yaml", apply},
		{wait, ready},
		{"kubectl get transport async -o jsonpath={.status.retiring}", func(string) {
			testtransport.Eventually(f, "nothing to be on its way out", func() bool {
				f.get(f.transport)
				return len(f.transport.Status.Retiring) == 0 && !slices.Contains(f.transport.Status.Adopted, "queue/test")
			})
		}},
		{`curl -fsS -X DELETE "$MANAGEMENT/api/queues/shop/test?if-empty=true"`, send},
	}
}

// sideBySide waits until old consumers and workers have both handled messages, and some wait in the old fallback queue.
func (f *founding) sideBySide() {
	f.Helper()
	_, oldBefore, newBefore := f.ledger.tally()
	testtransport.Eventually(f, "old consumers and workers to handle messages", func() bool {
		_, byOld, byNew := f.ledger.tally()
		return byOld > oldBefore+20 && byNew > newBefore+20
	})
	testtransport.Eventually(f, "a message in an old fallback queue", func() bool { return f.amqp.Ready("test.fallback") > 0 })
}

// awaitRetries waits as long as the longest retry takes: until all that was published before is handled or given up.
func (f *founding) awaitRetries() {
	f.Helper()
	before := f.unsettled()
	testtransport.Eventually(f, "the retries to come to their end", func() bool {
		now := f.unsettled()
		return !slices.ContainsFunc(before, func(id string) bool { return slices.Contains(now, id) })
	})
}

// unsettled are the messages that are neither handled nor in the failure queue.
func (f *founding) unsettled() []string {
	f.Helper()
	for _, d := range f.amqp.TakeAll("async.redrive.failed") {
		f.failed[d.MessageId]++
	}
	return slices.DeleteFunc(f.ledger.missing(), func(id string) bool { return f.failed[id] > 0 })
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestAdoption_TakesOverTheFoundingSetUpAsThePageSays follows docs/adopting.md command by command, while a producer goes on
// publishing and messages wait in the old fallback queues.
func TestAdoption_TakesOverTheFoundingSetUpAsThePageSays(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	page, err := os.ReadFile(adoptingPage)
	must(t, err)
	example, err := os.ReadFile("../docs/examples/adopting/1-beside.yaml")
	must(t, err)
	if !bytes.Contains(page, example) {
		t.Error("the page does not show 1-beside.yaml as it is")
	}
	var documented []string
	for _, block := range shellBlock.FindAllSubmatch(page, -1) {
		documented = append(documented, strings.Split(strings.TrimSpace(string(block[1])), "\n")...)
	}

	f := newFounding(t)
	commands := f.commands()
	for i, command := range commands {
		if i >= len(documented) || documented[i] != command.text {
			t.Fatalf("command %d of the page is not %q in %q", i+1, command.text, documented)
		}
	}
	if len(documented) != len(commands) {
		t.Fatalf("the page has %d commands, the test %d", len(documented), len(commands))
	}

	publishing, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	f.publish(publishing, func() { close(stopped) })
	t.Cleanup(stop)
	var old context.Context
	old, f.stopOld = context.WithCancel(context.Background())
	t.Cleanup(f.stopOld)
	testtransport.Eventually(t, "a backlog", func() bool { return f.amqp.Ready("test") > 20 })
	for _, queue := range []string{"test", "test_2", "lost"} {
		f.consume(old, queue)
	}
	testtransport.Eventually(t, "messages in both old fallback queues", func() bool {
		return f.amqp.Ready("test.fallback") > 0 && f.amqp.Ready("test_2.fallback") > 0
	})
	for _, command := range commands {
		before, _, _ := f.ledger.tally()
		t.Log(command.text)
		command.do(command.text)
		testtransport.Eventually(t, "the producer to go on", func() bool {
			now, _, _ := f.ledger.tally()
			return now > before
		})
	}
	stop()
	<-stopped
	f.settle()
}

// settle waits until every message is where it belongs, and compares.
func (f *founding) settle() {
	f.Helper()
	if f.ledger.failure != nil || f.ledger.returned > 0 {
		f.Fatalf("the producer: %v, %d returned", f.ledger.failure, f.ledger.returned)
	}
	testtransport.Eventually(f, "every message to be handled or in the failure queue", func() bool {
		return len(f.unsettled()) == 0
	})
	for id, times := range f.failed {
		if number(id)%97 != 0 || times != 1 || f.ledger.old[id]+f.ledger.new[id] > 0 && f.ledger.published[id] != "test" {
			f.Errorf("%s is in the failure queue %d times, handled %d times", id, times, f.ledger.old[id]+f.ledger.new[id])
		}
	}
	doubled := f.ledger.doubled()
	for _, id := range doubled {
		// In the moment when one queue takes the place of another, what is published comes into both.
		if f.ledger.published[id] != "test" || f.ledger.old[id] > 0 {
			f.Errorf("%s (%s) was handled %d times", id, f.ledger.published[id], f.ledger.old[id]+f.ledger.new[id])
		}
	}
	published, byOld, byNew := f.ledger.tally()
	f.Logf("%d published; %d handled by old consumers, %d by workers, %d twice while queues were migrated; %d failed",
		published, byOld, byNew, len(doubled), len(f.failed))
	queues := slices.Sorted(maps.Keys(f.observed().Queues))
	want := []string{
		"async.redrive.failed", "async.redrive.fallback.10m", "async.redrive.fallback.10s", "async.redrive.fallback.1m",
		"async.redrive.fallback.1s", "async.redrive.fallback.2s", "async.redrive.fallback.4s",
		"lost", "lost.quarantine", "test.native", "test.native.quarantine", "test_2", "test_2.quarantine",
	}
	if !slices.Equal(queues, want) {
		f.Errorf("left are the queues %q", queues)
	}
	for _, queue := range queues {
		if ready := f.amqp.Ready(queue); ready > 0 { // among them quarantine queues: nothing came back unsettled
			f.Errorf("%d messages are left in %s", ready, queue)
		}
	}
	must(f.T, client.IgnoreNotFound(f.client.Delete(f.Context(), f.transport)))
	f.awaitGone(f.transport)
	if !f.hasQueue("lost") || !f.hasQueue("test_2") || f.hasQueue("test.native") {
		f.Error("the deletion of the Transport must leave what was adopted, and that only")
	}
}
