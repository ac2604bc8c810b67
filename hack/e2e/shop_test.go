//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	secretName    = "rabbitmq"
	policyName    = "partner-api"
	transportName = "async"

	exchangeName = "async"
	ordersQueue  = "orders"
	lostQueue    = "lost"
	failureQueue = "async.failed"

	// workerWrites are the exchanges that workers publish to.
	workerWrites = `^async\.(fallback|return|failed)$`

	// The users of a shop.
	operatorRole = "operator"
	workerRole   = "worker"
	replayerRole = "replayer"

	readyWithin = 2 * time.Minute
)

// plan is what a scenario wants of its shop. The zero value is a Transport with the queues orders and lost, two worker
// pods and the partner as a service elsewhere.
type plan struct {
	// change the Transport before it is made.
	change func(*v1alpha1.Transport)
	// policy in place of briskPolicy.
	policy *v1alpha1.RetryPolicySpec
	// broker in place of the suite's.
	broker *rabbit
	// tapped lets the operator go through the tap.
	tapped bool
}

// login of a user on the broker.
type login struct{ user, password string }

// shop is one team: a namespace, a vhost with its users, a Transport.
type shop struct {
	t         *testing.T
	name      string
	namespace string
	vhost     string
	broker    *rabbit
	// management is where the operator finds the management API.
	management       string
	operator, worker login
	transport        *v1alpha1.Transport
	policy           *v1alpha1.RetryPolicy
	tally            *tally
}

// briskPolicy keeps a scenario short. 422 is not retried.
func briskPolicy() v1alpha1.RetryPolicySpec {
	return v1alpha1.RetryPolicySpec{
		MaxRetries: ptr.To[int32](3),
		Backoff: &v1alpha1.Backoff{
			Type:   v1alpha1.BackoffExplicit,
			Delays: []v1alpha1.Duration{*v1alpha1.NewDuration(500 * time.Millisecond), *v1alpha1.NewDuration(time.Second)},
		},
		Strategies: []v1alpha1.Strategy{{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail}},
	}
}

// newShop makes everything but the Transport and its policy. It all goes when the test ends.
func newShop(t *testing.T, name string, p plan) *shop {
	t.Helper()
	s := &shop{
		t: t, name: name + "-" + strings.ToLower(rand.Text()[:5]),
		broker: cmp.Or(p.broker, suite.broker),
	}
	s.namespace, s.vhost = "e2e-"+s.name, "e2e/"+s.name
	s.management = s.broker.management
	if p.tapped {
		s.management = suite.urlOf(tapName)
	}
	s.transport, s.policy = s.makeTransport(p), s.makePolicy(p)
	s.makeVhost()
	s.operator = s.makeUser(operatorRole)
	s.worker = s.makeUser(workerRole)
	must(t, suite.makeNamespace(t.Context(), s.namespace))
	t.Cleanup(s.leave)
	must(t, suite.create(t.Context(), s.secret()))
	s.tally = newTally(t, s)
	return s
}

// openShop makes a shop with its Transport and waits until both are Ready.
func openShop(t *testing.T, name string, p plan) *shop {
	t.Helper()
	s := newShop(t, name, p)
	s.open()
	s.awaitReady(readyWithin)
	return s
}

// open makes the policy and the Transport.
func (s *shop) open() {
	s.t.Helper()
	must(s.t, suite.create(s.t.Context(), s.policy, s.transport))
}

func (s *shop) makePolicy(p plan) *v1alpha1.RetryPolicy {
	spec := briskPolicy()
	if p.policy != nil {
		spec = *p.policy
	}
	return &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: policyName}, Spec: spec}
}

func (s *shop) makeTransport(p plan) *v1alpha1.Transport {
	transport := &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: transportName},
		Spec: v1alpha1.TransportSpec{
			Broker:         v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: secretName}},
			Exchange:       &v1alpha1.Exchange{Name: exchangeName, Type: v1alpha1.ExchangeDirect, UnroutedTo: new(lostQueue)},
			RetryPolicyRef: &v1alpha1.PolicyReference{Name: policyName},
			Queues: []v1alpha1.Queue{
				{Name: ordersQueue, BindingKeys: []string{ordersQueue}},
				{Name: lostQueue, BindingKeys: []string{lostQueue}},
			},
			Workers: []v1alpha1.Worker{{
				Name: "default", Replicas: ptr.To[int32](2), Timeout: v1alpha1.NewDuration(5 * time.Second),
				Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: suite.urlOf(partnerName) + "/" + s.name}},
			}},
		},
	}
	if p.change != nil {
		p.change(transport)
	}
	return transport
}

// makeVhost before the namespace, so that it goes after it.
func (s *shop) makeVhost() {
	s.t.Helper()
	path := apiPath("vhosts", s.vhost)
	must(s.t, s.broker.manage(s.t.Context(), http.MethodPut, path, nil, nil))
	s.t.Cleanup(func() {
		if !suite.keep {
			_ = s.broker.manage(context.Background(), http.MethodDelete, path, nil, nil) // the broker may be gone by now
		}
	})
	administrator, err := url.Parse(s.broker.managementURL)
	must(s.t, err)
	s.permit(administrator.User.Username(), ".*", ".*", ".*")
}

// makeUser makes one with the rights that docs/worker.md names.
func (s *shop) makeUser(role string) login {
	s.t.Helper()
	l := suite.secrets.password(role+" of "+s.name, s.vhost+"-"+role+"-"+strings.ToLower(rand.Text()[:4]))
	s.setPassword(l, role)
	path := apiPath("users", l.user)
	s.t.Cleanup(func() {
		if !suite.keep {
			_ = s.broker.manage(context.Background(), http.MethodDelete, path, nil, nil) // the broker may be gone by now
		}
	})
	names := s.objectNames()
	switch role {
	case operatorRole:
		s.permit(l.user, names, names, names)
	case replayerRole: // as docs/failed-messages.md has them
		s.permit(l.user, `^async\.(failed\.lock|replay\..+)$`, `^async\.(fallback|return|failed|replay\..+)$`, `^async\.(failed|fallback|return|replay\..+)$`)
	default:
		s.permit(l.user, "^$", workerWrites, s.queueNames())
	}
	return l
}

// setPassword makes the user where there is none.
func (s *shop) setPassword(l login, role string) {
	s.t.Helper()
	tags := ""
	if role != workerRole {
		tags = "policymaker"
	}
	must(s.t, s.broker.manage(s.t.Context(), http.MethodPut, apiPath("users", l.user), map[string]string{"password": l.password, "tags": tags}, nil))
}

func (s *shop) permit(user, configure, write, read string) {
	s.t.Helper()
	must(s.t, s.broker.manage(s.t.Context(), http.MethodPut, apiPath("permissions", s.vhost, user),
		map[string]string{"configure": configure, "write": write, "read": read}, nil))
}

func (s *shop) queueNames() string {
	names := make([]string, len(s.transport.Spec.Queues))
	for i, q := range s.transport.Spec.Queues {
		names[i] = q.Name
	}
	return "^(" + strings.Join(names, "|") + `)(\.(quarantine|migrating))?$`
}

func (s *shop) objectNames() string {
	return `^(async|async\..*|` + strings.TrimPrefix(s.queueNames(), "^(")
}

// secret has the keys of a Service Binding, and the operator's own user in management_uri.
func (s *shop) secret() *corev1.Secret {
	management, err := url.Parse(s.management)
	must(s.t, err)
	management.User = url.UserPassword(s.operator.user, s.operator.password)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: secretName},
		StringData: map[string]string{
			"host": s.broker.host, "port": s.broker.port, "username": s.worker.user, "password": s.worker.password,
			"vhost": s.vhost, "management_uri": management.String(),
		},
	}
}

// leave keeps what there is to see, and deletes the namespace.
func (s *shop) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := suite.harvest(ctx, s.namespace); err != nil && !s.gone(ctx) {
		s.t.Error(err)
	}
	if s.t.Failed() {
		s.t.Logf("the end of %s:\n%s", s.namespace, s.state(ctx))
	}
	if suite.keep {
		return
	}
	if err := suite.deleteNamespace(ctx, s.namespace); err != nil {
		s.t.Error(err)
	}
}

func (s *shop) gone(ctx context.Context) bool {
	var namespace corev1.Namespace
	err := suite.client.Get(ctx, client.ObjectKey{Name: s.namespace}, &namespace)
	return err != nil || namespace.DeletionTimestamp != nil
}

// state in words, for somebody who has to find out what went wrong.
func (s *shop) state(ctx context.Context) string {
	var text strings.Builder
	if transport, err := s.read(ctx); err == nil {
		for _, c := range transport.Status.Conditions {
			fmt.Fprintf(&text, "condition %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if pods, err := s.pods(ctx); err == nil {
		for i := range pods {
			fmt.Fprintf(&text, "pod %s %s\n", pods[i].Name, pods[i].Status.Phase)
			for _, c := range containerStatuses(&pods[i]) {
				fmt.Fprintf(&text, "  container %s: ready %t, %d restarts, state %+v, before %+v\n", c.Name, c.Ready, c.RestartCount, c.State, c.LastTerminationState)
			}
		}
	}
	if queues, err := s.broker.queues(ctx, s.vhost); err == nil {
		fmt.Fprintf(&text, "%d queues, of which these are not idle:\n", len(queues))
		for _, q := range queues {
			if q.Messages > 0 || q.Consumers > 0 {
				fmt.Fprintf(&text, "queue %s: %d messages, %d consumers\n", q.Name, q.Messages, q.Consumers)
			}
		}
	}
	fmt.Fprintf(&text, "evidence in %s\n", suite.evidence.folder)
	return text.String()
}

func (s *shop) read(ctx context.Context) (*v1alpha1.Transport, error) {
	transport := &v1alpha1.Transport{}
	if err := suite.client.Get(ctx, client.ObjectKeyFromObject(s.transport), transport); err != nil {
		return nil, fmt.Errorf("read the Transport: %w", err)
	}
	return transport, nil
}

// awaitReady waits until the Transport is Ready in its present generation.
func (s *shop) awaitReady(limit time.Duration) *v1alpha1.Transport {
	s.t.Helper()
	var transport *v1alpha1.Transport
	await(s.t, limit, "the Transport to be Ready", func() (bool, any) {
		var err error
		if transport, err = s.read(s.t.Context()); err != nil {
			return false, err
		}
		ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
		return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == transport.Generation, transport.Status.Conditions
	})
	return transport
}

// update changes the Transport's spec, as somebody with an editor does.
func (s *shop) update(change func(*v1alpha1.Transport)) {
	s.t.Helper()
	await(s.t, 10*time.Second, "the change of the Transport", func() (bool, any) {
		transport, err := s.read(s.t.Context())
		if err != nil {
			return false, err
		}
		change(transport)
		err = suite.client.Update(s.t.Context(), transport)
		return err == nil, err
	})
}

func (s *shop) scale(replicas int32) {
	s.t.Helper()
	s.update(func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = &replicas })
}

// pods of the workers.
func (s *shop) pods(ctx context.Context) ([]corev1.Pod, error) {
	return s.podsWith(ctx, "redrive.dev/worker")
}

// podsWith are the Transport's pods that have a label.
func (s *shop) podsWith(ctx context.Context, label string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := suite.client.List(ctx, &pods, client.InNamespace(s.namespace),
		client.MatchingLabels{"redrive.dev/transport": transportName}, client.HasLabels{label})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", s.namespace, err)
	}
	return pods.Items, nil
}

// awaitPods waits until exactly so many pods are there, all Ready.
func (s *shop) awaitPods(number int, limit time.Duration) []corev1.Pod {
	s.t.Helper()
	var pods []corev1.Pod
	await(s.t, limit, strconv.Itoa(number)+" ready pods", func() (bool, any) {
		var err error
		if pods, err = s.pods(s.t.Context()); err != nil {
			return false, err
		}
		ready := 0
		for i := range pods {
			if podReady(&pods[i]) {
				ready++
			}
		}
		return ready == number && len(pods) == number, fmt.Sprintf("%d pods, %d ready", len(pods), ready)
	})
	return pods
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// restarts are the containers' restart counts by pod UID and container: equal before and after where nothing restarted.
func restarts(pods []corev1.Pod) map[string]int32 {
	counts := map[string]int32{}
	for i := range pods {
		for _, c := range containerStatuses(&pods[i]) {
			counts[string(pods[i].UID)+"/"+c.Name] = c.RestartCount
		}
	}
	return counts
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
