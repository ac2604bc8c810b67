package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/controllers"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// ask asks for the number of messages as KEDA does. It returns the status where there is none, and else the number.
func (w *world) ask(transport, worker string) string {
	w.Helper()
	return w.askAt(w.operator.scale, transport, worker)
}

func (w *world) askAt(address, transport, worker string) string {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, address+workload.ScalePath(w.namespace, transport, worker), nil)
	must(w.T, err)
	response, err := http.DefaultClient.Do(request)
	must(w.T, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(w.T, err)
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	var answer map[string]json.Number
	must(w.T, json.Unmarshal(body, &answer))
	return answer["messages"].String()
}

func (w *world) awaitNumber(what, number string) {
	w.Helper()
	last := ""
	defer func() {
		if w.Failed() {
			w.Logf("the last answer was %s", last)
		}
	}()
	testtransport.Eventually(w, what+": "+number, func() bool {
		last = w.ask("async", "default")
		return last == number
	})
}

// scaled is a Transport whose workers are scaled, and have no pod.
func (w *world) scaled(worker func(*v1alpha1.Worker)) *v1alpha1.Transport {
	w.Helper()
	w.create(w.policy("policy", 3*time.Second, time.Hour))
	transport := w.transport()
	transport.Spec.Workers[0].Replicas = nil
	transport.Spec.Workers[0].Autoscaling = &v1alpha1.Autoscaling{Min: ptr.To[int32](1), Max: 10, MessagesPerPod: ptr.To[int32](2)}
	worker(&transport.Spec.Workers[0])
	w.create(transport)
	w.awaitReady(transport)
	return transport
}

// No number that is waited for comes up on the way to one that counts too much or too little.
func TestAutoscaling_CountsMessagesThatWorkersCanHaveNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(*v1alpha1.Worker) {})
	w.awaitNumber("nothing to do", "0")

	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 3)...)
	w.awaitNumber("ready", "3")
	taken, ok, err := w.amqp.Channel().Get("test", false)
	if err != nil || !ok {
		t.Fatalf("no message in test: %v", err)
	}
	w.amqp.Publish("async", "test", amqp091.Publishing{})
	w.awaitNumber("three ready and one in hand", "4")
	must(t, taken.Ack(false))
	w.amqp.TakeAll("test")
	w.awaitNumber("all handled", "0")

	// The queue of a lane and the failure queue hold messages that no worker can have.
	w.amqp.Publish("async.failed", "test", make([]amqp091.Publishing, 4)...)
	w.awaitCount("async.failed", 4)
	parked := amqp091.Publishing{Headers: amqp091.Table{message.HeaderLane: "1h"}}
	w.amqp.Publish("async.fallback", "test", slices.Repeat([]amqp091.Publishing{parked}, 3)...)
	w.awaitCount("async.fallback.1h", 3)
	w.amqp.Publish("async", "test", amqp091.Publishing{})
	w.awaitNumber("one ready, besides three that are parked and four that failed", "1")
	w.park("3s", "comes back")
	w.awaitNumber("a second one, which was parked for as long as it had to be", "2")

	testtransport.Eventually(t, "the same number as a metric", func() bool {
		return w.series("redrive_autoscaling_backlog_messages", "transport", "worker")["async default"] == 2
	})
	for _, unknown := range [][2]string{{"async", "other"}, {"other", "default"}} {
		if got := w.ask(unknown[0], unknown[1]); got != "404 Not Found" {
			t.Errorf("of %v it says %s", unknown, got)
		}
	}
	w.proxy.down.Store(true)
	w.awaitNumber("a broker that does not answer", "503 Service Unavailable")
	testtransport.Eventually(t, "no metric that is no longer known", func() bool { return len(w.series("redrive_autoscaling_backlog_messages", "worker")) == 0 })
	w.proxy.down.Store(false)
	w.awaitNumber("it answers again", "2")
	scale(w, transport, nil)
	w.awaitNumber("a group that is not scaled", "404 Not Found")
}

// Without a pod nobody would empty it.
func TestAutoscaling_CountsALeavingQueueUntilItIsEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(*v1alpha1.Worker) {})
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 2)...)
	w.awaitCount("test", 2)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Name, t.Spec.Queues[0].BindingKeys = "other", []string{"other"}
	})
	testtransport.Eventually(t, "the new queue", func() bool { return w.published("other").Name != "" })
	w.amqp.Publish("async", "other", amqp091.Publishing{})
	w.awaitNumber("those of both queues", "3")
	w.amqp.TakeAll("test")
	w.awaitNumber("those of the queue that is left", "1")
}

func TestAutoscaling_AsksForNoMorePodsWhileABreakerIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(worker *v1alpha1.Worker) { worker.CircuitBreaker = &v1alpha1.CircuitBreaker{} })
	talker := newTalker(t)
	w.talks(transport, "one", talker)
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 9)...)
	w.awaitNumber("all is well", "9")
	talker.says.Store(&compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonCircuitOpen, Message: "calls fail"}}})
	w.awaitNumber("for one pod, which there is", "2")
	w.scaleTo(transport, 3)
	w.awaitNumber("for three pods, which there are", "6")
	w.scaleTo(transport, 0)
	w.awaitNumber("without a pod no breaker is open", "9")
	w.scaleTo(transport, 1)
	talker.says.Store(&compile.WorkerStatus{})
	w.awaitNumber("the breaker is closed", "9")
}

// Pods hold what the broker does not take of what they publish. More pods take none of that, and would hold as many again.
func TestDemand_OfMessagesThatAreHeldAsksForNoMorePods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(*v1alpha1.Worker) {})
	talker := newTalker(t)
	w.talks(transport, "one", talker)
	const held = 5
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, held)...)
	for range held {
		testtransport.Eventually(t, "a message to hold", func() bool {
			_, ok, err := w.amqp.Channel().Get("test", false)
			return err == nil && ok
		})
	}
	w.awaitNumber("all is well", "5")
	talker.says.Store(&compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonPublishFailing, Message: "messages are held"}}})
	w.awaitNumber("for one pod, which there is", "2")
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 4)...)
	w.awaitNumber("those that nobody holds", "4")
	talker.says.Store(&compile.WorkerStatus{})
	w.awaitNumber("the broker takes them again", "9")
}

func TestAutoscaling_IgnoresTheOpenBreakerOfOneKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(worker *v1alpha1.Worker) {
		worker.CircuitBreaker = &v1alpha1.CircuitBreaker{Key: new("message.type")}
	})
	talker := newTalker(t)
	talker.says.Store(&compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonCircuitOpen, Subject: "a", Message: "calls fail"}}})
	w.talks(transport, "one", talker)
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 9)...)
	w.awaitNumber("the messages of other keys", "9")
	w.await(transport, v1alpha1.DegradedCondition, "True", v1alpha1.ReasonCircuitOpen)
	if got := w.ask("async", "default"); got != "9" {
		t.Errorf("with the breaker of one key open it is %s", got)
	}
}

// Its broker is asked by a login of its own, and no reconcile has ever run in it.
func TestAutoscaling_AnswersWhileTheManagerStandsBy(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	w.scaled(func(*v1alpha1.Worker) {})
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 3)...)
	w.operator.stop()
	now := metav1.NowMicro()
	w.create(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "redrive"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("another"), LeaseDurationSeconds: ptr.To[int32](3600), AcquireTime: &now, RenewTime: &now,
		},
	})
	mgr, err := ctrl.NewManager(testcluster.Start(t).Config, ctrl.Options{
		Scheme: controllers.NewScheme(), Cache: w.operator.sight(t), Client: objectcache.ClientOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "redrive", LeaderElectionNamespace: w.namespace,
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	must(t, controllers.Setup(ctx, mgr, controllers.Options{
		ClusterUID: "standby", Workers: workload.Options{Image: workerImage}, PollInterval: pollInterval, Waits: shortWaits(), Concurrency: 1,
		Scale: autoscaling.Server{Listener: listener, URL: address}, Name: w.operator.name, Metrics: w.operator.registerer(),
	}))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		must(t, <-ended)
	}()
	testtransport.Eventually(t, "the number", func() bool { return w.askAt(address, "async", "default") == "3" })
	select {
	case <-mgr.Elected():
		t.Error("it leads")
	default:
	}
}

func TestAutoscaling_ReadsTheBrokerLessOftenThanItIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scaled(func(*v1alpha1.Worker) {})
	w.awaitNumber("nothing to do", "0")
	before := w.proxy.reads.Load()
	const questions, together = 400, 10 // the server answers none at once, and no more of an address
	var asking errgroup.Group
	for range together {
		asking.Go(func() error {
			for range questions / together {
				if got := w.ask("async", "default"); got != "0" {
					return fmt.Errorf("it says %s", got)
				}
			}
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	// The operator looks at the broker by itself meanwhile.
	if looks := w.proxy.reads.Load() - before; looks > questions/5 {
		t.Errorf("%d questions were %d reads of the broker", questions, looks)
	}
	fmt.Fprintf(t.Output(), "%d questions were %d reads of the broker\n", questions, w.proxy.reads.Load()-before)
}
