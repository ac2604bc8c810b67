package controllers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// handled makes the policy and a Transport with a handler, and waits until it stands.
func (w *world) handled(handler v1alpha1.Handler) *v1alpha1.Transport {
	w.Helper()
	w.create(w.policy("policy", time.Second))
	t := w.transport()
	t.Spec.Workers[0].Handler = handler
	w.create(t)
	w.awaitReady(t)
	return t
}

func httpWithLogin() v1alpha1.Handler {
	return v1alpha1.Handler{Image: new("shop:v1"), HTTP: &v1alpha1.HTTPHandler{
		URL: "https://127.0.0.1:8443/", HeadersSecretRef: &v1alpha1.LocalReference{Name: "login"},
		TLS: &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "authority"}},
	}}
}

func names(containers []corev1.Container) (found []string) {
	for i := range containers {
		found = append(found, containers[i].Name)
	}
	return found
}

func TestTransport_GivesPodsTheShapeOfTheirHandler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler          v1alpha1.Handler
		first, alongside []string
	}{
		"exec": {v1alpha1.Handler{Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"php"}}}, []string{"install"}, []string{"worker"}},
		// The API server of the tests is new enough for every node to know sidecars.
		"http":      {httpWithLogin(), []string{"handler"}, []string{"worker"}},
		"inProcess": {v1alpha1.Handler{Image: new("shop:v1"), InProcess: &v1alpha1.InProcessHandler{}}, nil, []string{"worker"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.handled(tt.handler)
			w.quarantined()
			for _, deployment := range []*appsv1.Deployment{&w.deployments()[0], w.awaitQuarantine(transport)} {
				spec := deployment.Spec.Template.Spec
				if !slices.Equal(names(spec.InitContainers), tt.first) || !slices.Equal(names(spec.Containers), tt.alongside) {
					t.Errorf("%s has %v before %v, want %v before %v", deployment.Name, names(spec.InitContainers), names(spec.Containers), tt.first, tt.alongside)
				}
			}
			w.handleQuarantine()
		})
	}
}

func TestTransport_RestartsNoPodForAChangedCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.handled(v1alpha1.Handler{Image: new("shop:v1"), Process: &v1alpha1.ProcessHandler{Command: []string{"php", "serve.php"}}})
	hash, before := transport.Status.ConfigHash, w.deployments()[0]
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Handler.Process.Command[1] = "other.php" })
	w.eventually("another configuration", func() bool { return w.get(transport) && transport.Status.ConfigHash != hash })
	config, err := compile.Decode([]byte(w.configMaps()[0].Data[workload.ConfigKey]))
	must(t, err)
	if config.Handler.Process.Command[1] != "other.php" {
		t.Errorf("the configuration has %+v", config.Handler.Process)
	}
	w.awaitReady(transport)
	if after := w.deployments()[0]; after.Generation != before.Generation {
		t.Error("the Deployment changed: every pod would restart")
	}
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Handler.Image = new("shop:v2") })
	w.eventually("the next image", func() bool { return w.deployments()[0].Spec.Template.Spec.Containers[0].Image == "shop:v2" })
}

func TestTransport_WarnsOfAMissingSecretOfAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.handled(httpWithLogin())
	pod := w.podOf(transport)
	version := func() string { w.get(pod); return pod.Annotations[workload.SecretVersionAnnotation] }
	w.awaitWarning(transport, v1alpha1.ReasonSecretNotFound, `worker default: there is no Secret "login" in namespace "`+w.namespace+`", which handler.http.headersSecretRef names`)
	w.awaitWarning(transport, v1alpha1.ReasonSecretNotFound, `there is no Secret "authority"`)
	w.awaitReady(transport)

	const token = "Bearer of-this-one-test-alone"
	thePasswords.add(w.namespace, "nobody", token)
	login := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"}, StringData: map[string]string{"Authorization": token}}
	w.create(login)
	testtransport.Eventually(t, "only the other to be missing", func() bool {
		message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonSecretNotFound)
		return !strings.Contains(message, `"login"`) && strings.Contains(message, `"authority"`)
	})
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "authority"}})
	w.awaitNoWarning(transport)

	testtransport.Eventually(t, "the version of the Secrets on the pod", func() bool { return strings.Contains(version(), login.ResourceVersion) })
	generation := w.deployments()[0].Generation
	edit(w, login, func(s *corev1.Secret) { s.StringData = map[string]string{"Authorization": token + "-2"} })
	testtransport.Eventually(t, "the next version", func() bool { return strings.Contains(version(), login.ResourceVersion) })
	if now := w.deployments()[0].Generation; now != generation {
		t.Errorf("generation %d of the Deployment after %d: a changed Secret restarts pods", now, generation)
	}
}

func TestTransport_RefusesATemplateThatDeletesTheHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].Handler = httpWithLogin()
	transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"handler","$patch":"delete"}]}}`)}
	w.create(transport)
	message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonWorkloadInvalid)
	if !strings.Contains(message, "leave out handler.image") {
		t.Errorf("the condition says %q", message)
	}
}

// Pods from before the next handler start again while its pods do not come up: after a crash, or when their node is drained.
func TestTransport_PublishesTheFormerHandlerUntilTheNextHasRolledOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	exec := func(image string) v1alpha1.Handler {
		return v1alpha1.Handler{Image: &image, Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	transport := w.handled(exec("shop:v1"))
	name := workload.Name(transport, "default")
	published := func(image string, former ...string) func() bool {
		return func() bool {
			config := w.config(name)
			var images []string
			for _, handler := range config.FormerHandlers {
				images = append(images, *handler.Image)
			}
			return *config.Handler.Image == image && slices.Equal(images, former)
		}
	}
	if !published("shop:v1")() {
		t.Fatal("the first configuration has a former handler")
	}
	change := func(image string) {
		edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Handler.Image = &image })
		w.eventually("the image "+image, func() bool { return w.deployments()[0].Spec.Template.Spec.Containers[0].Image == image })
	}
	change("shop:v2")
	testtransport.Eventually(t, "the handler of v1 for its pods", published("shop:v2", "shop:v1"))
	change("shop:v3")
	w.settle()
	testtransport.Eventually(t, "that of v2 too", published("shop:v3", "shop:v1", "shop:v2"))
	w.awaitReady(transport) // the pods are available
	testtransport.Eventually(t, "no former handler", published("shop:v3"))
}

// One apply adds a queue, or moves one from another group, and sets the image that understands its messages. The pods of before were told of the queue first,
// and failed what they got of it.
func TestTransport_NewQueuesWaitForThePodsOfTheHandlerThatComesWithThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	image := func(version string) v1alpha1.Handler {
		return v1alpha1.Handler{Image: new("shop:" + version), Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	}
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: "mails", BindingKeys: []string{"mails"}})
	transport.Spec.Workers = []v1alpha1.Worker{
		{Name: "first", Queues: []string{"test", "lost"}, Handler: image("v1")}, {Name: "second", Queues: []string{"mails"}, Handler: image("v1")},
	}
	w.create(transport)
	w.awaitReady(transport)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "invoices", BindingKeys: []string{"invoices"}})
		t.Spec.Workers[0].Queues, t.Spec.Workers[0].Handler = []string{"test", "lost", "mails", "invoices"}, image("v2")
		t.Spec.Workers = t.Spec.Workers[:1]
	})
	first, second := workload.Name(transport, "first"), workload.Name(transport, "second")
	testtransport.Eventually(t, "the next image", func() bool { return *w.config(first).Handler.Image == "shop:v2" })
	w.settle()
	if got, before := w.reads(first), w.reads(second); !slices.Equal(got, []string{"lost", "test"}) || !slices.Equal(before, []string{"mails"}) {
		t.Errorf("while pods for the former handler run, the group consumes %v, and the one before %v", got, before)
	}
	w.awaitReady(transport) // the next pods are available, and there are no others
	testtransport.Eventually(t, "all queues to be consumed", func() bool { return slices.Equal(w.reads(first), []string{"invoices", "lost", "mails", "test"}) })
	testtransport.Eventually(t, "the former group to go", func() bool { return w.config(second).Worker == "" })
}

// A deletion ended the wait: pods for the former handler got the messages.
func TestTransport_NewQueuesWaitForTheirHandlerAlsoInADeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.handled(v1alpha1.Handler{Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}})
	name := workload.Name(transport, "default")
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "invoices", BindingKeys: []string{"invoices"}})
		t.Spec.Workers[0].Handler.Image = new("shop:v2")
	})
	w.eventually("the next image", func() bool { return w.deployments()[0].Spec.Template.Spec.Containers[0].Image == "shop:v2" })
	w.setStatus(w.deployment(transport), func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas, s.AvailableReplicas = 0, 0 })
	w.hold("invoices")
	must(t, w.client.Delete(t.Context(), transport))
	testtransport.Eventually(t, "the message to keep the Transport", func() bool {
		return w.get(transport) && meta.IsStatusConditionFalse(transport.Status.Conditions, v1alpha1.ReadyCondition) &&
			meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition).Reason == v1alpha1.ReasonDeletionBlocked
	})
	w.awaitLooks(4)
	if got := w.reads(name); slices.Contains(got, "invoices") || !slices.Contains(got, testtransport.Queue) {
		t.Errorf("while pods for the former handler run, the group consumes %v", got)
	}
	w.blocked(transport) // the next pods are available, and there are no others
	testtransport.Eventually(t, "the new queue to be consumed", func() bool { return slices.Contains(w.reads(name), "invoices") })
}
