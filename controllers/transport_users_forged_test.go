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
	secret := w.userSecret(transport)
	address, err := url.Parse(testbroker.Shared(t).URL(w.vhost))
	must(t, err)
	address.User = url.UserPassword(string(secret.Data["username"]), string(secret.Data["password"]))
	conn, err := amqp091.Dial(address.String())
	must(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	must(t, err)
	if _, taken, err := channel.Get("payroll", true); err == nil {
		t.Errorf("the workers' login may read the queue of others: %v", taken)
	}
}
