package worker_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	// followed is the ID of a replay, and eventLog the queue of the events that it waits for.
	followed = "r-0a1b2c3d"
	eventLog = "replay.log"
)

// follow declares a queue that gets the events of the replay.
func (r *rig) follow(queue string, arguments amqp091.Table) {
	r.t.Helper()
	if _, err := r.Channel().QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		r.t.Fatal(err)
	}
	bound := amqp091.Table{"x-match": "all", message.HeaderOutcome: followed}
	if err := r.Channel().QueueBind(queue, "", "async.fallback", false, bound); err != nil {
		r.t.Fatal(err)
	}
}

// replay publishes messages as the replay does. Each is known by its number there, and each attempt is answered with a status of its header.
func (r *rig) replay(messages ...amqp091.Publishing) {
	r.t.Helper()
	for i := range messages {
		headers := amqp091.Table{message.HeaderReplay: followed, message.HeaderReplaySeq: int64(i + 1)}
		maps.Copy(headers, messages[i].Headers)
		messages[i].Headers, messages[i].MessageId = headers, strconv.Itoa(i+1)
	}
	r.Publish("async.return", testtransport.Queue, messages...)
}

// answered is a message of which the attempts are answered so.
func answered(statuses string) amqp091.Publishing {
	return amqp091.Publishing{Headers: amqp091.Table{"answer": statuses}}
}

// answers is a partner that answers as its messages say; the last of an answer stands for the attempts to come.
func answers(t *testing.T) *partner {
	t.Helper()
	return newPartner(t, func(r *http.Request, attempt int) int {
		statuses := strings.Split(r.Header.Get("Redrive-Header-Answer"), " ")
		status, _ := strconv.Atoi(statuses[min(attempt, len(statuses))-1])
		return status
	})
}

// outcomes takes the events that are in a queue, by the number of their message.
func (r *rig) outcomes(queue string) map[int64][]message.ReplayOutcome {
	r.t.Helper()
	all := map[int64][]message.ReplayOutcome{}
	for _, event := range r.TakeAll(queue) {
		got, ok := message.DecodeOutcome(message.Message{Headers: event.Headers})
		if !ok || len(event.Body) > 0 || event.DeliveryMode != amqp091.Persistent {
			r.t.Errorf("event %v", event)
		}
		all[got.Seq] = append(all[got.Seq], got)
	}
	return all
}

// replayPolicy retries twice. It fails on 422 and drops on 410.
func replayPolicy() v1alpha1.RetryPolicySpec {
	policy := testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail},
		{Name: "forget", When: "error.status == 410", Action: v1alpha1.ActionDrop},
	}
	return policy
}

func TestReplay_IsToldWhatBecameOfEachOfItsMessages(t *testing.T) {
	t.Parallel()
	atOnce := replayPolicy()
	atOnce.Immediate = new(int32(1))
	cases := map[string]struct {
		policy v1alpha1.RetryPolicySpec
		change func(*v1alpha1.Transport)
	}{
		"through lanes":             {replayPolicy(), nil},
		"at once, and then there":   {atOnce, nil},
		"in a queue that is strict": {replayPolicy(), strict(v1alpha1.OnFailureContinue)},
	}
	const handled, dropped, again, retried = message.OutcomeHandled, message.OutcomeDropped, message.OutcomeFailedAgain, message.OutcomeRetried
	want := map[int64][]message.OutcomeKind{
		1: {handled}, 2: {retried, handled}, 3: {dropped}, 4: {again}, 5: {retried, again}, 6: {retried, dropped},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, answers(t), c.policy, c.change)
			r.follow(eventLog, nil)
			r.publish(answered("200"), answered("502 200"), answered("410"))
			r.replay(answered("200"), answered("502 502 200"), answered("410"), answered("422"), answered("502"), answered("502 502 410"))
			testtransport.Eventually(t, "all events", func() bool { return r.Ready(eventLog) >= 9 })
			r.empty()
			r.stop()
			got := r.outcomes(eventLog)
			causes := map[int64]string{}
			for _, failed := range r.TakeAll("async.failed") {
				causes[r.replayedAs(failed).Seq] = cause(failed)
			}
			for seq, events := range got {
				var kinds []message.OutcomeKind
				for _, event := range events {
					kinds = append(kinds, event.Kind)
					if event.ID != followed || event.Queue != testtransport.Queue || event.Kind == again && event.Cause != causes[seq] || event.Kind != again && event.Cause != "" {
						t.Errorf("event %+v, cause %q", event, causes[seq])
					}
				}
				if !slices.Equal(kinds, want[seq]) {
					t.Errorf("message %d: %v, want %v", seq, kinds, want[seq])
				}
			}
			if len(got) != len(want) || len(causes) != 2 {
				t.Errorf("events of %d messages, %d failed", len(got), len(causes))
			}
			if events := r.counted("redrive_replay_events_total"); events != 9 {
				t.Errorf("%v events are counted", events)
			}
		})
	}
}

// replayedAs is the place of a failed message in the replay.
func (r *rig) replayedAs(failed amqp091.Delivery) message.Replay {
	r.t.Helper()
	place := message.ReplayOf(failed.Headers)
	if place.ID != followed || strconv.FormatInt(place.Seq, 10) != failed.MessageId {
		r.t.Errorf("message %s failed with %v", failed.MessageId, failed.Headers)
	}
	return place
}

// cause is the one that who looks into the failure queue sees.
func cause(failed amqp091.Delivery) string {
	reader := deadletter.Reader{Names: compile.Names{Prefix: "async"}, Exchange: "async", Now: time.Now()}
	letter := reader.Read(message.Message{MessageID: failed.MessageId, Headers: failed.Headers})
	return letter.Given.Cause
}

// What RabbitMQ moves, because it has no room for our headers, has failed again all the same.
func TestReplay_IsToldOfWhatTheBrokerDeadLettersForTheWorker(t *testing.T) {
	r := newRig(t, answers(t), replayPolicy(), nil)
	r.follow(eventLog, nil)
	huge := answered("422")
	huge.Headers["big"] = strings.Repeat("x", message.MaxHeaderSize-200)
	r.replay(huge)
	failed := r.Take("async.failed")
	want := message.ReplayOutcome{Replay: r.replayedAs(failed), Kind: message.OutcomeFailedAgain, Queue: testtransport.Queue}
	if got := r.outcomes(eventLog)[1]; failed.Headers["x-death"] == nil || len(got) != 1 || got[0] != want {
		t.Errorf("events %+v, want %+v", got, want)
	}
}

func TestReplay_ThatNobodyFollowsHoldsNoMessage(t *testing.T) {
	r := newRig(t, answers(t), replayPolicy(), nil)
	begin := time.Now()
	r.replay(answered("200"), answered("502 200"), answered("422"), answered("410"))
	testtransport.Eventually(t, "no event to have a queue", func() bool { return r.counted("redrive_replay_events_total", "result", "unroutable") == 5 })
	r.Take("async.failed")
	r.empty()
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("they took %s", took)
	}
	if troubles := r.worker.Status().Troubles; len(troubles) > 0 || r.counted("redrive_publish_failing") > 0 {
		t.Errorf("troubles %v", troubles)
	}
}

// fullLog is a log queue that refuses events.
const fullLog = "full.log"

// refuseEvents has events in the log of the replay, and refused all the same, for another log is full: the worker is at the point between the
// event and the ack.
func (r *rig) refuseEvents() {
	r.t.Helper()
	r.follow(eventLog, nil)
	r.follow(fullLog, amqp091.Table{"x-overflow": "reject-publish", "x-max-length": int32(1)})
	r.Publish("", fullLog, amqp091.Publishing{})
}

func TestReplay_HearsTwiceOfAMessageWhoseWorkerEndsBeforeTheAck(t *testing.T) {
	p := answers(t)
	r := newRig(t, p, replayPolicy(), nil)
	r.handleQuarantine()
	r.refuseEvents()
	r.replay(answered("200"))
	testtransport.Eventually(t, "the event", func() bool { return r.Ready(eventLog) > 0 })
	if len(p.got()) != 1 {
		t.Fatalf("%d calls", len(p.got()))
	}
	r.proxy.Refuse(true)
	r.proxy.Cut()
	if _, err := r.Channel().QueueDelete(fullLog, false, false, false); err != nil {
		t.Fatal(err)
	}
	r.outcomes(eventLog)
	r.proxy.Refuse(false)
	testtransport.Eventually(t, "the event again", func() bool { return r.Ready(eventLog) > 0 })
	r.empty()
	want := message.ReplayOutcome{Replay: message.Replay{ID: followed, Seq: 1}, Kind: message.OutcomeHandled, Queue: testtransport.Queue}
	if events := r.outcomes(eventLog)[1]; len(events) != 1 || events[0] != want || len(p.got()) != 2 {
		t.Errorf("%d calls, then %+v, want %+v", len(p.got()), events, want)
	}
}

// The broker would deliver it to another worker, which would handle it again.
func TestReplay_LeavesNoHandledMessageToTheBrokerWhenItsWorkerStops(t *testing.T) {
	r := newRig(t, answers(t), replayPolicy(), nil)
	r.refuseEvents()
	r.replay(answered("200"))
	testtransport.Eventually(t, "the event", func() bool { return r.Ready(eventLog) > 0 })
	r.stop()
	if left := r.Ready(testtransport.Queue); left != 0 {
		t.Errorf("%d messages left", left)
	}
}

func TestReplay_KeepsItsMessageInQuarantine(t *testing.T) {
	p := answers(t)
	r := newRig(t, p, replayPolicy(), nil)
	r.stop()
	r.follow(eventLog, nil)
	r.replay(answered("502 200"))
	r.leaveUnsettled(testtransport.Queue, 1)
	r.start(nil)
	testtransport.Eventually(t, "it in quarantine", func() bool { return r.Ready("test.quarantine") == 1 })
	if r.Ready(eventLog) != 0 {
		t.Error("the replay was told something of a message that nobody has handled")
	}
	r.handleQuarantine()
	testtransport.Eventually(t, "both events", func() bool { return r.Ready(eventLog) == 2 })
	events := r.outcomes(eventLog)[1]
	if len(events) != 2 || events[0].Kind != message.OutcomeRetried || events[1].Kind != message.OutcomeHandled || events[1].Queue != testtransport.Queue {
		t.Errorf("events %+v", events)
	}
}

// What comes by the producers' exchange, or was moved by hand, is of no replay, whatever it says. Nor is it an event: in the log of a replay
// a message on its way to a lane would be one too many, or lost.
func TestForgedHeaders_TellNoReplay(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	r := newRig(t, p, replayPolicy(), nil)
	r.follow(eventLog, nil)
	forged := func() amqp091.Publishing {
		return amqp091.Publishing{Headers: amqp091.Table{
			message.HeaderReplay: followed, message.HeaderReplaySeq: int64(1),
			message.HeaderOutcome: followed, message.HeaderOutcomeSeq: int64(1), message.HeaderOutcomeKind: "Handled",
		}}
	}
	event := amqp091.Publishing{Headers: forged().Headers}
	delete(event.Headers, message.HeaderReplay)
	r.publish(forged(), event)
	r.Publish("", testtransport.Queue, forged(), event)
	r.Publish("async.return", testtransport.Queue, event)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == 5 })
	r.empty()
	if events := r.outcomes(eventLog); len(events) > 0 || r.counted("redrive_replay_events_total") > 0 {
		t.Errorf("events %v", events)
	}
}

// TestReplay_HoldsAMessageForItsEventNoLongerThanTenSeconds has a broker that reads nothing any more, and then one on which the log queue has no
// leader.
func TestReplay_HoldsAMessageForItsEventNoLongerThanTenSeconds(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	stopped := map[string]func(t *testing.T, r *rig, publish func()) (undo func()){
		"the broker blocks who publishes": func(t *testing.T, r *rig, publish func()) func() {
			t.Helper()
			watermark := func(fraction string) {
				if err := node.Control(context.Background(), "set_vm_memory_high_watermark", fraction); err != nil {
					t.Fatal(err)
				}
			}
			watermark("0.00001")
			publish() // RabbitMQ blocks a connection that has published since
			testtransport.Eventually(t, "the worker to know", func() bool { return r.worker.Ready() != nil })
			return func() { watermark("0.4") }
		},
		"the log queue has no leader": func(t *testing.T, r *rig, _ func()) func() {
			t.Helper()
			vhost := r.target.VHost
			node.StopMember(t, vhost, eventLog)
			return func() { node.StartMember(t, vhost, eventLog) }
		},
	}
	for _, name := range slices.Sorted(maps.Keys(stopped)) {
		t.Run(name, func(t *testing.T) {
			calls, answer, fails := make(chan struct{}), make(chan struct{}), make(chan struct{})
			p := newPartner(t, func(r *http.Request, _ int) int {
				calls <- struct{}{}
				if r.Header.Get("Redrive-Header-Answer") == "422" {
					<-fails
					return http.StatusUnprocessableEntity
				}
				<-answer
				return http.StatusOK
			})
			r := newRigOn(t, node, p, replayPolicy(), func(tr *v1alpha1.Transport) {
				tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(10 * time.Minute) // rabbitmqctl may take its time
			})
			r.follow(eventLog, amqp091.Table{"x-queue-type": "quorum"})
			r.publish(answered("422"))
			r.replay(answered("200"))
			<-calls
			<-calls
			fail := sync.OnceFunc(func() { close(fails) })
			undo := stopped[name](t, r, fail)
			began := time.Now()
			close(answer)
			testtransport.Eventually(t, "the ack", func() bool { return r.counted("redrive_messages_handled_total", "outcome", "succeeded") == 1 })
			if took := time.Since(began); took < 9*time.Second || took > 30*time.Second {
				t.Errorf("it was held for %s", took)
			}
			undo()
			fail()
			r.stop()
			if left := r.Ready(testtransport.Queue); left != 0 || len(p.got()) != 2 || r.counted("redrive_replay_events_total", "result", "given_up") != 1 {
				t.Errorf("%d messages left, %d calls", left, len(p.got()))
			}
		})
	}
}
