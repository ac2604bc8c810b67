package controllers_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// oddNames are queue names that mean something to a URL, a pattern, a shell or a reader, but not to us.
var oddNames = []string{
	"two words", " leading", "trailing ", "a/b", "/", "%2F", "100%", "a+b&c=d?e#f;g", "a.b*c[0]+(x|y)^$", `back\slash`, `"it's"`,
	"{curly}", "<b>", "größe", "\u6ce8\u6587", "🐇", "e\u0301", "\u202eabc", "...", "a:b@c", strings.Repeat("n", 244),
}

func TestTransport_TakesOddNamesForNamesOnly(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*v1alpha1.Transport){
		"of queues and keys": func(t *v1alpha1.Transport) {
			for _, name := range oddNames {
				t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
			}
		},
		"of the exchange, and with it of all that is private": func(t *v1alpha1.Transport) {
			t.Spec.Exchange.Name = "a/b %2F*[.]+(größe|🐇)#?"
		},
		"of the exchange, as long as they can be": func(t *v1alpha1.Transport) { t.Spec.Exchange.Name = strings.Repeat("e", 220) },
		"of the failure queue": func(t *v1alpha1.Transport) {
			t.Spec.Failure = &v1alpha1.Failure{Queue: new("failed? 100% #1/2")}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			change(transport)
			w.create(w.policy("policy", time.Second, 2*time.Second), transport)
			w.awaitReady(transport)
			checkTopology(w, transport)
			for _, queue := range transport.Spec.Queues {
				w.amqp.Publish(transport.Spec.Exchange.Name, queue.BindingKeys[0], amqp091.Publishing{MessageId: queue.Name})
				if got := w.amqp.Take(queue.Name).MessageId; got != queue.Name {
					t.Errorf("queue %q got the message for %q", queue.Name, got)
				}
			}
			w.settle()
			must(t, w.client.Delete(t.Context(), transport))
			w.awaitGone(transport)
			checkBrokerIsEmpty(w)
		})
	}
}

func TestTransport_TakesWildcardsOnlyInKeysOfATopicExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Exchange.Type, transport.Spec.Exchange.UnroutedTo = v1alpha1.ExchangeTopic, nil
	transport.Spec.Queues = []v1alpha1.Queue{
		{Name: "order.#", BindingKeys: []string{"order.#"}}, {Name: "*.paid", BindingKeys: []string{"*.paid"}},
	}
	w.create(w.policy("policy", time.Second, 2*time.Second), transport)
	w.awaitReady(transport)
	w.amqp.Publish("async", "order.paid", amqp091.Publishing{MessageId: "both"})
	w.amqp.Publish("async", "order.sent.late", amqp091.Publishing{MessageId: "one"})
	if got := w.takeIDs("order.#", 2); !slices.Equal(got, []string{"both", "one"}) {
		t.Errorf("queue order.# got %q", got)
	}
	if got := w.takeIDs("*.paid", 1); got[0] != "both" || w.amqp.Ready("*.paid") > 0 {
		t.Errorf("queue *.paid got %q and %d more", got, w.amqp.Ready("*.paid"))
	}
	// A retry comes back by the queue's name, which must not be taken for a pattern.
	w.amqp.Publish("async.return", "*.paid", amqp091.Publishing{MessageId: "back"})
	if got := w.takeIDs("*.paid", 1); got[0] != "back" || w.amqp.Ready("order.#") > 0 {
		t.Errorf("queue *.paid got back %q, queue order.# %d", got, w.amqp.Ready("order.#"))
	}
}

func TestTransport_MakesABrokerPolicyForOneQueueOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.amqp.Channel().QueueDeclare("aXbb", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	transport := w.transport()
	transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: "a.b+", Limits: &v1alpha1.Limits{DropOldestAfter: new(int64(5))}})
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	testtransport.Eventually(t, "the queue of the spec to have its policy", func() bool { return w.observed().Queues["a.b+"].Policy != "" })
	if policy := w.observed().Queues["aXbb"].Policy; policy != "" {
		t.Errorf("a queue of somebody else has the policy %s", policy)
	}
}

// moveTo puts the test into a vhost of another name.
func (w *world) moveTo(vhost string) {
	w.Helper()
	server := testbroker.Shared(w)
	server.MakeVhost(w, vhost)
	server.Permit(w, w.user, vhost, ".*", ".*", ".*")
	w.vhost, w.amqp = vhost, testtransport.Connect(w, server.URL(vhost))
	var err error
	w.broker, err = broker.New(broker.Config{ManagementURL: w.proxy.URL, Username: w.user, Password: w.password, VHost: vhost})
	must(w.T, err)
}

func TestTransport_WorksOnVhostsOfAllNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a/b", "%2F", "täst", "two words", "?#[]+&="} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.moveTo(name + rand.Text()[:8])
			transport := w.ready()
			checkTopology(w, transport)
			must(t, w.client.Delete(t.Context(), transport))
			w.awaitGone(transport)
			checkBrokerIsEmpty(w)
		})
	}
}

// named is the Transport of most tests with names of its own.
func (w *world) named(name string) *v1alpha1.Transport {
	t := w.transport()
	t.Name, t.Spec.Exchange.Name, *t.Spec.Exchange.UnroutedTo = name, name, name+".lost"
	for i := range t.Spec.Queues {
		t.Spec.Queues[i].Name = name + "." + t.Spec.Queues[i].Name
	}
	return t
}

func withTemplate(patch string) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) { t.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(patch)} }
}

func inWorker(fields string) func(*v1alpha1.Transport) {
	return withTemplate(`{"spec":{"containers":[{"name":"worker",` + fields + `}]}}`)
}

// badInputs are what the API server takes and nobody can carry out.
var badInputs = map[string]struct {
	change func(*v1alpha1.Transport)
	reason string
	parts  []string
}{
	"field-of-no-pod": {inWorker(`"imagee":"x"`), v1alpha1.ReasonWorkloadInvalid, []string{"containers[0].imagee", "unknown field"}},
	"wrong-type":      {inWorker(`"image":7`), v1alpha1.ReasonWorkloadInvalid, []string{"containers[0].image", "must be of type string"}},
	"other-command":   {inWorker(`"command":["sh"]`), v1alpha1.ReasonWorkloadInvalid, []string{"containers[worker].command", "cannot be changed"}},
	"other-arguments": {inWorker(`"args":["--help"]`), v1alpha1.ReasonWorkloadInvalid, []string{"containers[worker].args", "cannot be changed"}},
	"other-volume": {
		withTemplate(`{"spec":{"volumes":[{"name":"config","configMap":{"name":"mine"}}]}}`),
		v1alpha1.ReasonWorkloadInvalid,
		[]string{"volumes[config]", "cannot be changed"},
	},
	"container-twice": {
		withTemplate(`{"spec":{"containers":[{"name":"handler","image":"a"},{"name":"handler","image":"b"}]}}`),
		v1alpha1.ReasonWorkloadInvalid,
		[]string{"handler"},
	},
	"workers-label-on-quarantine": {
		withTemplate(`{"metadata":{"labels":{"redrive.dev/worker":"default"}}}`), v1alpha1.ReasonWorkloadInvalid, []string{"labels[redrive.dev/worker]", "find the pods"},
	},
	"container-of-no-name": {withTemplate(`{"spec":{"containers":[{"image":"x"}]}}`), v1alpha1.ReasonWorkloadInvalid, []string{"containers[0].name"}},
	"name-of-rabbitmq": {
		func(t *v1alpha1.Transport) { t.Spec.Queues[0].Name = "amq.mine" }, v1alpha1.ReasonInvalid, []string{"spec.queues[0].name", "amq."},
	},
	"name-of-too-many-bytes": {
		func(t *v1alpha1.Transport) { t.Spec.Queues[0].Name = strings.Repeat("\u6ce8", 86) },
		v1alpha1.ReasonInvalid,
		[]string{"spec.queues[0].name", "258 bytes"},
	},
	"key-of-two-lines": {
		func(t *v1alpha1.Transport) { t.Spec.Queues[0].BindingKeys = []string{"a\nb"} },
		v1alpha1.ReasonInvalid,
		[]string{"spec.queues[0].bindingKeys[0]", "control character"},
	},
	"exchange-that-no-url-can-name": {
		func(t *v1alpha1.Transport) { t.Spec.Exchange.Name = ".." }, v1alpha1.ReasonInvalid, []string{"spec.exchange.name", "cannot address"},
	},
	"expression": {
		func(t *v1alpha1.Transport) {
			t.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "1 +", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
		},
		v1alpha1.ReasonInvalidExpression,
		[]string{"spec.retryPolicies[0].when"},
	},
}

// mostPolls is how often something that happens once in a poll may have happened since. The poll is jittered by a tenth, and
// one may have been under way at either end.
func mostPolls(start time.Time) int {
	return int(float64(time.Since(start))/float64(pollInterval)/0.9) + 2
}

func TestTransport_TriesOnceAPollWhatTheAPIServerRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	withTemplate(`{"spec":{"containers":[{"name":"handler","image":"a","ports":[{"name":"NOT A PORT","containerPort":0}]}]}}`)(transport)
	w.create(w.policy("policy", time.Second), transport)
	message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonWorkloadInvalid)
	if !strings.Contains(message, "spec.template.spec.containers[0].ports[0].containerPort: Required value") {
		t.Errorf("the condition says %q", message)
	}
	start, before := time.Now(), len(w.operator.writes.of(w.namespace))
	w.awaitLooks(8)
	if writes := w.operator.writes.of(w.namespace)[before:]; len(writes) > mostPolls(start) {
		t.Errorf("%d writes, more than %d: %v", len(writes), mostPolls(start), writes)
	}
}

// It has an operator of its own, of which reconciles are counted.
func TestTransport_NamesBadInputAndDisturbsNoOther(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	healthy := w.ready()
	var bad []*v1alpha1.Transport
	for name, input := range badInputs {
		transport := w.named(name)
		input.change(transport)
		w.create(transport)
		bad = append(bad, transport)
	}
	for _, transport := range bad {
		input := badInputs[transport.Name]
		message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, input.reason)
		for _, part := range input.parts {
			if !strings.Contains(message, part) {
				t.Errorf("the condition of %s says %q, not %q", transport.Name, message, part)
			}
		}
	}
	w.awaitReady(healthy)
	w.settle()

	w.get(healthy)
	start, before := time.Now(), w.operator.reconciles(w.T, "transport")
	written, version, broker := len(w.operator.writes.of(w.namespace)), healthy.ResourceVersion, w.proxy.writes.Load()
	w.awaitLooks(8)
	if got, most := w.operator.reconciles(w.T, "transport")-before, mostPolls(start)*(len(bad)+1); got > most {
		t.Errorf("%d reconciles of %d Transports, more than %d", got, len(bad)+1, most)
	}
	if now := w.operator.writes.of(w.namespace); len(now) > written {
		t.Errorf("the operator wrote to the API server: %v", now[written:])
	}
	if now := w.proxy.writes.Load(); now > broker {
		t.Errorf("the operator wrote to the broker: %v", w.proxy.since(int(broker)))
	}
	if w.get(healthy); healthy.ResourceVersion != version {
		t.Errorf("the healthy Transport was written to: %s", document(t, healthy.Status))
	}
}

func TestDrift_IsRepairedInAConfigMap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ready()
	w.settle()
	configMap := &w.configMaps()[0]
	good := configMap.Data
	edit(w, configMap, func(c *corev1.ConfigMap) {
		c.Data = map[string]string{"config.json": strings.ReplaceAll(good["config.json"], `"2s"`, `"77s"`), "mine": "1"}
	})
	if configMap.Data["config.json"] == good["config.json"] {
		t.Fatalf("nothing was edited: %s", good)
	}
	testtransport.Eventually(t, "the ConfigMap to be as it was", func() bool {
		w.get(configMap)
		return configMap.Data["config.json"] == good["config.json"]
	})
	w.awaitEvent("Repaired", `ConfigMap `+configMap.Name+` was changed or deleted by "somebody"`)
	if configMap.Data["mine"] != "1" {
		t.Error("what somebody added is gone")
	}
	w.settle()
	if w.hasQueue("async.fallback.77s") {
		t.Error("a lane was made that only the edited configuration names")
	}
}

// rival is another program that is sure of some fields of our Deployment.
func (w *world) rival(ctx context.Context, deployment *appsv1.Deployment, image string) error {
	form := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: deployment.Name, Labels: map[string]string{"redrive.dev/worker": "theirs", "team": "shop"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(9)), Selector: deployment.Spec.Selector,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"disk": "ssd"},
				Containers:   []corev1.Container{{Name: "worker", Image: image, Args: []string{"--help"}, Env: []corev1.EnvVar{{Name: "THEIRS", Value: "1"}}}},
			}},
		},
	}
	return w.applyAs(ctx, "rival", form)
}

func TestDrift_TakesOwnFieldsBackFromAForeignManager(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.settle()
	deployment := &w.deployments()[0]
	before := deployment.DeepCopy()
	must(t, w.rival(t.Context(), deployment, "registry.example/theirs"))
	w.eventually("what is ours to be as it was", func() bool {
		w.get(deployment)
		worker, was := deployment.Spec.Template.Spec.Containers[0], before.Spec.Template.Spec.Containers[0]
		return worker.Image == was.Image && slices.Equal(worker.Args, was.Args) && *deployment.Spec.Replicas == 2 &&
			deployment.Labels["redrive.dev/worker"] == "default"
	})
	pod := deployment.Spec.Template.Spec
	if pod.NodeSelector["disk"] != "ssd" || deployment.Labels["team"] != "shop" ||
		!slices.ContainsFunc(pod.Containers[0].Env, func(v corev1.EnvVar) bool { return v.Name == "THEIRS" }) {
		t.Errorf("what is theirs is gone: %s", document(t, deployment))
	}
	w.awaitEvent("Repaired", `by "rival"`)
	w.awaitReady(transport)
	w.settle()
}

func TestDrift_FightsAForeignManagerInNoHotLoop(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport, neighbour := w.ready(), w.named("neighbour")
	w.create(neighbour)
	w.awaitReady(neighbour)
	w.settle()
	name := (&w.deployments()[slices.IndexFunc(w.deployments(), func(d appsv1.Deployment) bool { return strings.HasPrefix(d.Name, "async") })]).Name
	applies := func() (count int) {
		for _, write := range w.operator.writes.of(w.namespace) {
			if strings.HasSuffix(write, "/deployments/"+name) {
				count++
			}
		}
		return count
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	before, start := applies(), time.Now()
	go func() {
		defer close(ended)
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		for theirs := 0; ctx.Err() == nil; theirs++ {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment); err == nil && deployment.Spec.Template.Spec.Containers[0].Image == workerImage {
				_ = w.rival(ctx, deployment, fmt.Sprintf("registry.example/theirs:%d", theirs))
			}
		}
	}()
	w.awaitUnrolled(transport, fmt.Sprintf(`Deployment %s is changed by "rival" each time that the operator restores it`, name))
	w.awaitLooks(10)
	if got, most := applies()-before, 5*(int(time.Since(start)/repairWindow)+1)+2; got < 5 || got > most {
		t.Errorf("%d applies in a fight, not 5 to %d", got, most)
	}
	version := func() string { w.get(neighbour); return neighbour.ResourceVersion }
	was := version()
	w.awaitLooks(4)
	if version() != was {
		t.Errorf("the Transport beside it was written to: %s", document(t, neighbour.Status))
	}
	stop()
	<-ended
	w.awaitReady(transport)
}

func TestTransport_SaysWhatKeepsPodsFromStarting(t *testing.T) {
	t.Parallel()
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "worker", Image: "UPPER/case", ImageID: "", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}
	}
	crash := waiting("CrashLoopBackOff", "back-off 40s restarting failed container")
	crash.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}
	tests := map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"an image name that is none": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("InvalidImageName", "couldn't parse")}},
			`container worker: InvalidImageName: the image "UPPER/case"`,
		},
		"an image that nobody has": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("ErrImagePull", "not found")}},
			`container worker: the image "UPPER/case" cannot be pulled`,
		},
		"a container that ends again and again": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{crash}},
			"container worker: it ends again and again: OOMKilled, exit code 137",
		},
		"a Secret that lacks a key": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("CreateContainerConfigError", "couldn't find key x")}},
			"container worker: CreateContainerConfigError: couldn't find key x",
		},
		"no node with room": {
			corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available",
			}}},
			"no node takes it: 0/3 nodes are available",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.transport()
			w.create(w.policy("policy", time.Second), transport)
			pod := w.podOf(transport)
			pod.Status = tt.status
			must(t, w.client.Status().Update(t.Context(), pod))
			w.awaitUnrolled(transport, "pod worker: "+tt.want)
		})
	}
}

func TestTransport_SaysWhyTheNamespaceRefusesPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enforceRestricted()
	transport := w.transport()
	withTemplate(`{"spec":{"containers":[{"name":"handler","image":"shop"}]}}`)(transport)
	w.create(w.policy("policy", time.Second), transport)
	deployment := w.awaitDeployment()
	// The part of the Deployment's controllers.
	refused := w.client.Create(t.Context(), podFrom(deployment))
	if refused == nil {
		t.Fatal("the namespace takes the pod")
	}
	deployment.Status.ObservedGeneration = deployment.Generation
	deployment.Status.Conditions = []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: refused.Error(),
	}}
	must(t, w.client.Status().Update(t.Context(), deployment))
	message := w.awaitUnrolled(transport, "default (0 of 2 available): its pods are refused: ")
	for _, part := range []string{`violates PodSecurity "restricted`, `container "handler"`, "allowPrivilegeEscalation != false"} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition says %q, not %q", message, part)
		}
	}
}

func TestTransport_MakesPodsOfTheRestrictedStandard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enforceRestricted()
	w.create(w.policy("policy", time.Second), w.transport())
	must(t, w.client.Create(t.Context(), podFrom(w.awaitDeployment())))
}

// applyAs applies a form as another field manager, by force.
func (w *world) applyAs(ctx context.Context, manager string, form runtime.Object) error {
	content, err := workload.ApplyForm(form)
	if err != nil {
		return err
	}
	return w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(content), client.FieldOwner(manager), client.ForceOwnership)
}

// podFrom is the pod that a Deployment wants.
func podFrom(deployment *appsv1.Deployment) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Namespace, pod.Name = deployment.Namespace, "subject"
	return pod
}

func (w *world) awaitDeployment() *appsv1.Deployment {
	w.Helper()
	w.eventually("a Deployment", func() bool { return len(w.deployments()) == 1 })
	return &w.deployments()[0]
}

// awaitUnrolled waits for a text in the condition of a Transport whose workers nobody rolls out.
func (w *world) awaitUnrolled(transport *v1alpha1.Transport, part string) (message string) {
	w.Helper()
	defer func() {
		if w.Failed() {
			w.Logf("the condition says %q", message)
		}
	}()
	w.eventually("the condition to say "+part, func() bool {
		w.get(transport)
		reconciling := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReconcilingCondition)
		if reconciling == nil || reconciling.Reason != v1alpha1.ReasonProgressing {
			return false
		}
		message = reconciling.Message
		return strings.Contains(message, part)
	})
	return message
}

// enforceRestricted lets the namespace refuse pods that are not restricted.
func (w *world) enforceRestricted() {
	w.Helper()
	edit(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, func(n *corev1.Namespace) {
		n.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	})
}

// A group whose Deployment a quota had no room for kept the configurations of all groups behind it in the spec from being published.
func TestTransport_AGroupThatTheClusterForbidsKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.ready()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "full"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/deployments.apps": resource.MustParse("1")},
	}}
	w.create(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	must(t, w.client.Status().Update(t.Context(), quota))
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "bills", BindingKeys: []string{"bills"}}, v1alpha1.Queue{Name: "mail", BindingKeys: []string{"mail"}})
		extra := *t.Spec.Workers[0].DeepCopy()
		extra.Name, extra.Queues = "extra", []string{"mail"}
		t.Spec.Workers[0].Queues = []string{"test", "lost", "bills"}
		t.Spec.Workers = []v1alpha1.Worker{extra, t.Spec.Workers[0]}
	})
	message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonProgressing)
	testtransport.Eventually(t, "the condition to name the group", func() bool {
		message = w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonProgressing)
		return strings.Contains(message, `worker "extra"`) && strings.Contains(message, "exceeded quota")
	})
	testtransport.Eventually(t, "the other group to be told of its new queue", func() bool {
		return slices.ContainsFunc(w.configMaps(), func(c corev1.ConfigMap) bool {
			return c.Name == workload.Name(transport, "default") && strings.Contains(c.Data[workload.ConfigKey], `"bills"`)
		})
	})
}
