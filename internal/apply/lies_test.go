package apply_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// row is an object as the management API describes it.
type row map[string]any

// lie is what a management API answers in place of the truth: nil for answers that stay as they are.
type lie struct {
	// queue changes what is told of the queue test, in the list and by itself.
	queue func(row)
	// list changes a list of all objects of a kind.
	list func(kind string, rows []row) []row
	// answer takes the place of what is told of the queue test by itself, or of its bindings.
	answer func(bindings bool) (status int, contentType, body string)
}

// through is a client that reaches the broker of a stage by way of a management API that lies.
func (s *stage) through(l lie) *broker.Client {
	s.t.Helper()
	management := testtransport.NewManagement(s.t, s.config.ManagementURL)
	management.Answer(l.script)
	return s.by(management)
}

// by is a client that asks a management API of a script.
func (s *stage) by(management *testtransport.Management) *broker.Client {
	s.t.Helper()
	config := s.config
	config.ManagementURL = management.URL
	client, err := broker.New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	return client
}

func (l lie) script(r *http.Request) testtransport.Lie {
	// /api/KIND/VHOST[/NAME[/bindings]]
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if r.Method != http.MethodGet || len(parts) < 3 {
		return nil
	}
	single := len(parts) > 3 && parts[1] == "queues" && parts[3] == "test"
	return testtransport.Changed(func(status int, header http.Header, whole []byte) (int, []byte) {
		switch {
		case single && l.answer != nil:
			told, contentType, text := l.answer(len(parts) > 4)
			if contentType == "" {
				return told, whole
			}
			header.Set("Content-Type", contentType)
			return told, []byte(text)
		case len(parts) == 3:
			return status, l.inList(parts[1], whole)
		case single && len(parts) == 4 && l.queue != nil && status == http.StatusOK:
			var queue row
			if json.Unmarshal(whole, &queue) == nil {
				l.queue(queue)
				whole, _ = json.Marshal(queue)
			}
		}
		return status, whole
	})
}

func (l lie) inList(kind string, whole []byte) []byte {
	var rows []row
	if json.Unmarshal(whole, &rows) != nil {
		return whole
	}
	for _, listed := range rows {
		if kind == "queues" && listed["name"] == "test" && l.queue != nil {
			l.queue(listed)
		}
	}
	if l.list != nil {
		rows = l.list(kind, rows)
	}
	whole, _ = json.Marshal(rows)
	return whole
}

// told changes fields of the queue test; nil takes one away.
func told(fields row) lie {
	return lie{queue: func(queue row) {
		maps.Copy(queue, fields)
		maps.DeleteFunc(queue, func(_ string, value any) bool { return value == nil })
	}}
}

// answered takes the place of what is told of the queue test by itself, and of its bindings.
func answered(status int, contentType, body string) lie {
	return lie{answer: func(bool) (int, string, string) { return status, contentType, body }}
}

// lies are the rows of the table in docs/topology.md, "What an answer is worth", told of a queue with messages in it.
func lies() map[string]lie {
	three := []string{"a", "b", "c"}
	return map[string]lie{
		"no count":                          told(row{"messages": nil}),
		"statistics off, queue totals on":   told(row{"messages": 0, "reductions": nil}),
		"zero, in a minority":               told(row{"messages": 0, "state": "minority"}),
		"zero, and it is down":              told(row{"messages": 0, "state": "down"}),
		"zero, and it is stopped":           told(row{"messages": 0, "state": "stopped"}),
		"zero, and it has crashed":          told(row{"messages": 0, "state": "crashed"}),
		"zero, and its leader is not there": told(row{"messages": 0, "members": three, "leader": "c", "online": three[:2]}),
		"zero, and it has no leader":        told(row{"messages": 0, "members": three, "leader": nil, "online": three}),
		"zero, and one of three is online":  told(row{"messages": 0, "members": three, "leader": "a", "online": three[:1]}),
		"503":                               answered(http.StatusServiceUnavailable, "text/plain", "no"),
		"a page":                            answered(http.StatusOK, "text/html", "<html>"),
		"half of an answer":                 answered(http.StatusOK, "application/json", `{"name":"te`),
		"a page that says 404":              answered(http.StatusNotFound, "text/html", "<html>"),
	}
}

func TestRetirement_KeepsAQueueOfWhichTheAPIKnowsHalf(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	begun := s.state
	for name, l := range lies() {
		t.Run("leaves the spec: "+name, func(t *testing.T) {
			s.t, s.state = t, begun
			client := s.through(l)
			input := s.input()
			input.Desired.Queues = slices.DeleteFunc(slices.Clone(input.Desired.Queues), func(q topology.Queue) bool { return q.Name == "test" })
			input.Desired.Bindings = slices.DeleteFunc(slices.Clone(input.Desired.Bindings), func(b topology.Binding) bool { return b.Destination == "test" })
			for range 6 {
				s.later(time.Minute)
				input.Now, input.State = s.now, s.state
				report, _ := apply.Once(t.Context(), client, input, keep)
				s.state.Created, s.state.Retiring = report.Created, report.Retiring
			}
			s.holds("test", 1)
		})
		t.Run("its Transport is deleted: "+name, func(t *testing.T) {
			s.t, s.state = t, begun
			client := s.through(l)
			for _, workersGone := range []bool{false, true} {
				for range 8 {
					s.later(time.Minute)
					report, _ := apply.Delete(t.Context(), client, apply.DeleteInput{
						Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: workersGone, Waits: s.waits, Now: s.now,
					})
					if !workersGone && report.Drained {
						t.Fatal("it says that the workers have nothing left to do")
					}
					s.state.Created, s.state.Retiring = report.Created, report.Retiring
				}
			}
			s.holds("test", 1)
		})
	}
}

func TestMigration_KeepsAQueueOfWhichTheAPIKnowsHalf(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.spec.Spec.Queues[1].SingleActiveConsumer = new(true)
	s.eventually("the exchange to come to its drain", func() bool {
		s.later(time.Second)
		report := s.once()
		s.state.Migrations = report.Migrations
		return len(report.Migrations) == 1 && report.Migrations[0].Step == v1alpha1.MigrationDrain
	})
	begun := s.state
	for name, l := range lies() {
		t.Run(name, func(t *testing.T) {
			s.t, s.state = t, begun
			client := s.through(l)
			for range 6 {
				s.later(time.Minute)
				input := s.input()
				report, _ := apply.Once(t.Context(), client, input, keep)
				s.state.Retiring, s.state.Migrations = report.Retiring, report.Migrations
			}
			s.holds("test", 1)
			if len(s.state.Migrations) != 1 || s.state.Migrations[0].Step != v1alpha1.MigrationDrain {
				t.Errorf("it went on: %+v", s.state.Migrations)
			}
		})
	}
}

// listWithout leaves out what is listed with a value in a field, or everything of a kind where that is empty.
func listWithout(kind, field, name string) lie {
	return lie{list: func(of string, rows []row) []row {
		return slices.DeleteFunc(rows, func(r row) bool { return of == kind && (name == "" || r[field] == name) })
	}}
}

func TestDeletion_GoesNoFurtherByAListThatLeavesOut(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.eventually("the exchange's policy", func() bool { return s.snapshot().Exchanges["async"].Policy != "" })
	begun := s.state
	noBindings := lie{answer: func(bindings bool) (int, string, string) {
		if bindings {
			return http.StatusOK, "application/json", "[]"
		}
		return http.StatusOK, "", ""
	}}
	for name, l := range map[string]lie{
		"the queue is not listed":             listWithout("queues", "name", "test"),
		"no queue is listed":                  listWithout("queues", "", ""),
		"no binding is listed":                listWithout("bindings", "", ""),
		"no policy is listed":                 listWithout("policies", "", ""),
		"no exchange is listed":               listWithout("exchanges", "", ""),
		"a bound queue is said to be unbound": noBindings,
	} {
		t.Run(name, func(t *testing.T) {
			s.t, s.state = t, begun
			client := s.through(l)
			for _, workersGone := range []bool{false, true} {
				for range 8 {
					s.later(time.Minute)
					report, _ := apply.Delete(t.Context(), client, apply.DeleteInput{
						Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: workersGone, Waits: s.waits, Now: s.now,
					})
					if !workersGone && report.Drained || report.Done {
						t.Fatalf("it goes on to the next stage: %+v", report)
					}
					s.state.Created, s.state.Retiring = report.Created, report.Retiring
				}
			}
			s.holds("test", 1)
		})
	}
}

func TestDeletion_AwaitsAQueueThatOnlyTheListLacks(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	for s.retiring("test").Unbound == nil { // until it is unbound, so that nothing but its name tells of it
		s.later(time.Minute)
		s.remove(true, false)
		s.allCounted()
	}
	s.publish("", "test", nil)
	s.counted("test", 1)
	client := s.through(listWithout("queues", "name", "test"))
	for range 6 {
		s.later(time.Minute)
		report, err := apply.Delete(t.Context(), client, apply.DeleteInput{
			Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: true, Waits: s.waits, Now: s.now,
		})
		if err == nil && (len(report.Blocked) != 1 || report.Blocked[0].Queue != "test") {
			t.Fatalf("want it to wait for the queue, got %+v", report)
		}
		s.state.Created, s.state.Retiring = report.Created, report.Retiring
	}
	s.holds("test", 1)
}

func TestRetirement_KeepsABoundQueueThatIsSaidToBeUnbound(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	client := s.through(lie{answer: func(bindings bool) (int, string, string) {
		if bindings {
			return http.StatusOK, "application/json", "[]"
		}
		return http.StatusOK, "", ""
	}})
	for range 6 {
		s.later(time.Minute)
		if report, err := apply.Once(t.Context(), client, s.input(), keep); !errors.Is(err, broker.ErrGarbled) || len(report.Steps) > 0 {
			t.Fatalf("want it not believed, got %v and %s", err, steps(report.Steps))
		}
	}
	s.publish("async", "test", nil)
	s.holds("test", 1)
}

// holds fails where the queue is gone, or holds another number of messages.
func (s *stage) holds(queue string, messages int) {
	s.t.Helper()
	state, err := s.channel().QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil || state.Messages != messages {
		s.t.Errorf("want %d messages in queue %s, got %d, %v", messages, queue, state.Messages, err)
	}
}

// Nothing leads into a former failure queue, so that a list which lacks it does not contradict itself. Somebody's policy for all queues bounds it.
func TestFailureQueue_KeepsItsFormerPolicyWhereAListLacksIt(t *testing.T) {
	b := testbroker.Shared(t)
	s := newStageOn(t, b)
	b.SetPolicy(t, s.config.VHost, "platform", ".*", "queues", 0, map[string]any{"max-length": 3})
	s.once()
	for range 20 {
		s.publish("async.failed", "test", nil)
	}
	s.counted("async.failed", 20)
	s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("failed.new")}
	for range 3 {
		s.once()
		s.later(11 * time.Second)
	}
	report, err := apply.Once(t.Context(), s.through(listWithout("queues", "name", "async.failed")), s.input(), keep)
	if err != nil || len(report.Steps) > 0 {
		t.Errorf("%v, and these steps are taken: %v", err, steps(report.Steps))
	}
	s.once()
	time.Sleep(time.Second) // a policy takes effect in some hundred milliseconds
	s.holds("async.failed", 20)
}

// An adopted queue is not the Transport's to be counted as a deletion needs: its policy stays with it, whatever is counted, and one list that lacks it proves nothing.
func TestFailureQueue_KeepsThePolicyOfAnAdoptedOne(t *testing.T) {
	b := testbroker.Shared(t)
	s := newStageOn(t, b)
	s.declare("async.failed", map[string]any{"x-queue-type": "quorum"})
	b.SetPolicy(t, s.config.VHost, "platform", ".*", "queues", 0, map[string]any{"max-length": 3})
	s.once()
	s.counted("async.failed", 0)
	for range 20 {
		s.publish("async.failed", "test", nil)
	}
	s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("failed.new")}
	s.once() // by a count of none
	if report := s.once(); !slices.ContainsFunc(report.Warnings, func(f topology.Finding) bool { return f.Object.Name == "async.failed" }) {
		t.Errorf("warnings: %v", report.Warnings)
	}
	_, err := apply.Once(t.Context(), s.through(listWithout("queues", "name", "async.failed")), s.input(), keep)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // a policy takes effect in some hundred milliseconds
	s.holds("async.failed", 20)

	if _, err := s.amqp.QueueDelete("async.failed", false, false, false); err != nil {
		t.Fatal(err)
	}
	s.eventually("the policy to be gone with its queue", func() bool {
		s.once()
		_, stands := s.snapshot().Policies["redrive.async:failure:async.failed"]
		return !stands
	})
}

// Nothing leads into the old queue any more, so that a list which lacks it does not contradict itself: workers read the new messages before the old.
func TestMigration_KeepsTheOrderWhereAListLacksTheOldQueue(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	s.queue("test").SingleActiveConsumer = new(true)
	for range 5 {
		s.publish("async", "test", nil)
	}
	s.counted("test", 5)
	look := func(port apply.Port) apply.Report {
		t.Helper()
		report := s.onceOn(port)
		s.state.Migrations = report.Migrations
		s.later(11 * time.Second)
		return report
	}
	s.eventually("the drain", func() bool {
		report := look(s.client)
		return len(report.Migrations) == 1 && report.Migrations[0].Step == v1alpha1.MigrationDrain
	})
	for range 5 {
		s.publish("async", "test", nil)
	}
	s.counted("test.migrating", 5)
	look(s.through(listWithout("queues", "name", "test")))
	for range 3 {
		report := look(s.client)
		s.holds("test", 5)
		if len(report.Migrations) != 1 || report.Migrations[0].Step != v1alpha1.MigrationDrain || report.StandIns["test"].Reads == compile.ReadsStandin {
			t.Fatalf("%+v, %+v: the old queue holds 5 messages", report.Migrations, report.StandIns)
		}
	}
}

// A classic queue carries no mark: once it is struck out of status.created nobody knows any more whose it is.
func TestRename_GoesOnEmptyingAClassicQueueThatAListLacked(t *testing.T) {
	s := newStage(t)
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	s.once()
	s.allCounted()
	for range 5 {
		s.publish("async", "test", nil)
	}
	s.counted("test", 5)
	queue := s.queue("test")
	queue.Name, queue.PreviousNames = "orders", []string{"test"}
	look := func(port apply.Port) apply.Report {
		t.Helper()
		report := s.onceOn(port)
		s.state.Migrations = report.Migrations
		s.later(11 * time.Second)
		return report
	}
	s.eventually("the old queue to be unbound", func() bool {
		look(s.client)
		return s.retiring("test").Unbound != nil
	})
	look(s.through(listWithout("queues", "name", "test")))
	look(s.client)
	if report := look(s.client); report.StandIns["orders"].Queue != "test" {
		t.Errorf("nobody empties the old queue: %+v, %v", report.Migrations, report.Warnings)
	}
	s.holds("test", 5)
}
