package controllers_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// hold puts a message with its queue's name as id into each of the queues, and waits until the broker's figures show it.
func (w *world) hold(queues ...string) {
	w.Helper()
	for _, queue := range queues {
		w.amqp.Publish("", queue, amqp091.Publishing{MessageId: queue})
	}
	for _, queue := range queues {
		w.awaitCount(queue, 1)
	}
}

// checkHeld takes out what hold put in.
func (w *world) checkHeld(queues ...string) {
	w.Helper()
	for _, queue := range queues {
		if ids := w.amqp.TakeAll(queue); len(ids) != 1 || ids[0].MessageId != queue {
			w.Errorf("queue %s holds %d messages", queue, len(ids))
		}
	}
}

func (w *world) deleteAll(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		must(w.T, client.IgnoreNotFound(w.client.Delete(w.Context(), object)))
	}
}

func (w *world) namespaceObject() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
}

// deleteVhost takes the vhost away with all that is in it.
func (w *world) deleteVhost() {
	w.Helper()
	management, err := url.Parse(testbroker.Shared(w.T).ManagementURL)
	must(w.T, err)
	request, err := http.NewRequestWithContext(w.Context(), http.MethodDelete, management.JoinPath("api/vhosts", w.vhost).String(), http.NoBody)
	must(w.T, err)
	response, err := testbroker.Client.Do(request)
	must(w.T, err)
	must(w.T, response.Body.Close())
	if response.StatusCode != http.StatusNoContent {
		w.Fatalf("delete the vhost: %s", response.Status)
	}
}

// deafness holds back what the API server tells of changes, so that a cache stays as it is.
type deafness struct {
	on atomic.Bool
	// heard counts what came through.
	heard atomic.Int64
}

func (d *deafness) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && r.URL.Query().Get("watch") == "true" {
			response.Body = &deafBody{ReadCloser: response.Body, deafness: d, closed: make(chan struct{})}
		}
		return response, err
	})
}

type deafBody struct {
	io.ReadCloser
	deafness *deafness
	closed   chan struct{}
	isClosed atomic.Bool
}

func (b *deafBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for b.deafness.on.Load() {
		select {
		case <-b.closed:
			return 0, io.EOF
		case <-tick.C:
		}
	}
	b.deafness.heard.Add(1)
	return n, err
}

func (b *deafBody) Close() error {
	if b.isClosed.CompareAndSwap(false, true) {
		close(b.closed)
	}
	return b.ReadCloser.Close()
}

// stale starts a second operator whose cache can be kept from learning anything new.
func (w *world) stale() *deafness {
	w.Helper()
	deaf := &deafness{}
	w.startBeside(&operator{wrap: deaf.wrap})
	return deaf
}

func TestDeletion_LetsAStaleOperatorBuildNothing(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	deaf := w.stale()
	transport := w.ready()
	w.settle()
	w.hold("async.failed", "test")
	deaf.on.Store(true)
	soFar := len(w.proxy.since(0))
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	w.awaitLooks(8)
	w.checkHeld("test")
	testtransport.Eventually(t, "all but the failure queue to be gone", func() bool { return len(w.observed().Queues) == 1 })
	w.awaitLooks(8)
	for _, write := range w.proxy.since(soFar) {
		if strings.HasPrefix(write, http.MethodPut) || strings.HasPrefix(write, http.MethodPost) {
			t.Errorf("something was made during the deletion: %s", write)
		}
	}
	w.checkHeld("async.failed")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestDeletion_LetsAStaleOperatorTouchNoNewTransport(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	deaf := w.stale()
	transport := w.transport()
	transport.Spec.Workers, transport.Spec.DeletionPolicy = nil, v1alpha1.DeletionDelete
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	w.proxy.down.Store(true)
	before := deaf.heard.Load()
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerUnreachable)
	testtransport.Eventually(t, "both to know of the deletion", func() bool { return deaf.heard.Load() > before })
	deaf.on.Store(true)
	w.proxy.down.Store(false)
	w.awaitGone(transport)
	anew := w.transport()
	w.create(anew)
	w.awaitReady(anew)
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "test"})
	soFar := len(w.proxy.since(0))
	w.awaitLooks(8)
	for _, write := range w.proxy.since(soFar) {
		t.Errorf("the new Transport was touched: %s", write)
	}
	w.checkHeld("test")
}

func TestDeletion_LeavesTheMessagesOfADeletedNamespace(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{
		{"Secret", "Transport", "ConfigMap", "Deployment"},
		{"ConfigMap", "Deployment", "Secret", "Transport"},
		{"Transport", "Deployment", "ConfigMap", "Secret"},
	} {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			w.hold("async.failed", "test")
			must(t, w.client.Delete(t.Context(), w.namespaceObject()))
			for _, kind := range order {
				switch kind {
				case "Secret":
					w.deleteAll(w.secret())
				case "Transport":
					w.deleteAll(transport)
				case "ConfigMap":
					must(t, w.client.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(w.namespace)))
				case "Deployment":
					must(t, w.client.DeleteAllOf(t.Context(), &appsv1.Deployment{}, client.InNamespace(w.namespace)))
				}
			}
			w.awaitGone(transport)
			w.checkHeld("async.failed", "test")
			// The namespace takes no events any more: what is left is told of beside it.
			testtransport.Eventually(t, "an event about the namespace", func() bool {
				var list eventsv1.EventList
				must(t, w.client.List(t.Context(), &list, client.InNamespace(metav1.NamespaceDefault)))
				return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
					return e.Reason == "Retained" && e.Regarding.Kind == "Namespace" && e.Regarding.Name == w.namespace &&
						strings.Contains(e.Note, w.namespace+"/async") && strings.Contains(e.Note, "async.failed") && strings.Contains(e.Note, "test")
				})
			})
			if log := theLog.String(); !strings.Contains(log, "the Transport "+w.namespace+"/async goes") {
				t.Error("the log does not tell of it")
			}
		})
	}
}

func TestDeletion_LosesNothingWhenAllIsPrunedAtOnce(t *testing.T) {
	t.Parallel()
	for _, order := range []string{
		"policy secret transport", "policy transport secret", "secret policy transport",
		"secret transport policy", "transport policy secret", "transport secret policy",
	} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			w.hold("async.failed", "test")
			pruned := map[string]client.Object{"policy": w.policy("policy"), "secret": w.secret(), "transport": transport}
			for name := range strings.FieldsSeq(order) {
				w.deleteAll(pruned[name])
			}
			w.awaitGone(transport)
			w.checkHeld("async.failed", "test")
			w.awaitEvent("Retained", "async.failed")
		})
	}
}

func TestDeletion_WaitsForTheMessages(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*v1alpha1.Transport){
		"where its workers run":            func(*v1alpha1.Transport) {},
		"where they are scaled to nothing": func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = new(int32(0)) },
		"where there are none":             func(t *v1alpha1.Transport) { t.Spec.Workers = nil },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			change(transport)
			w.create(w.policy("policy", time.Second), transport)
			w.awaitReady(transport)
			w.hold("test")
			must(t, w.client.Delete(t.Context(), transport))
			if message := w.blocked(transport); !strings.Contains(message, "test (1)") {
				t.Errorf("the condition says %q", message)
			}
			w.awaitLooks(4)
			w.checkHeld("test")
			w.awaitGone(transport)
			checkBrokerIsEmpty(w)
		})
	}
}

// collect plays the part of the garbage collector, which this cluster lacks, for a Transport that is deleted with a
// propagation policy of its own.
func (w *world) collect(transport *v1alpha1.Transport, finalizer string, perform func(client.Object)) {
	w.Helper()
	for _, deployment := range w.deployments() {
		perform(&deployment)
	}
	for _, configMap := range w.configMaps() {
		perform(&configMap)
	}
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Finalizers = slices.DeleteFunc(t.Finalizers, func(name string) bool { return name == finalizer })
	})
}

func TestDeletion_LosesNothingInTheForeground(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.hold("test", "lost")
	must(t, w.client.Delete(t.Context(), transport, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	w.collect(transport, metav1.FinalizerDeleteDependents, func(object client.Object) { w.deleteAll(object) })
	var message string
	defer func() {
		if t.Failed() {
			t.Logf("last said: %s", message)
		}
	}()
	testtransport.Eventually(t, "the condition to say that nobody handles them", func() bool {
		// A look that had begun before the deletion may have made one again, which would handle what the queues hold.
		for _, deployment := range w.deployments() {
			w.deleteAll(&deployment)
		}
		message = w.blocked(transport)
		return strings.Contains(message, "test (1)") && strings.Contains(message, "lost (1)") && strings.Contains(message, "its workers are gone")
	})
	w.awaitLooks(6)
	w.checkHeld("test", "lost")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestDeletion_NamesOrphanedWorkersAndLeavesThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	pod := w.podOf(transport)
	w.hold("test")
	must(t, w.client.Delete(t.Context(), transport, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	w.collect(transport, metav1.FinalizerOrphanDependents, func(object client.Object) {
		edit(w, object, func(o client.Object) { o.SetOwnerReferences(nil) })
	})
	if message := w.blocked(transport); !strings.Contains(message, "test (1)") {
		t.Errorf("the condition says %q", message)
	}
	w.checkHeld("test")
	orphan := workload.Name(transport, "default")
	testtransport.Eventually(t, "the condition to name the Deployment", func() bool {
		message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
		return strings.Contains(message, "Deployment "+orphan) && strings.Contains(message, "Retain")
	})
	if len(w.deployments()) != 1 {
		t.Error("the Deployment was deleted")
	}
	w.deleteAll(pod)
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestTransport_IsNotReleasedWhileItsSecretIsReplaced(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{unnamed: time.Hour})
	transport := w.ready()
	w.hold("test")
	must(t, w.client.Delete(t.Context(), transport))
	w.blocked(transport)
	must(t, w.client.Delete(t.Context(), w.secret()))
	if text := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeleting); !strings.Contains(text, "leaves its queues") {
		t.Errorf("without its Secret the condition says %q", text)
	}
	w.create(w.secret())
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	w.checkHeld("test")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestTransport_RecoversUnchangedWhenItsSecretComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.settle()
	before := w.deployments()[0]
	must(t, w.client.Delete(t.Context(), w.secret()))
	w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonSecretNotFound)
	w.hold("test")
	w.create(w.secret())
	w.awaitReady(transport)
	if now := w.deployments()[0]; now.UID != before.UID || now.Generation != before.Generation {
		t.Error("the Deployment was changed")
	}
	w.checkHeld("test")
}

func TestDeletion_NamesAWayOutWhereTheBrokerIsNotTheSame(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		happens func(*world)
		reason  string
	}{
		"the Secret leads to another vhost": {
			happens: func(w *world) {
				second := testbroker.Shared(w.T).Vhost(w.T)
				testbroker.Shared(w.T).Permit(w.T, w.user, second, ".*", ".*", ".*")
				edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"vhost": second} })
			},
			reason: v1alpha1.ReasonBrokerChanged,
		},
		"the broker is away for good": {
			happens: func(w *world) { w.proxy.down.Store(true) },
			reason:  v1alpha1.ReasonBrokerUnreachable,
		},
		"the vhost is gone": {
			happens: func(w *world) { w.deleteVhost() },
			reason:  v1alpha1.ReasonBrokerRefused,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			transport.Spec.Broker.VHost = nil
			edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"vhost": w.vhost} })
			w.create(w.policy("policy", time.Second), transport)
			w.awaitReady(transport)
			w.settle()
			tt.happens(w)
			must(t, w.client.Delete(t.Context(), transport))
			message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
			if !strings.Contains(message, "set spec.deletionPolicy to Retain") {
				t.Errorf("the condition names no way out: %q", message)
			}
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
			w.awaitGone(transport)
			w.awaitEvent("Retained", "async.failed")
		})
	}
}

func TestDeletion_EndsWhereTheBrokerWasReplacedByAnEmptyOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	must(t, w.client.Delete(t.Context(), transport))
	// The vhost is of the same name, and nothing is in it.
	w.deleteVhost()
	testbroker.Shared(t).MakeVhost(t, w.vhost)
	testbroker.Shared(t).Permit(t, w.user, w.vhost, ".*", ".*", ".*")
	w.awaitGone(transport)
}

func TestAdoption_TakesBackWhatWasRetained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
	w.hold("async.failed", "test")
	w.park("2s", "parked")
	must(t, w.client.Delete(t.Context(), transport))
	anew := w.transport()
	testtransport.Eventually(t, "the old one to let go", func() bool {
		err := w.client.Create(t.Context(), anew)
		if apierrors.IsAlreadyExists(err) {
			return false
		}
		must(t, err)
		return true
	})
	w.deleteAll(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, "default")}})
	w.awaitReady(anew)
	// The exchange carries no mark: whose it is was in the status of the first.
	if !slices.Equal(anew.Status.Adopted, []string{"exchange/async"}) || len(anew.Status.Created) > 0 {
		t.Errorf("adopted %v, created %v", anew.Status.Adopted, anew.Status.Created)
	}
	if ids := w.takeIDs("test", 2); !slices.Equal(ids, []string{"parked", "test"}) {
		t.Errorf("queue test held %v", ids)
	}
	w.checkHeld("async.failed")
	must(t, w.client.Delete(t.Context(), anew))
	w.awaitGone(anew)
	observed := w.observed()
	if _, kept := observed.Exchanges["async"]; !kept || len(observed.Queues) > 0 || len(observed.Policies) > 0 {
		t.Errorf("only the exchange may be left: %v, %v", observed.Queues, observed.Policies)
	}
}

func TestAdoption_KeepsAQueueBeyondItsTransports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.amqp.Channel().QueueDeclare("theirs", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	w.create(w.policy("policy", time.Second))
	for round := range 2 {
		transport := w.transport()
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: "theirs", BindingKeys: []string{"theirs"}, Adopt: new(true)})
		w.create(transport)
		w.awaitReady(transport)
		if !slices.Contains(transport.Status.Adopted, "queue/theirs") {
			t.Errorf("adopted %v", transport.Status.Adopted)
		}
		w.amqp.Publish("async", "theirs", amqp091.Publishing{MessageId: strconv.Itoa(round)})
		must(t, w.client.Delete(t.Context(), transport))
		w.awaitGone(transport)
		if observed := w.observed(); len(observed.Queues) != 1 || len(observed.BindingsTo("theirs")) > 0 {
			t.Errorf("only the adopted queue may be left, and unbound: %v, %v", observed.Queues, observed.BindingsTo("theirs"))
		}
	}
	if ids := w.takeIDs("theirs", 2); !slices.Equal(ids, []string{"0", "1"}) {
		t.Errorf("queue theirs held %v", ids)
	}
}

func TestDeletion_FollowsAChangedPolicyInEachStage(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	stages := map[string]struct {
		queue       string
		workersGone bool
	}{
		"while the workers drain":      {queue: "test"},
		"while a lane holds a message": {queue: "async.fallback.1h", workersGone: true},
		"while a work queue does":      {queue: "test", workersGone: true},
		"while the failure queue does": {queue: "async.failed"},
	}
	for name, stage := range stages {
		for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionRetain, v1alpha1.DeletionDelete} {
			t.Run(name+" to "+string(policy), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				transport := w.transport()
				w.create(w.policy("policy", time.Second, time.Hour), transport)
				w.awaitReady(transport)
				w.hold(stage.queue)
				must(t, w.client.Delete(t.Context(), transport))
				if stage.workersGone {
					must(t, w.client.DeleteAllOf(t.Context(), &appsv1.Deployment{}, client.InNamespace(w.namespace)))
				}
				if message := w.blocked(transport); !strings.Contains(message, stage.queue+" (1)") {
					t.Errorf("the condition says %q", message)
				}
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = policy })
				w.awaitGone(transport)
				if policy == v1alpha1.DeletionDelete {
					checkBrokerIsEmpty(w)
					return
				}
				w.awaitEvent("Retained", stage.queue[:len("test")])
				w.checkHeld(stage.queue)
			})
		}
	}
}

func TestDeletion_LosesNothingWhenTheOperatorIsKilled(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.ready()
	w.hold("test", "async.failed")
	nothing := func() {}

	w.killAt(http.MethodDelete, "/policies/.*exchange$", true, func() { must(t, w.client.Delete(t.Context(), transport)) })
	w.killAt(http.MethodDelete, "/bindings/", true, nothing)
	t.Log("while the workers drain")
	w.blocked(transport)
	w.operator.kill()
	w.operator.start(t, testcluster.Start(t))
	w.checkHeld("test")
	t.Log("when it has just stopped the workers")
	w.eventually("the workers to be stopped", func() bool { return len(w.deployments()) == 0 })
	w.operator.kill()
	w.operator.start(t, testcluster.Start(t))
	for _, write := range []string{
		"/bindings/.*/async.fallback.1s", "/queues/[^/]+/async.fallback.2s$", "/bindings/.*/lost",
		"/queues/[^/]+/(lost|test)$", "/queues/[^/]+/(lost|test)$", // the one that the broker has counted goes first
	} {
		w.killAt(http.MethodDelete, write, true, nothing)
	}
	w.blocked(transport)
	w.checkHeld("async.failed")
	for _, write := range []string{
		"/bindings/.*/async.failed", "/queues/[^/]+/async.failed$", "/exchanges/[^/]+/async.alternate$", "/exchanges/[^/]+/async.failed$",
		"/policies/.*failure", "/policies/.*test$",
	} {
		w.killAt(http.MethodDelete, write, true, nothing)
	}
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}
