//go:build unix

package clients_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/testtransport"
)

const manifest = `
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: partner}
spec:
  maxRetries: 3
  backoff: {type: Constant, delay: 200ms}
---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: async}
spec:
  broker: {secretRef: {name: rabbitmq}}
  exchange: {name: async, type: Direct}
  retryPolicyRef: {name: partner}
  queues:
  - {name: async, bindingKeys: [async]}
  workers:
  - name: default
    concurrency: 4
    handler: HANDLER
`

// wanted are the attempts at messages of each kind, and how many of them fail for good.
func wanted(count int) (want map[string]string, failed int) {
	want = map[string]string{}
	for i := 1; i <= count; i++ {
		for kind, tries := range map[string]string{"plain": "1", "busy": "12", "wrong": "1"} {
			want[kind+"-"+strconv.Itoa(i)] = tries
		}
	}
	return want, count
}

// producers is a header of the message's producer.
func producers(header http.Header, name string) string { return header.Get("Redrive-Header-" + name) }

// TestPika_PublishesWhatThePythonClientHandles publishes with pika and handles with the client of the process protocol for Python.
func TestPika_PublishesWhatThePythonClientHandles(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and Python
	}
	t.Parallel()
	s := play(t, "python", strings.Replace(manifest, "HANDLER", "{image: unused, process: {command: [../python.sh, worker.py]}}", 1))
	if said := s.publish("python", []string{"BROKER=" + s.url}, "../python.sh", "publish_pika.py", strconv.Itoa(many(t))); !strings.Contains(said, "unroutable") {
		t.Errorf("pika was not told that a message goes nowhere: %q", said)
	}
	want, failed := wanted(many(t))
	testtransport.EventuallyWithin(t, within, "all messages to be handled", func() bool {
		return maps.Equal(attempts(s.reports()["message"]), want)
	})
	for _, d := range s.settled(failed) {
		if !strings.HasPrefix(d.MessageId, "wrong-") || d.Headers["redrive-reason"] != "Unrecoverable" || d.Headers["tenant"] != "acme" {
			t.Errorf("failed: %s %v", d.MessageId, d.Headers)
		}
	}
	all := s.reports()["message"]
	if !maps.Equal(attempts(all), want) {
		t.Errorf("attempts %v, want %v", attempts(all), want)
	}
	for _, m := range all {
		number, _ := strconv.Atoi(m.Name[strings.Index(m.Name, "-")+1:])
		about := map[string]any{
			"id": m.Name, "type": "shop.order", "contentType": "application/json", "contentEncoding": "utf-8", "correlationId": "c-" + m.Name,
			"timestamp": "2023-11-14T22:13:20Z", "queue": "async", "exchange": "async", "routingKey": "async",
		}
		mode, _, _ := strings.Cut(m.Name, "-")
		headers := map[string]any{
			"tenant": "acme", "mode": mode, "number": float64(1<<40 + number), "half": true, "none": nil, "list": []any{1.0, "a"},
			"table": map[string]any{"x": map[string]any{"y": 1.0}},
		}
		if !reflect.DeepEqual(m.Message, about) || !reflect.DeepEqual(m.Headers, headers) || !strings.Contains(m.Body, `"name": "`+m.Name+`"`) {
			t.Errorf("attempt %d at %s: %v\n%v\n%q", m.Attempt, m.Name, m.Message, m.Headers, m.Body)
		}
	}
}

// TestAmqplib_PublishesWhatAnHTTPHandlerTakes publishes with amqplib and handles by HTTP.
func TestAmqplib_PublishesWhatAnHTTPHandlerTakes(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and Node
	}
	t.Parallel()
	p := newPartner(t)
	s := play(t, "node", strings.Replace(manifest, "HANDLER", fmt.Sprintf("{http: {url: %q}}", p.URL), 1))
	said := s.publish("node", []string{"BROKER=" + s.url}, "node", "publish.mjs", strconv.Itoa(many(t)))
	if said != "assertQueue: 406\nreturned: lost\n" {
		t.Errorf("amqplib says %q", said)
	}
	want, failed := wanted(many(t))
	testtransport.EventuallyWithin(t, within, "all messages to be handled", func() bool { return maps.Equal(p.attempts(), want) })
	for _, d := range s.settled(failed) {
		if !strings.HasPrefix(d.MessageId, "wrong-") || d.Headers["redrive-reason"] != "Unrecoverable" {
			t.Errorf("failed: %s %v", d.MessageId, d.Headers)
		}
	}
	if !maps.Equal(p.attempts(), want) {
		t.Errorf("attempts %v, want %v", p.attempts(), want)
	}
	for _, r := range p.got() {
		headers := map[string]string{
			"Redrive-Type": "shop.order", "Redrive-Correlation-Id": "c-" + r.name, "Content-Type": "application/json", "Redrive-Exchange": "async",
			"Redrive-Routing-Key": "async", "Redrive-Queue": "async", "Redrive-Timestamp": "2023-11-14T22:13:20Z",
		}
		for name, value := range headers {
			if r.header.Get(name) != value {
				t.Errorf("%s: %s is %q, want %q", r.name, name, r.header.Get(name), value)
			}
		}
		for name, value := range map[string]string{"Tenant": "acme", "Number": "7", "Yes": "true"} {
			if producers(r.header, name) != value {
				t.Errorf("%s: the producer's %s is %q, want %q: %v", r.name, name, producers(r.header, name), value, r.header)
			}
		}
		if r.body != `{"name":"`+r.name+`","text":"é`+"\u2028"+`\n"}` {
			t.Errorf("%s: the body is %q", r.name, r.body)
		}
	}
}

// TestCelery_RunsTasksByTheProgramOfTheDocs publishes with Celery and handles with the program of docs/producers.md.
func TestCelery_RunsTasksByTheProgramOfTheDocs(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and Python
	}
	t.Parallel()
	program := write(t, t.TempDir(), "worker.py", snippet(t, "Celery", "python", true))
	handler := fmt.Sprintf(`{image: unused, process: {command: [env, "PYTHONPATH=.:../../../docs/examples/clients/python", ../python.sh, %q]}}`, program)
	// Celery publishes to the queue of its name.
	own := strings.Replace(strings.Replace(manifest, "HANDLER", handler, 1), "{name: async, bindingKeys: [async]}", "{name: celery, bindingKeys: [celery]}", 1)
	s := play(t, "python", own)
	count := many(t)
	s.publish("python", []string{"CELERY_BROKER=" + strings.Replace(s.url, "amqp:", "pyamqp:", 1)}, "../python.sh", "publish_celery.py", strconv.Itoa(count))
	want := map[string]int{}
	for i := 1; i <= count; i++ {
		for mode, runs := range map[string]int{"plain": 1, "busy": 2, "wrong": 4, "later": 1} {
			want[mode+"-"+strconv.Itoa(i)] = runs
		}
	}
	testtransport.EventuallyWithin(t, within, "all tasks to be run", func() bool { return maps.Equal(times(s.reports()["task"]), want) })
	reasons := map[string]int{}
	for _, d := range s.settled(3 * count) {
		what := fmt.Sprint(d.Headers["task"], " ", d.Headers["redrive-reason"], " ", d.Headers["redrive-error-class"])
		if d.Headers["x-death"] != nil || d.Headers["redrive-reason"] == "Expired" { // in the queue, or after its time had not come
			what = "expired"
		}
		reasons[what]++
		if d.MessageId == "" || d.MessageId != d.Headers["id"] || d.MessageId != d.CorrelationId || d.Headers["redrive-exchange"] != "" {
			t.Errorf("failed: %q, %q, %v", d.MessageId, d.CorrelationId, d.Headers)
		}
	}
	if !maps.Equal(reasons, map[string]int{"shop.handle MaxRetries ValueError": count, "shop.unknown Unrecoverable NotRegistered": count, "expired": count}) {
		t.Errorf("failed: %v", reasons)
	}
	all := s.reports()["task"]
	if !maps.Equal(times(all), want) { // an expired task is not run, and no other once too often
		t.Errorf("runs %v, want %v", times(all), want)
	}
	for _, run := range all {
		if run.Early {
			t.Errorf("%s ran before its eta", run.Name)
		}
	}
}

// TestCelery_OverHTTP looks at what a handler by HTTP gets of a task.
func TestCelery_OverHTTP(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and Python
	}
	t.Parallel()
	p := newPartner(t)
	own := strings.Replace(manifest, "{name: async, bindingKeys: [async]}", "{name: celery, bindingKeys: [celery]}", 1)
	s := play(t, "python", strings.Replace(own, "HANDLER", fmt.Sprintf("{http: {url: %q}}", p.URL), 1))
	s.publish("python", []string{"CELERY_BROKER=" + strings.Replace(s.url, "amqp:", "pyamqp:", 1)}, "../python.sh", "publish_celery.py", "1")
	testtransport.EventuallyWithin(t, within, "all tasks to be handled", func() bool {
		return len(p.attempts())+s.broker.Ready("async.failed") == 6 // one expires within a second, maybe before it is handled
	})
	expired := 6 - len(p.attempts())
	tasks := map[string]string{}
	for _, r := range p.got() {
		var body []any
		if err := json.Unmarshal([]byte(r.body), &body); err != nil || len(body) != 3 {
			t.Fatalf("the body is %s", r.body)
		}
		arguments, _ := body[0].([]any)
		mode, _ := arguments[1].(string)
		tasks[mode] = producers(r.header, "Task")
		if id := producers(r.header, "Id"); r.attempt != 1 || id == "" || id != r.name || r.header.Get("Redrive-Correlation-Id") != id {
			t.Errorf("%s: attempt %d, id %q, message-id %q, %v", mode, r.attempt, id, r.name, r.header)
		}
		if eta := producers(r.header, "Eta"); strings.HasPrefix(eta, "20") != (mode == "later" || mode == "expired") {
			t.Errorf("%s: the eta is %q", mode, eta)
		}
		if origin := producers(r.header, "Origin"); !strings.Contains(origin, "@") || r.header.Get("Origin") != "" || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: the origin is %q: %v", mode, origin, r.header)
		}
	}
	want := map[string]string{"unknown": "shop.unknown"}
	for _, mode := range []string{"plain", "busy", "wrong", "later", "expired"} {
		want[mode] = "shop.handle"
	}
	if expired == 1 {
		delete(want, "expired")
	}
	if !maps.Equal(tasks, want) {
		t.Errorf("tasks %v, want %v", tasks, want)
	}
	s.settled(expired)
}
