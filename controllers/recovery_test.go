package controllers_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
)

func TestTransport_SaysWhatItLacksAndRecovers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		// breaks is done before the Transport is made.
		breaks func(*world)
		mends  func(*world)
		// condition is true beside Ready=False, with this reason and a message that holds this part.
		condition, reason, part string
	}{
		"a policy that does not exist": {
			breaks:    func(w *world) { must(w.T, w.client.Delete(w.Context(), w.policy("policy"))) },
			mends:     func(w *world) { w.create(w.policy("policy", time.Second)) },
			condition: v1alpha1.StalledCondition, reason: v1alpha1.ReasonPolicyNotFound, part: `RetryPolicy "policy" does not exist`,
		},
		"a policy with an invalid expression": {
			breaks: func(w *world) {
				edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) {
					p.Spec.Strategies = []v1alpha1.Strategy{{Name: "bad", When: "error.statos == 429"}}
				})
			},
			mends: func(w *world) {
				edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec.Strategies = nil })
			},
			condition: v1alpha1.StalledCondition, reason: v1alpha1.ReasonPolicyInvalid, part: `strategy "bad", when, 1:6`,
		},
		"a Secret that does not exist": {
			breaks: func(w *world) {
				must(w.T, w.client.Delete(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secretName}}))
			},
			mends:     func(w *world) { w.create(w.secret()) },
			condition: v1alpha1.ReconcilingCondition, reason: v1alpha1.ReasonSecretNotFound, part: `no Secret "rabbitmq"`,
		},
		"a Secret that lacks a key": {
			breaks: func(w *world) {
				edit(w, w.secret(), func(s *corev1.Secret) { delete(s.Data, "password") })
			},
			mends: func(w *world) {
				edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = w.secret().StringData })
			},
			condition: v1alpha1.StalledCondition, reason: v1alpha1.ReasonSecretInvalid, part: "key password: missing",
		},
		"a broker that is down": {
			breaks:    func(w *world) { w.proxy.down.Store(true) },
			mends:     func(w *world) { w.proxy.down.Store(false) },
			condition: v1alpha1.ReconcilingCondition, reason: v1alpha1.ReasonBrokerUnreachable, part: "does not answer",
		},
		"a password that the broker refuses": {
			breaks: func(w *world) {
				edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": wrongPassword} })
			},
			mends: func(w *world) {
				edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = w.secret().StringData })
			},
			condition: v1alpha1.ReconcilingCondition, reason: v1alpha1.ReasonBrokerRefused, part: "refuses the login",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			w.create(w.policy("policy", time.Second))
			tt.breaks(w)
			w.create(transport)
			message := w.await(transport, tt.condition, metav1.ConditionTrue, tt.reason)
			if !strings.Contains(message, tt.part) {
				t.Errorf("the condition says %q, not %q", message, tt.part)
			}
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
			tt.mends(w)
			w.awaitReady(transport)
			for _, condition := range transport.Status.Conditions {
				if condition.Type == v1alpha1.StalledCondition || condition.Type == v1alpha1.ReconcilingCondition {
					t.Errorf("%s is still there", condition.Type)
				}
			}
		})
	}
}

func TestTransport_KeepsTheLastGoodConfigurationInForce(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		breaks func(*world)
		reason string
	}{
		"where a policy becomes invalid": {
			breaks: func(w *world) {
				edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) {
					p.Spec.Strategies = []v1alpha1.Strategy{{Name: "bad", When: "1 +"}}
				})
			},
			reason: v1alpha1.ReasonPolicyInvalid,
		},
		"where a policy is deleted": {
			breaks: func(w *world) { must(w.T, w.client.Delete(w.Context(), w.policy("policy"))) },
			reason: v1alpha1.ReasonPolicyNotFound,
		},
		"where the Secret is deleted": {
			breaks: func(w *world) { must(w.T, w.client.Delete(w.Context(), w.secret())) },
			reason: v1alpha1.ReasonSecretNotFound,
		},
		"where the broker goes down": {
			breaks: func(w *world) { w.proxy.down.Store(true) },
			reason: v1alpha1.ReasonBrokerUnreachable,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			w.settle()
			written, configMap, deployment := w.proxy.writes.Load(), w.configMaps()[0], w.deployments()[0]
			tt.breaks(w)
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
			if now := w.proxy.writes.Load(); now != written {
				t.Errorf("the broker was written to: %v", w.proxy.written[written:])
			}
			if got := w.configMaps()[0]; got.ResourceVersion != configMap.ResourceVersion {
				t.Errorf("the ConfigMap was written to: %s", document(t, got))
			}
			if got := w.deployments()[0]; got.Generation != deployment.Generation {
				t.Errorf("the Deployment was written to: %s", document(t, got))
			}
			w.amqp.Publish("async", "test", amqp091.Publishing{})
		})
	}
}

func TestTransport_TouchesNoOtherBrokerWhileObjectsStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := testbroker.Shared(t)
	second := server.Vhost(t)
	server.Permit(t, w.user, second, ".*", ".*", ".*")
	transport := w.transport()
	transport.Spec.Broker.VHost = nil
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"vhost": w.vhost} })
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	written := w.proxy.writes.Load()

	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"vhost": second} })
	message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonBrokerChanged)
	for _, part := range []string{w.vhost, second} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition %q does not name %s", message, part)
		}
	}
	if w.proxy.writes.Load() != written {
		t.Errorf("a broker was written to: %v", w.proxy.written[written:])
	}
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"vhost": w.vhost} })
	w.awaitReady(transport)
}

func TestTransport_SaysWhatOnlyItsUserCanMend(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*world, *v1alpha1.Transport)
		reason string
		parts  []string
	}{
		"a template with a field that a pod does not have": {
			change: func(_ *world, t *v1alpha1.Transport) {
				t.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"worker","imagePullPolicie":"Always"}]}}`)}
			},
			reason: v1alpha1.ReasonWorkloadInvalid, parts: []string{`worker "default"`, "imagePullPolicie"},
		},
		"a template with a value that the API server refuses": {
			change: func(_ *world, t *v1alpha1.Transport) {
				t.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"nodeName":"not a name!"}}`)}
			},
			reason: v1alpha1.ReasonWorkloadInvalid, parts: []string{`worker "default"`, "nodeName"},
		},
		"references to queues that the spec does not have": {
			change: func(_ *world, t *v1alpha1.Transport) {
				t.Spec.Exchange.UnroutedTo = new("nowhere")
				t.Spec.Workers[0].Queues = []string{"missing"}
			},
			reason: v1alpha1.ReasonInvalid, parts: []string{`spec.exchange.unroutedTo: "nowhere"`, `spec.workers[0].queues[0]: "missing"`},
		},
		"an expression of its own that does not compile": {
			change: func(_ *world, t *v1alpha1.Transport) {
				t.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.typo == ''", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
			},
			reason: v1alpha1.ReasonInvalidExpression, parts: []string{"spec.retryPolicies[0].when, 1:8"},
		},
		"a queue that exists with other arguments": {
			change: func(w *world, _ *v1alpha1.Transport) {
				_, err := w.amqp.Channel().QueueDeclare("test", true, false, false, false,
					amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "elsewhere"})
				must(w.T, err)
			},
			reason: v1alpha1.ReasonConflict, parts: []string{`queue "test"`, "x-dead-letter-exchange", "elsewhere", "async.failed"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			tt.change(w, transport)
			w.create(w.policy("policy", time.Second), transport)
			message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
			for _, part := range tt.parts {
				if !strings.Contains(message, part) {
					t.Errorf("the condition says %q, not %q", message, part)
				}
			}
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
		})
	}
}

func TestOwnership_StallsTheSecondTransportThatClaimsAQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.ready()
	second := w.transport()
	second.Name = "second"
	second.Spec.Exchange = &v1alpha1.Exchange{Name: "second", Type: v1alpha1.ExchangeDirect}
	w.create(second)
	message := w.await(second, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if !strings.Contains(message, `queue "test"`) || !strings.Contains(message, w.namespace+"/async") {
		t.Errorf("the condition %q does not name the queue and its owner", message)
	}
	w.awaitReady(first)
}

func TestTransport_StartsWorkersWithoutAnExchangeOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Queues[0].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#"}}}
	w.create(w.policy("policy", time.Second), transport)
	message := w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonProgressing)
	if !strings.Contains(message, "shop.events") {
		t.Errorf("the condition %q does not name the exchange", message)
	}
	if len(w.deployments()) != 1 {
		t.Error("the workers are held back")
	}
	must(t, w.amqp.Channel().ExchangeDeclare("shop.events", amqp091.ExchangeTopic, true, false, false, false, nil))
	w.awaitReady(transport)
	w.amqp.Publish("shop.events", "order.paid", amqp091.Publishing{MessageId: "theirs"})
	if got := w.amqp.Take("test").MessageId; got != "theirs" {
		t.Errorf("queue test got %q", got)
	}
}
