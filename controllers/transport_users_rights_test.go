package controllers_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// administered is a world whose operator has the administrator's login in a namespace of its own; the teams' have none.
func administered(t *testing.T) *world {
	t.Helper()
	system := privateNamespace(t, testcluster.Start(t))
	o := &operator{admins: []types.NamespacedName{{Namespace: system, Name: "admin"}}, request: 5 * time.Minute}
	w := newUnattendedWorld(t, o)
	admin := "admin-" + w.vhost
	password := testbroker.Shared(t).User(t, admin, "administrator", w.vhost, ".*", ".*", ".*")
	must(t, w.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "admin"},
		StringData: map[string]string{"host": "127.0.0.1", "username": admin, "password": password, "management_uri": w.proxy.URL},
	}))
	o.start(t, testcluster.Start(t))
	t.Cleanup(o.stop)
	w.allowSecrets()
	return w
}

// Whoever may write a status had the administrator's login change the password of any user of RabbitMQ.
func TestScopedUser_ChangesNoUserOfOthersThatTheStatusNames(t *testing.T) {
	t.Parallel()
	w, server := administered(t), testbroker.Shared(t)
	transport := w.scoped()
	w.create(w.policy("policy", time.Second, 2*time.Second), transport)
	w.awaitReady(transport)
	w.dropUsersOf(transport)
	w.get(transport)
	own := transport.DeepCopy()
	vhost := server.Vhost(t)
	other := "of-others-" + vhost
	password := server.User(t, other, "policymaker", vhost, ".*", ".*", ".*")
	t.Cleanup(func() { server.Forget(other) })
	transport.Status.BrokerUsers = append([]v1alpha1.BrokerUser{{Name: other}}, transport.Status.BrokerUsers...)
	must(t, w.client.Status().Patch(t.Context(), transport, client.MergeFrom(own)))
	w.awaitEvent("Retained", other)
	testtransport.Eventually(t, "the status to name its own user alone", func() bool {
		w.get(transport)
		users := transport.Status.BrokerUsers
		return len(users) == 1 && users[0].Name == own.Status.BrokerUsers[0].Name
	})
	user, err := w.broker.User(t.Context(), other)
	must(t, err)
	if !user.HasPassword(password) || len(w.rightsOf(other)) != 1 {
		t.Errorf("the user of others has another password, or the rights %+v", w.rightsOf(other))
	}
}

// claimant is a management API that claims to be that of another broker, and that a Transport of a certain mark has queues and exchanges there, such as
// "exchange/a". It deletes none of them, and says nothing to it.
func claimant(t *testing.T, identity topology.Identity, mark string, objects ...string) *httptest.Server {
	t.Helper()
	var gone atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write := func(value any) { _ = json.NewEncoder(w).Encode(value) }
		w.Header().Set("Content-Type", "application/json")
		exchanges := []map[string]any{{"name": "amq.direct", "type": "direct"}}
		var there, bindings []map[string]any
		for _, name := range objects[min(int(gone.Load()), len(objects)):] {
			if exchange, is := strings.CutPrefix(name, "exchange/"); is {
				exchanges = append(exchanges, map[string]any{
					"name": exchange, "type": "direct", "durable": true, "arguments": map[string]any{"redrive-owner": mark},
				})
				continue
			}
			arguments := map[string]any{"x-queue-type": "quorum", "redrive-owner": mark, "x-dead-letter-exchange": "d.failed"}
			if work, is := strings.CutSuffix(name, ".quarantine"); is {
				arguments["redrive-quarantine-of"] = work
			}
			there = append(there, map[string]any{"name": name, "type": "quorum", "durable": true, "arguments": arguments})
			bindings = append(bindings, map[string]any{"source": "", "destination": name, "destination_type": "queue", "routing_key": name})
		}
		switch path := r.URL.Path; {
		case r.Method == http.MethodDelete:
			if strings.Contains(path, "/queues/") || strings.Contains(path, "/exchanges/") {
				gone.Add(1)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusCreated)
		case path == "/api/cluster-name":
			write(map[string]string{"name": identity.Cluster})
		case path == "/api/global-parameters":
			write([]map[string]string{{"name": "internal_cluster_id", "value": identity.ClusterID}})
		case strings.HasPrefix(path, "/api/exchanges") && !strings.Contains(path, "/bindings/"):
			write(exchanges)
		case strings.HasPrefix(path, "/api/queues") && there != nil:
			write(there)
		case strings.HasPrefix(path, "/api/bindings") && bindings != nil:
			write(bindings)
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}))
	t.Cleanup(func() { closeServer(server) })
	return server
}

// team is a login that may do what it likes with what is named b or b.…, in a Secret, as a policymaker.
func (w *world) team() (login func(name, username, password, url string)) {
	w.Helper()
	login = func(name, username, password, url string) {
		w.Helper()
		w.create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			StringData: map[string]string{"host": "127.0.0.1", "username": username, "password": password, "management_uri": url},
		})
	}
	name := "team-" + w.vhost
	login("team", name, testbroker.Shared(w).User(w, name, "policymaker", w.vhost, `^b(\..*)?$`, `^b(\..*)?$`, `^b(\..*)?$`), w.proxy.URL)
	return login
}

// doubt has a Transport of another prefix whose deletions of some objects have no answer, on what claims to be the same broker.
func (w *world) doubt(prefix string, objects ...string) {
	w.Helper()
	t := w.T
	login := w.team()
	identity, err := w.broker.Identity(t.Context())
	must(t, err)
	decoy := w.transport()
	decoy.Name, decoy.Spec.Exchange, decoy.Spec.Prefix, decoy.Spec.RetryPolicyRef, decoy.Spec.Workers = "decoy", nil, &prefix, nil, nil
	decoy.Spec.Broker.SecretRef.Name, decoy.Spec.DeletionPolicy = "decoy", v1alpha1.DeletionDelete
	decoy.Spec.Queues = []v1alpha1.Queue{{Name: "d"}}
	login("decoy", "x", wrongPassword, claimant(t, identity, owner(t, w, decoy), objects...).URL)
	w.create(decoy)
	testtransport.Eventually(t, "the decoy to be looked at", func() bool { w.get(decoy); return decoy.Status.Broker != nil })
	must(t, w.client.Delete(t.Context(), decoy))
	w.eventually("deletions without an answer", func() bool { w.get(decoy); return len(decoy.Status.Deletions) >= len(objects) })
}

// The doubt whether a queue may still be deleted had bindings left out that the team's login may not make. So nobody saw that, and the
// administrator's login gave the right to consume a queue of another team.
func TestScopedUser_OpensNoQueueByADoubtfulDeletion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there bool
		queue v1alpha1.Queue
	}{
		"that is there":                          {true, v1alpha1.Queue{Name: "payroll", Adopt: new(true)}},
		"that is to be made, and stands as made": {false, v1alpha1.Queue{Name: "payroll", Type: new(v1alpha1.QueueClassic)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := administered(t)
			if c.there {
				_, err := w.amqp.Channel().QueueDeclare("payroll", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
				must(t, err)
			}
			w.doubt("d", "payroll", "payroll.quarantine")
			transport := w.scoped()
			transport.Name, transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.RetryPolicyRef = "thief", nil, new("b"), nil
			transport.Spec.Broker.SecretRef.Name = "team"
			transport.Spec.Queues = []v1alpha1.Queue{{Name: "b.work"}, c.queue}
			w.create(transport)
			w.dropUsersOf(transport)
			testtransport.Eventually(t, "a user", func() bool { w.rollOut(); return w.loggedInAs(transport) != "" })
			if !c.there { // As a server of the team's would have it written.
				w.get(transport)
				forged := transport.DeepCopy()
				forged.Status.Created = append(forged.Status.Created, "queue/payroll")
				must(t, w.client.Status().Patch(t.Context(), forged, client.MergeFrom(transport)))
			}
			w.awaitLooks(5)
			for _, right := range w.rightsOf(w.loggedInAs(transport)) {
				if strings.Contains(right.Read, "payroll") || !strings.Contains(right.Read, "b\\.work") {
					t.Errorf("the administrator's login gave the right to read %s, want that of b.work alone", right.Read)
				}
			}
		})
	}
}

// As with queues: exchanges that were left out, since requests might still delete them, were never declared by the team's login, and the administrator's
// gave the right to publish to them.
func TestScopedUser_OpensNoExchangeByADoubtfulDeletion(t *testing.T) {
	t.Parallel()
	w := administered(t)
	w.doubt("a", "a.fallback.10m", "a.fallback.10s", "a.fallback.1m", "a.fallback.1s", "b.work.quarantine",
		"exchange/a.fallback", "exchange/a.return", "exchange/a.return.alternate", "exchange/a.failed")
	transport := w.scoped()
	transport.Name, transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.Failure = "thief", nil, new("a"), &v1alpha1.Failure{Queue: new("b.failed")}
	transport.Spec.Broker.SecretRef.Name = "team"
	transport.Spec.Queues = []v1alpha1.Queue{{Name: "b.work", Adopt: new(true)}} // To make one takes the right to write to a.failed.
	_, err := w.amqp.Channel().QueueDeclare("b.work", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	policy := w.policy("policy")
	policy.Spec = v1alpha1.RetryPolicySpec{MaxRetries: new(int32(0))}
	w.create(policy, transport)
	w.dropUsersOf(transport)
	testtransport.Eventually(t, "the Transport to be looked at", func() bool { w.get(transport); return transport.Status.Broker != nil })
	w.awaitLooks(8)
	for _, name := range topology.UserNames(transport, owner(t, w, transport)) {
		if !w.hasUser(name) {
			continue
		}
		for _, right := range w.rightsOf(name) {
			if strings.Contains(right.Write, "a") {
				t.Errorf("the administrator's login gave the right to write to %s, of which the team's may make none", right.Write)
			}
		}
	}
}

// As with a queue that may still be deleted: nothing is bound to one that has no count of its messages, so that nobody saw that the team's login may not do
// so. Where its quarantine queue was left out as well, the administrator's login gave the right to consume a queue of another team.
func TestScopedUser_OpensNoQueueWithoutACount(t *testing.T) {
	t.Parallel()
	w := administered(t)
	w.operator.stop()
	w.operator.young = time.Second
	w.operator.start(t, testcluster.Start(t))
	_, err := w.amqp.Channel().QueueDeclare("payroll", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	w.doubt("d", "payroll.quarantine")
	w.proxy.uncounted.Store(new("payroll"))
	transport := w.scoped()
	transport.Name, transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.RetryPolicyRef = "thief", nil, new("b"), nil
	transport.Spec.Broker.SecretRef.Name = "team"
	transport.Spec.Queues = []v1alpha1.Queue{{Name: "b.work"}, {Name: "payroll", Adopt: new(true)}}
	w.create(transport)
	w.dropUsersOf(transport)
	testtransport.EventuallyWithin(t, time.Minute, "a user, since the queue without a count is left out", func() bool {
		w.rollOut()
		w.get(transport)
		return w.loggedInAs(transport) != ""
	})
	for _, right := range w.rightsOf(w.loggedInAs(transport)) {
		if strings.Contains(right.Read, "payroll") || !strings.Contains(right.Read, "b\\.work") {
			t.Errorf("the administrator's login gave the right to read %s, want that of b.work alone", right.Read)
		}
	}
}
