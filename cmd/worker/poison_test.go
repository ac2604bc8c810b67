package main_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// numbered are messages with the ids of a range.
func numbered(from, to int) []amqp091.Publishing {
	all := make([]amqp091.Publishing, 0, to-from)
	for n := from; n < to; n++ {
		all = append(all, amqp091.Publishing{MessageId: strconv.Itoa(n)})
	}
	return all
}

func named(id string) amqp091.Publishing { return amqp091.Publishing{MessageId: id} }

// awaitHandled waits until some messages are handled.
func (w *ward) awaitHandled(ids ...string) {
	w.t.Helper()
	testtransport.Eventually(w.t, "messages to be handled: "+strings.Join(ids, ", "), func() bool {
		handled := w.outcome()
		for _, id := range ids {
			if handled[id] == 0 {
				return false
			}
		}
		return true
	})
}

// awaitCall waits until a message is with the doctor for the nth time.
func (w *ward) awaitCall(id string, n int) {
	w.t.Helper()
	testtransport.Eventually(w.t, fmt.Sprintf("call %d for %s", n, id), func() bool { return w.called(id) >= n })
}

// nobodyCharged checks that no crash was charged to a message and none was given up.
func (w *ward) nobodyCharged() {
	w.t.Helper()
	if _, charged := w.moves(); len(charged) > 0 {
		w.t.Errorf("charged: %v", charged)
	}
	if n := w.Ready("async.failed"); n > 0 {
		w.t.Errorf("%d messages were given up", n)
	}
}

// stop ends pods as an update does.
func stop(t *testing.T, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		if code := p.end(syscall.SIGTERM); code != 0 {
			t.Errorf("%s did not stop cleanly: exit code %d", p.name, code)
		}
	}
}

func TestQuarantine_ConvictsOnlyTheMessageThatKillsItsWorker(t *testing.T) {
	t.Parallel()
	const good = 1000
	for _, queueType := range []v1alpha1.QueueType{v1alpha1.QueueQuorum, v1alpha1.QueueClassic} {
		t.Run(string(queueType), func(t *testing.T) {
			w := newWard(t, testbroker.Shared(t), wardOptions{queueType: queueType})
			w.answer("poison", deadly)
			w.Publish("async", testtransport.Queue, numbered(0, good/5)...)
			w.Publish("async", testtransport.Queue, named("poison"))
			w.Publish("async", testtransport.Queue, numbered(good/5, good)...)
			pods := []*pod{w.quarantineWorker(), w.worker("worker-0"), w.worker("worker-1"), w.worker("worker-2")}
			began := time.Now()
			var allHandled, convicted time.Duration
			testtransport.Eventually(t, "all to be handled and the poison to be convicted", func() bool {
				if allHandled == 0 && len(w.outcome()) == good {
					allHandled = time.Since(began)
				}
				if convicted == 0 && w.Ready("async.failed") > 0 {
					convicted = time.Since(began)
				}
				return allHandled > 0 && convicted > 0
			})
			stop(t, pods...)

			failed := w.TakeAll("async.failed")
			if len(failed) != 1 || failed[0].MessageId != "poison" {
				t.Fatalf("%d messages failed, the first is %s", len(failed), failed[0].MessageId)
			}
			for name, want := range map[string]any{
				"redrive-reason": "PoisonCrash", "redrive-crashes": int64(3), "redrive-crash-exit": "signal: killed", "redrive-worker": "quarantine",
				"redrive-queue": testtransport.Queue,
			} {
				if got := failed[0].Headers[name]; got != want {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
			if n := w.called("poison"); n != 4 {
				t.Errorf("the poison was handled %d times, want once among others and three times alone", n)
			}
			moved, charged := w.moves()
			t.Logf("all handled after %s, the poison convicted after %s; %d messages were moved", allHandled, convicted, len(moved))
			if most := 2 * wardConcurrency; len(moved) > most {
				t.Errorf("%d messages were moved for one crash, want at most %d", len(moved), most)
			}
			for _, id := range charged {
				if id != "poison" {
					t.Errorf("the innocent %s was charged", id)
				}
			}
			for id, times := range w.outcome() {
				if times > 1 && !strings.Contains(" "+strings.Join(moved, " ")+" ", " "+id+" ") {
					t.Errorf("%s was handled %d times, and no worker had left it", id, times)
				}
			}
			if n := w.Stored(); n > 0 {
				t.Errorf("%d messages are left", n)
			}
		})
	}
}

func TestWorker_MovesNoMessageInARollingUpdate(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{})
	pods := []*pod{w.quarantineWorker(), w.worker("worker-0"), w.worker("worker-1"), w.worker("worker-2")}
	stream := newStream(t, w.url)
	for i := range 3 {
		stream.more(t, 200)
		pods = append(pods, w.worker(fmt.Sprint("worker-", 3+i)))
		stop(t, pods[1+i])
	}
	stream.more(t, 200)
	published := stream.stop()
	testtransport.Eventually(t, "all to be handled", func() bool { return len(w.outcome()) == published })
	stop(t, pods[0], pods[4], pods[5], pods[6])
	if moved, _ := w.moves(); len(moved) > 0 {
		t.Errorf("%d of %d messages were moved", len(moved), published)
	}
	for id, times := range w.outcome() {
		if times > 1 {
			t.Errorf("%s was handled %d times", id, times)
		}
	}
	w.nobodyCharged()
}

func TestQuarantine_LetsTheMainWorkGoOn(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{})
	release := w.hold(t, "slow")
	w.quarantined(named("slow"), named("next"))
	pods := []*pod{w.quarantineWorker(), w.worker("worker-0")}
	w.awaitCall("slow", 1)
	w.Publish("async", testtransport.Queue, numbered(0, 200)...)
	testtransport.Eventually(t, "the work beside", func() bool { return len(w.outcome()) == 200 })
	if w.called("next") > 0 {
		t.Error("two quarantined messages ran at a time")
	}
	release()
	w.awaitHandled("slow", "next")
	stop(t, pods...)
	w.nobodyCharged()
}

func TestQuarantine_ChargesNothingForACutConnection(t *testing.T) {
	t.Parallel()
	broker := testbroker.Shared(t)
	proxy := testtransport.NewProxy(t, testtransport.Address(t, broker.AMQPURL))
	w := newWard(t, broker, wardOptions{address: proxy.Address})
	release := w.hold(t, "a")
	w.quarantined(named("a"), named("b"))
	pod := w.quarantineWorker()
	for n := range 4 {
		w.awaitCall("a", n+1)
		next := w.hold(t, "a")
		proxy.Cut()
		release() // the answer comes too late
		release = next
	}
	w.awaitCall("a", 5)
	release()
	w.awaitHandled("a", "b")
	testtransport.Eventually(t, "the queue to be empty", func() bool { return w.Ready(quarantineQueue) == 0 })
	stop(t, pod)
	w.nobodyCharged()
}

func TestQuarantine_ChargesNothingForABrokerRestart(t *testing.T) {
	testtransport.Long(t)
	broker := testbroker.Private(t)
	w := newWard(t, broker, wardOptions{})
	release := w.hold(t, "a", "main")
	w.quarantined(named("a"), named("b"))
	w.Publish("async", testtransport.Queue, named("main"))
	pods := []*pod{w.quarantineWorker(), w.worker("worker-0")}
	w.awaitCall("a", 1)
	w.awaitCall("main", 1)
	must(t, broker.Restart(t.Context()))
	w.Broker = w.Reconnect(w.url)
	release()
	w.awaitHandled("a", "b", "main")
	testtransport.Eventually(t, "the queues to be empty", func() bool { return w.Stored() == 0 })
	stop(t, pods...)
	w.nobodyCharged()
}

func TestQuarantine_ChargesNothingForAPeek(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{})
	peek := func(queue string) int {
		return w.manage(http.MethodPost, "/api/queues/"+w.vhost+"/"+queue+"/get",
			map[string]any{"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"})
	}
	release := w.hold(t, "a")
	w.quarantined(named("a"), named("b"))
	quarantine := w.quarantineWorker()
	w.awaitCall("a", 1)
	w.Publish("async", testtransport.Queue, numbered(0, 5)...)
	for range 4 {
		// A queue with a single active consumer may refuse to be looked into, which is as well.
		if status := peek(quarantineQueue); status != http.StatusOK && status != http.StatusBadRequest {
			t.Errorf("status %d", status)
		}
		if status := peek(testtransport.Queue); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	worker := w.worker("worker-0")
	testtransport.Eventually(t, "the messages that were looked at to be moved", func() bool {
		moved, _ := w.moves()
		return len(moved) == 2+5
	})
	release()
	w.awaitHandled("a", "b", "0", "1", "2", "3", "4")
	stop(t, quarantine, worker)
	w.nobodyCharged()
}

func TestQuarantine_TakesAHangForAFailureAndNoCrash(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{timeout: 300 * time.Millisecond})
	w.hold(t, "quarantine", "main")
	w.quarantined(named("quarantine"))
	w.Publish("async", testtransport.Queue, named("main"))
	pods := []*pod{w.quarantineWorker(), w.worker("worker-0")}
	for range 2 {
		d := w.Take("async.failed")
		if d.Headers["redrive-reason"] != "MaxRetries" || d.Headers["redrive-error-source"] != "Timeout" ||
			d.Headers["redrive-attempts"] != int64(2) || d.Headers["redrive-crashes"] != nil {
			t.Errorf("%s failed with %v", d.MessageId, d.Headers)
		}
	}
	stop(t, pods...)
	if n := w.called("quarantine"); n != 2 {
		t.Errorf("the quarantined message was handled %d times", n)
	}
}

func TestQuarantine_RetriesByThePolicy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answers []int
		charges int
	}{
		"one that never crashed goes back to the others":            {[]int{502, 200}, 0},
		"one that crashed stays apart, and a success clears it":     {[]int{deadly, 502, 200}, 2},
		"one that crashed twice is not convicted for a failure":     {[]int{deadly, deadly, 502, 200}, 3},
		"one that crashes again after a failure is charged further": {[]int{deadly, 502, deadly, 200}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, testbroker.Shared(t), wardOptions{})
			w.answer("m", tt.answers...)
			w.quarantined(named("m"))
			pods := []*pod{w.quarantineWorker(), w.worker("worker-0")}
			w.awaitHandled("m")
			testtransport.Eventually(t, "the queues to be empty", func() bool { return w.Stored() == 0 })
			stop(t, pods...)
			if n := w.called("m"); n != len(tt.answers) {
				t.Errorf("%d attempts, want %d", n, len(tt.answers))
			}
			if moved, charged := w.moves(); len(moved) != 1 || len(charged) != tt.charges {
				t.Errorf("%d times to the quarantine queue uncharged, want once; %d times charged, want %d", len(moved), len(charged), tt.charges)
			}
			if n := w.Ready("async.failed"); n > 0 {
				t.Errorf("%d messages failed", n)
			}
			entries, err := os.ReadDir(w.journal())
			if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
				t.Errorf("the journal holds %v, %v", entries, err)
			}
		})
	}
}

func TestQuarantine_LeavesVanishingPodsToTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	const limit = 3
	w := newWard(t, testbroker.Shared(t), wardOptions{})
	if status := w.manage(http.MethodPut, "/api/policies/"+w.vhost+"/limit", map[string]any{
		"pattern": "^test\\.quarantine$", "apply-to": "queues", "definition": map[string]any{"delivery-limit": limit},
	}); status != http.StatusCreated {
		t.Fatalf("status %d", status)
	}
	w.hold(t, "fatal")
	w.quarantined(named("fatal"), named("innocent"))
	for n := range limit + 1 {
		pod := w.quarantineWorker()
		w.awaitCall("fatal", n+1)
		pod.end(syscall.SIGKILL)
		must(t, os.RemoveAll(w.journal()))
	}
	pod := w.quarantineWorker()
	w.awaitHandled("innocent")
	d := w.Take("async.failed")
	deaths, _ := d.Headers["x-death"].([]any)
	if d.MessageId != "fatal" || d.Headers["redrive-reason"] != nil || len(deaths) != 1 || deaths[0].(amqp091.Table)["reason"] != "delivery_limit" {
		t.Errorf("%s failed with %v", d.MessageId, d.Headers)
	}
	testtransport.Eventually(t, "the queues to be empty", func() bool { return w.Stored() == 0 })
	stop(t, pod)
	w.nobodyCharged()
}

func TestQuarantine_ChargesTheMessageOfAKilledContainer(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{})
	w.hold(t, "fatal")
	w.quarantined(named("fatal"))
	pod := w.quarantineWorker()
	for n := range 3 {
		w.awaitCall("fatal", n+1)
		pod.mu.Lock()
		must(t, pod.process.Kill()) // the folder stays, as it does while there is the pod
		pod.mu.Unlock()
	}
	d := w.Take("async.failed")
	if d.Headers["redrive-reason"] != "PoisonCrash" || d.Headers["redrive-crashes"] != int64(3) || d.Headers["redrive-crash-exit"] != nil {
		t.Errorf("%s failed with %v", d.MessageId, d.Headers)
	}
	stop(t, pod)
}

// heavy is a message whose body, decoded, needs more memory than a process of the ward has.
func heavy(id string) amqp091.Publishing {
	return amqp091.Publishing{MessageId: id, Body: []byte("[" + strings.Repeat(`{"":{"":0}},`, 1<<20) + "1]")}
}

// spareMemory is enough to receive, handle and publish a heavy message, and too little to decode its body, which takes some 750 MB. It
// is address space: on a loaded machine a process has more threads, and the C library sets aside up to 72 MB of that for each.
const spareMemory = 640 << 20

func TestQuarantine_ChargesKillsOutsideOfTheHandler(t *testing.T) {
	t.Parallel()
	const reads = "message.body[0] == 1"
	for name, tt := range map[string]struct {
		options wardOptions
		calls   int
	}{
		"when its policy decides on a failure": {wardOptions{strategies: []v1alpha1.Strategy{{Name: "first", When: reads, Action: v1alpha1.ActionFail}}}, 3},
		"before the handler, for its rate limit": {wardOptions{change: func(t *v1alpha1.Transport) {
			t.Spec.Workers[0].RateLimits = []v1alpha1.RateLimit{{Name: "first", PerSecond: intstr.FromInt32(100), Key: new("string(message.body[0])")}}
		}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.options.memory = spareMemory
			w := newWard(t, testbroker.Shared(t), tt.options)
			w.answer("fatal", http.StatusBadGateway)
			w.quarantined(heavy("fatal"), named("innocent"), named("another"))
			pod := w.quarantineWorker()
			w.awaitHandled("innocent", "another")
			d := w.Take("async.failed")
			if d.MessageId != "fatal" || d.Headers["redrive-reason"] != "PoisonCrash" || d.Headers["redrive-crashes"] != int64(3) ||
				d.Headers["redrive-crash-exit"] == nil {
				t.Errorf("%s failed with %v", d.MessageId, d.Headers)
			}
			if n := w.called("fatal"); n != tt.calls {
				t.Errorf("%d calls of the handler, want %d", n, tt.calls)
			}
			stop(t, pod)
			if _, charged := w.moves(); len(charged) != 2 || charged[0] != "fatal" || charged[1] != "fatal" {
				t.Errorf("charged: %v, want the one message twice before its end", charged)
			}
		})
	}
}

func TestWorker_GivesUpStrictMessagesWhosePolicyCannotBeChosen(t *testing.T) {
	t.Parallel()
	w := newWard(t, testbroker.Shared(t), wardOptions{memory: spareMemory, change: func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		t.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.body[0] == 1", RetryPolicyRef: *t.Spec.RetryPolicyRef}}
	}})
	w.Publish("async", testtransport.Queue, heavy("fatal"), named("innocent"))
	pod := w.worker("worker-0")
	const crashes = 14 // each of which takes seconds of a processor
	testtransport.EventuallyWithin(t, crashes*time.Minute, "the message behind to be handled", func() bool { return w.called("innocent") > 0 })
	d := w.Take("async.failed")
	if d.MessageId != "fatal" || d.Headers["redrive-reason"] != "PoisonCrash" {
		t.Errorf("%s failed with %v", d.MessageId, d.Headers)
	}
	stop(t, pod)
}
