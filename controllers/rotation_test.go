package controllers_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// revoke takes the operator's password from it, and returns the one that holds now.
func (w *world) revoke() string {
	w.Helper()
	password := testbroker.Shared(w).ChangePassword(w, w.user, "policymaker")
	thePasswords.add(w.namespace, w.user, password)
	return password
}

func TestRotation_ShowsARevokedLoginAndTakesOverTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	password := w.revoke()
	message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerRefused)
	if !strings.Contains(message, "refuses the login") || !strings.Contains(message, `Secret "rabbitmq"`) {
		t.Errorf("the condition does not say what is refused and where it is from: %s", message)
	}
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": password} })
	w.awaitReady(transport)
}

// The poll would come in an hour. Pods that are no longer ready are reason enough to look at the Secret and the broker anew.
func TestRotation_LooksAtTheBrokerWhenWorkersAreUnavailable(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{poll: time.Hour})
	transport := w.ready()
	password := w.revoke()
	available := int32(2)
	testtransport.Eventually(t, "the refusal", func() bool {
		// Each change is one look; the first of them may be served by a snapshot from before.
		available = 1 - available%2
		for _, deployment := range w.deployments() {
			before := deployment.DeepCopy()
			deployment.Status.ReadyReplicas, deployment.Status.AvailableReplicas = available, available
			must(t, w.client.Status().Patch(t.Context(), &deployment, client.MergeFrom(before)))
		}
		w.get(transport)
		return hasReason(transport, v1alpha1.ReasonBrokerRefused)
	})
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": password} })
	w.awaitReady(transport)
}

func TestRotation_TellsPodsOfAChangedSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	pod := w.podOf(transport)
	version := func() string { w.get(pod); return pod.Annotations[workload.SecretVersionAnnotation] }
	testtransport.Eventually(t, "the version of the Secret on the pod", func() bool { return version() != "" })
	first, generation := version(), w.deployments()[0].Generation
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": w.revoke()} })
	testtransport.Eventually(t, "the next version", func() bool { return version() != first })
	if now := w.deployments()[0].Generation; now != generation {
		t.Errorf("generation %d of the Deployment after %d: a changed Secret restarts pods", now, generation)
	}
}

func TestTransport_ReachesItsBrokerByARabbitmqCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	installRabbitmqClusters(t, testcluster.Start(t))
	transport := w.transport()
	transport.Spec.Broker = v1alpha1.Broker{ClusterRef: &v1alpha1.LocalReference{Name: "rabbit"}, VHost: &w.vhost}
	w.create(w.policy("policy", time.Second), transport)
	lacks := func(reason, part string) {
		t.Helper()
		if message := w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, reason); !strings.Contains(message, part) {
			t.Errorf("the condition says %q, not %q", message, part)
		}
	}
	lacks(v1alpha1.ReasonBrokerNotFound, `there is no RabbitmqCluster "rabbit"`)

	rabbit := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rabbitmq.com/v1beta1", "kind": "RabbitmqCluster", "metadata": map[string]any{"namespace": w.namespace, "name": "rabbit"},
	}}
	w.create(rabbit)
	testtransport.Eventually(t, "the cluster to be seen", func() bool {
		w.get(transport)
		ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
		return ready != nil && strings.Contains(ready.Message, "no Secret of a default user yet")
	})
	edit(w, rabbit, func(r *unstructured.Unstructured) {
		must(t, unstructured.SetNestedField(r.Object, "rabbit-default-user", "status", "binding", "name"))
	})
	lacks(v1alpha1.ReasonSecretNotFound, `"rabbit-default-user"`)

	secret := w.secret()
	secret.Name = "rabbit-default-user"
	w.create(secret)
	w.awaitReady(transport)
	mounted := w.deployments()[0].Spec.Template.Spec.Volumes[1].Projected
	if mounted == nil || len(mounted.Sources) != 1 || mounted.Sources[0].Secret.Name != secret.Name {
		t.Errorf("the pods mount %+v", mounted)
	}

	// Where the cluster is gone, so are its queues: nothing is left to wait for.
	must(t, w.client.Delete(t.Context(), rabbit))
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	w.awaitEvent("Retained", `there is no RabbitmqCluster`)
}

func TestTransport_NamesACertificateOfAnUnknownAuthority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	secure := newSecureProxy(t, testbroker.Shared(t).ManagementURL)
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"management_uri": secure.URL} })
	message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerUnreachable)
	for _, part := range []string{
		"the certificate of " + strings.TrimPrefix(secure.URL, "https://") + " is signed by an unknown authority", "key ca.crt", `Secret "rabbitmq"`,
	} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition does not name %q: %s", part, message)
		}
	}
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"ca.crt": string(secure.authority)} })
	w.awaitReady(transport)
}
