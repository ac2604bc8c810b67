package controllers_test

import (
	"net/url"
	"slices"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// Whoever may write ConfigMaps makes one that looks as if the operator had published it, and names a queue of another team on the same vhost.
func TestScopedUser_OpensNoQueueByAForgedConfigMap(t *testing.T) {
	w := newWorld(t)
	transport := w.scopedReady()
	_, err := w.amqp.Channel().QueueDeclare("payroll", true, false, false, false, amqp091.Table{"x-queue-type": "quorum", "redrive-owner": "c2/payroll/pay"})
	must(t, err)
	w.amqp.Publish("", "payroll", amqp091.Publishing{MessageId: "1", Body: []byte("of others")})

	published := w.configMaps()[0]
	config, err := compile.Decode([]byte(published.Data[workload.ConfigKey]))
	must(t, err)
	config.Queues = append(slices.Clone(config.Queues), compile.Queue{Name: "payroll", Policy: config.Queues[0].Policy})
	data, err := compile.Encode(config)
	must(t, err)
	forged := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "forged", Labels: published.Labels,
			Annotations: map[string]string{workload.ConfigHashAnnotation: compile.Hash(data)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Transport", Name: transport.Name, UID: transport.UID, Controller: new(true),
			}},
		},
		Data: map[string]string{workload.ConfigKey: string(data)},
	}
	w.create(forged)
	testtransport.Eventually(t, "the operator to have looked, and removed it", func() bool {
		return client.IgnoreNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(forged), forged)) == nil &&
			w.client.Get(t.Context(), client.ObjectKeyFromObject(forged), forged) != nil
	})
	w.readsNothingOfOthers(transport)
}

// The workers' own ConfigMap is forged while a queue leaves: it describes that queue with one of others beside it, and the operator goes on with what
// is in it until it is empty.
func TestScopedUser_OpensNoQueueByAForgedQueueThatLeaves(t *testing.T) {
	for name, forged := range map[string]compile.Queue{
		"as one of others that it stands in for":     {Name: "payroll", Standin: "b.old"},
		"with one of others as its quarantine queue": {Name: "b.old", Quarantine: "payroll"},
	} {
		t.Run(name, func(t *testing.T) {
			w := administered(t)
			_, err := w.amqp.Channel().QueueDeclare("payroll", true, false, false, false, amqp091.Table{"x-queue-type": "quorum", "redrive-owner": "c2/payroll/pay"})
			must(t, err)
			w.amqp.Publish("", "payroll", amqp091.Publishing{MessageId: "1", Body: []byte("of others")})
			w.team()
			transport := w.scoped()
			transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.RetryPolicyRef = nil, new("b"), nil
			transport.Spec.Broker.SecretRef.Name = "team"
			transport.Spec.Queues = []v1alpha1.Queue{{Name: "b.work"}, {Name: "b.old"}}
			w.create(transport)
			w.dropUsersOf(transport)
			testtransport.Eventually(t, "a user", func() bool { w.rollOut(); return w.loggedInAs(transport) != "" })
			w.awaitReady(transport)
			w.amqp.Publish("", "b.old", amqp091.Publishing{MessageId: "2", Body: []byte("stays")})
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = t.Spec.Queues[:1] })

			published := &corev1.ConfigMap{}
			var config compile.Config
			testtransport.Eventually(t, "the queue to leave", func() bool {
				must(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: workload.Name(transport, "default")}, published))
				config, err = compile.Decode([]byte(published.Data[workload.ConfigKey]))
				must(t, err)
				return slices.ContainsFunc(config.Queues, func(q compile.Queue) bool { return q.Name == "b.old" && q.Leaving })
			})
			forged.Policy, forged.Leaving = config.Queues[0].Policy, true
			config.Queues = append(config.Queues[:1:1], forged)
			data, err := compile.Encode(config)
			must(t, err)
			edit(w, published, func(c *corev1.ConfigMap) {
				c.Data[workload.ConfigKey] = string(data)
				c.Annotations[workload.ConfigHashAnnotation] = compile.Hash(data)
			})
			w.awaitLooks(6)
			w.readsNothingOfOthers(transport)
		})
	}
}

// readsNothingOfOthers expects that the workers' login gives no message of the queue "payroll".
func (w *world) readsNothingOfOthers(transport *v1alpha1.Transport) {
	w.Helper()
	secret := w.userSecret(transport)
	address, err := url.Parse(testbroker.Shared(w).URL(w.vhost))
	must(w.T, err)
	address.User = url.UserPassword(string(secret.Data["username"]), string(secret.Data["password"]))
	conn, err := amqp091.Dial(address.String())
	must(w.T, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	must(w.T, err)
	if _, taken, err := channel.Get("payroll", true); err == nil {
		w.Errorf("the workers' login may read the queue of others: %v", taken)
	}
}
