package controllers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	workerImage  = "registry.example/redrive-worker:test"
	pollInterval = time.Second
	secretName   = "rabbitmq"
	managerUser  = "redrive-manager"

	// repairWindow is longer than five polls: on a busy machine, two who fight for an object are no faster than the polls of the tests.
	repairWindow = 30 * time.Second
)

func TestMain(m *testing.M) {
	// The tests wait for the broker's figures, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	// Dozens of operators leave Go much to collect; a third as often takes less of what all wait for. GOGC still decides.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
	// Now: controller-runtime drops all that is logged by a logger that comes half a minute after the start.
	logger := logr.FromSlogHandler(slog.NewTextHandler(&theLog, nil))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	testbroker.Main(running(func() int {
		return testcluster.Run(running(func() int {
			defer theChanges.stop()
			defer theOperator.stop()
			return m.Run()
		}))
	}))
}

// running is a function that runs tests.
type running func() int

// Run implements what the Main functions take.
func (r running) Run() int { return r() }

// world is what one test has for itself: a namespace, a vhost, and a proxy before the management API.
type world struct {
	*testing.T
	client    client.Client
	namespace string
	vhost     string
	user      string
	password  string
	amqp      *testtransport.Broker
	broker    *broker.Client
	proxy     *proxy
	operator  *operator
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, testbroker.Shared(t))
}

// newWorldOn is a world on a broker of its own.
func newWorldOn(t *testing.T, server *testbroker.Broker) *world {
	t.Helper()
	cluster := testcluster.Start(t)
	theStart.Do(func() { theOperator.start(t, cluster) })
	return newWorldIn(t, server, cluster.Namespace(t), &theOperator)
}

// newUnattendedWorld is a world that no operator sees, until the test starts one for it.
func newUnattendedWorld(t *testing.T, o *operator) *world {
	t.Helper()
	w := newWorldIn(t, testbroker.Shared(t), privateNamespace(t, testcluster.Start(t)), o)
	o.namespaces = append(o.namespaces, w.namespace)
	return w
}

func newWorldIn(t *testing.T, server *testbroker.Broker, namespace string, o *operator) *world {
	t.Helper()
	theChanges.watch(t, testcluster.Start(t))
	vhost := server.Vhost(t)
	management, err := url.Parse(server.ManagementURL)
	must(t, err)
	administrator, _ := management.User.Password()
	w := &world{
		T: t, client: testcluster.Start(t).Client, namespace: namespace, vhost: vhost, operator: o,
		user: "operator-" + vhost, password: server.User(t, "operator-"+vhost, "policymaker", vhost, ".*", ".*", ".*"),
		amqp: testtransport.Connect(t, server.URL(vhost)), proxy: newProxy(t, server.ManagementURL),
	}
	w.broker, err = broker.New(broker.Config{
		ManagementURL: "http://" + management.Host, Username: management.User.Username(), Password: administrator, VHost: vhost,
	})
	must(t, err)
	thePasswords.add(w.namespace, w.user, w.password)
	thePasswords.add(w.namespace, w.user, wrongPassword)
	w.create(w.secret())
	t.Cleanup(w.release)
	t.Cleanup(func() { checkNoPassword(w) })
	return w
}

func (w *world) secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secretName},
		StringData: map[string]string{
			"host": "127.0.0.1", "username": w.user, "password": w.password, "management_uri": w.proxy.URL,
		},
	}
}

// release lets go of what a test leaves, so that the operator is not kept busy with it.
func (w *world) release() {
	ctx := context.Background()
	var list v1alpha1.TransportList
	if err := w.client.List(ctx, &list, client.InNamespace(w.namespace)); err != nil {
		w.Error(err)
	}
	for i := range list.Items {
		t := &list.Items[i]
		_ = w.client.Delete(ctx, t)
		_ = w.client.Patch(ctx, t, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	}
}

// transport is the Transport of most tests: two queues, one of which takes what is unroutable, and one worker group.
func (w *world) transport() *v1alpha1.Transport {
	t := testtransport.New("http://127.0.0.1:8080/messages")
	t.Namespace = w.namespace
	t.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: secretName}, VHost: &w.vhost}
	t.Spec.Exchange.UnroutedTo = new("lost")
	t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "lost", BindingKeys: []string{"lost"}})
	t.Spec.Workers[0].Replicas = ptr.To[int32](2)
	return t
}

func (w *world) policy(name string, delays ...time.Duration) *v1alpha1.RetryPolicy {
	return &v1alpha1.RetryPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: testtransport.Explicit(delays...),
	}
}

// ready makes the policy and the Transport of most tests and waits until it stands.
func (w *world) ready() *v1alpha1.Transport {
	w.Helper()
	w.create(w.policy("policy", time.Second, 2*time.Second))
	t := w.transport()
	w.create(t)
	w.awaitReady(t)
	return t
}

func (w *world) create(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		must(w.T, w.client.Create(w.Context(), object))
	}
}

// podOf makes a pod of the Transport's worker, which nobody starts.
func (w *world) podOf(transport *v1alpha1.Transport) *corev1.Pod {
	w.Helper()
	pod := w.workerPod(transport)
	w.create(pod)
	return pod
}

func (w *world) workerPod(transport *v1alpha1.Transport) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "worker", Labels: workload.Labels(transport, "default")},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "worker", Image: workerImage}}},
	}
}

// edit changes an object as a user does.
func edit[T client.Object](w *world, object T, change func(T)) {
	w.Helper()
	must(w.T, w.client.Get(w.Context(), client.ObjectKeyFromObject(object), object))
	before := object.DeepCopyObject().(client.Object)
	change(object)
	must(w.T, w.client.Patch(w.Context(), object, client.MergeFrom(before), client.FieldOwner("somebody")))
}

// get reads an object anew; it returns false where it is gone.
func (w *world) get(object client.Object) bool {
	w.Helper()
	err := w.client.Get(w.Context(), client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return false
	}
	must(w.T, err)
	return true
}

// awaitGone waits until a Transport or a Deployment is gone.
func (w *world) awaitGone(object client.Object) {
	w.Helper()
	w.eventually(fmt.Sprintf("%T %s to be gone", object, object.GetName()), func() bool { return !w.get(object) })
}

// awaitReady plays the part of the Deployment controller, which this cluster lacks, until a Transport is ready.
func (w *world) awaitReady(t *v1alpha1.Transport) {
	w.Helper()
	w.await(t, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
}

// await waits for a condition of the current generation and returns its message.
func (w *world) await(object client.Object, name string, status metav1.ConditionStatus, reason string) string {
	w.Helper()
	var seen *metav1.Condition
	defer func() {
		if w.Failed() {
			w.Logf("last seen of %s: %+v", object.GetName(), conditionsOf(object))
		}
	}()
	w.eventually(fmt.Sprintf("%s=%s %s of %s", name, status, reason, object.GetName()), func() bool {
		w.rollOut()
		w.get(object)
		seen = meta.FindStatusCondition(conditionsOf(object), name)
		return seen != nil && seen.Status == status && seen.Reason == reason && seen.ObservedGeneration == object.GetGeneration()
	})
	return seen.Message
}

func conditionsOf(object client.Object) []metav1.Condition {
	switch o := object.(type) {
	case *v1alpha1.Transport:
		return o.Status.Conditions
	case *v1alpha1.RetryPolicy:
		return o.Status.Conditions
	default:
		return nil
	}
}

// rollOut has the pods of the workers there. Those of quarantined messages never are: nothing may wait for them.
func (w *world) rollOut() {
	w.Helper()
	for _, deployment := range w.deployments() {
		if deployment.Labels[workload.QuarantineLabel] != "" {
			continue
		}
		wanted := ptr.Deref(deployment.Spec.Replicas, 1)
		status := appsv1.DeploymentStatus{
			ObservedGeneration: deployment.Generation, Replicas: wanted, UpdatedReplicas: wanted, ReadyReplicas: wanted, AvailableReplicas: wanted,
		}
		if deployment.Status.ObservedGeneration == status.ObservedGeneration && deployment.Status.AvailableReplicas == wanted {
			continue
		}
		before := deployment.DeepCopy()
		deployment.Status = status
		must(w.T, client.IgnoreNotFound(w.client.Status().Patch(w.Context(), &deployment, client.MergeFrom(before))))
	}
}

func (w *world) deployments() []appsv1.Deployment {
	w.Helper()
	var list appsv1.DeploymentList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return list.Items
}

func (w *world) configMaps() []corev1.ConfigMap {
	w.Helper()
	var list corev1.ConfigMapList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace), client.HasLabels{workload.TransportLabel}))
	return list.Items
}

func (w *world) observed() topology.Observed {
	w.Helper()
	observed, err := w.broker.Observe(w.Context())
	must(w.T, err)
	return observed
}

// hasQueue asks the broker itself, whose list of queues is never late.
func (w *world) hasQueue(name string) bool {
	w.Helper()
	_, exists := w.observed().Queues[name]
	return exists
}

// awaitEvent waits for an event whose text holds a part.
func (w *world) awaitEvent(reason, part string) {
	w.Helper()
	testtransport.Eventually(w, "an event "+reason+" with "+part, func() bool {
		var list eventsv1.EventList
		must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == reason && strings.Contains(e.Note, part)
		})
	})
}

// awaitCount waits until the broker's figures, which are seconds late, show the messages in a queue.
func (w *world) awaitCount(queue string, messages int64) {
	w.Helper()
	testtransport.Eventually(w, fmt.Sprintf("%d messages in %s", messages, queue), func() bool {
		state, err := w.broker.Queue(w.Context(), queue)
		return err == nil && state.Messages != nil && *state.Messages == messages
	})
}

// proxy stands before the management API. It counts, can fall silent, and can hold a write.
type proxy struct {
	*httptest.Server
	reads, writes atomic.Int64
	// open are the requests that are not answered yet.
	open atomic.Int64
	// refused are the questions whether it answers that came while it was down.
	refused atomic.Int64
	down    atomic.Bool
	trap    atomic.Pointer[trap]
	// uncounted is a queue that is shown as one without a leader is, with no count of its messages; empty where none is.
	uncounted atomic.Pointer[string]
	// written are the writes as method and path.
	mu      sync.Mutex
	written []string
}

func newProxy(t *testing.T, managementURL string) *proxy {
	t.Helper()
	target, err := url.Parse(managementURL)
	must(t, err)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
	}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	p := &proxy{}
	forward.ModifyResponse = p.hideCount
	p.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		p.open.Add(1)
		defer p.open.Add(-1)
		switch down := p.down.Load(); {
		case down && r.URL.Path == "/api/whoami": // an answer, for Go's client asks again by itself where a connection is cut
			rw.WriteHeader(http.StatusBadGateway)
			p.refused.Add(1)
			return
		case down:
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/api/whoami": // whether it answers, as the operator asks all the time
		case r.Method == http.MethodGet:
			p.reads.Add(1)
		case r.Method == "PRI":
			// A client of HTTP/2, as KEDA's, that looks for a server of another test which had this port before.
		default:
			p.writes.Add(1)
			p.mu.Lock()
			p.written = append(p.written, r.Method+" "+r.URL.Path)
			p.mu.Unlock()
			p.trapped(r, forward)
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() { closeServer(p.Server) })
	return p
}

// hideCount takes the count of a queue out of an answer with a list of queues.
func (p *proxy) hideCount(answer *http.Response) error {
	queue := p.uncounted.Load()
	if queue == nil || !strings.HasPrefix(answer.Request.URL.Path, "/api/queues/") {
		return nil
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var rows []map[string]any
	if json.Unmarshal(text, &rows) == nil {
		for _, row := range rows {
			if row["name"] == *queue {
				delete(row, "messages")
			}
		}
		if text, err = json.Marshal(rows); err != nil {
			return err
		}
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	answer.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

// closeServer ends also the requests that wait for an answer: the operator goes on to ask after a test has ended.
func closeServer(server *httptest.Server) {
	server.CloseClientConnections()
	server.Close()
}

// trap catches one write to the broker.
type trap struct {
	method string
	path   *regexp.Regexp
	// answered is true where the broker carries the write out, and only its answer is lost.
	answered bool
	caught   chan struct{}
}

// catch holds the next write of a method with a path like a pattern until its client gives up. The channel is closed
// when it is caught.
func (p *proxy) catch(method, pattern string, answered bool) <-chan struct{} {
	caught := make(chan struct{})
	p.trap.Store(&trap{method: method, path: regexp.MustCompile(pattern), answered: answered, caught: caught})
	return caught
}

func (p *proxy) trapped(r *http.Request, forward http.Handler) {
	trap := p.trap.Load()
	if trap == nil || r.Method != trap.method || !trap.path.MatchString(r.URL.Path) || !p.trap.CompareAndSwap(trap, nil) {
		return
	}
	if trap.answered {
		forward.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Only once the body is read does the server notice that the client has given up.
	_, _ = io.Copy(io.Discard, r.Body)
	close(trap.caught)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// since are the writes after the first so many.
func (p *proxy) since(writes int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.written[writes:])
}

// writeCounter counts what the operator writes to the API server, by namespace.
type writeCounter struct {
	mu      sync.Mutex
	written map[string][]string
}

func (c *writeCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if parts := strings.Split(r.URL.Path, "/namespaces/"); r.Method != http.MethodGet && len(parts) == 2 {
			namespace, _, _ := strings.Cut(parts[1], "/")
			c.mu.Lock()
			if c.written == nil {
				c.written = map[string][]string{}
			}
			c.written[namespace] = append(c.written[namespace], r.Method+" "+r.URL.Path)
			c.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

func (c *writeCounter) of(namespace string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.written[namespace]...)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// lockedBuffer is what many goroutines log into.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func document(t testing.TB, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	must(t, err)
	return string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
