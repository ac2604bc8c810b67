package controllers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// config is the published configuration of that name; one without queues where there is none.
func (w *world) config(name string) compile.Config {
	w.Helper()
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if !w.get(configMap) {
		return compile.Config{}
	}
	config, _ := workload.Published(configMap)
	return config
}

// scale sets the replicas of a Deployment, as kubectl does.
func (w *world) scale(name string, replicas int32) {
	w.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	edit(w, deployment, func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
}

// reads are the queues that workers consume by the published configuration of that name.
func (w *world) reads(name string) (queues []string) {
	w.Helper()
	for _, queue := range w.config(name).Queues {
		queues = append(queues, queue.Consumed()...)
	}
	slices.Sort(queues)
	return queues
}

// What was left in a queue that left the spec was nobody's when the group that emptied it was renamed, or left with it.
func TestTransport_AGroupThatLeavesTheSpecEmptiesItsQueuesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second, 10*time.Second))
	transport := w.transport()
	w.create(transport)
	w.awaitReady(transport)
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	w.quarantined()
	w.awaitQuarantine(transport)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues, t.Spec.Workers[0].Name = t.Spec.Queues[1:], "main" })
	w.awaitReady(transport)
	former := workload.Name(transport, "default")
	remains := func() (reads [][]string) {
		for _, configMap := range w.configMaps() {
			if config, ok := workload.Published(&configMap); ok && configMap.Name == former {
				for _, queue := range config.Queues {
					reads = append(reads, append(queue.Consumed(), queue.Quarantine))
				}
			}
		}
		return reads
	}
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "test (1)")
	if got := remains(); len(got) != 1 || !slices.Equal(got[0], []string{testtransport.Queue, "test.quarantine"}) {
		t.Errorf("the former group consumes %v, want the queue that it is to empty", got)
	}
	w.takeIDs(testtransport.Queue, 1)
	w.awaitLooks(4)
	stays := func() bool {
		got := remains()
		return w.hasQueue(testtransport.Queue) && len(got) == 1 && slices.Equal(got[0], []string{testtransport.Queue, "test.quarantine"})
	}
	if !stays() {
		t.Errorf("the former group consumes %v while a quarantined message may be retried in its queue", remains())
	}
	w.amqp.Publish("async.fallback", "test.quarantine", amqp091.Publishing{Headers: amqp091.Table{message.HeaderLane: "10s"}})
	w.awaitCount("async.fallback.10s", 1)
	w.handleQuarantine()
	testtransport.Eventually(t, "the retry of the quarantined message", func() bool { return w.amqp.Ready("test.quarantine") == 1 })
	if !stays() {
		t.Errorf("the former group consumes %v when a retry comes back into its quarantine queue", remains())
	}
	w.handleQuarantine()
	testtransport.Eventually(t, "the former group gone", func() bool {
		return !w.hasQueue("test.quarantine") && len(remains()) == 0 && len(w.deployments()) == 1
	})
}

// What a group that has left the spec had in hand when a pod or its connection ended was read by nobody: it has a quarantine pod only while there are messages.
func TestTransport_AGroupThatHasLeftTheSpecGetsAQuarantinePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Workers[0].RateLimits = []v1alpha1.RateLimit{{Name: "partner", PerSecond: intOrString(10)}}
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	w.awaitCount(testtransport.Queue, 1)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues, t.Spec.Workers[0].Name = t.Spec.Queues[1:], "main" })
	w.awaitReady(transport)
	if w.get(w.quarantine(transport)) {
		t.Fatal("it has a quarantine pod already, so this shows nothing")
	}
	w.quarantined()
	deployment := w.awaitQuarantine(transport)
	if container := deployment.Spec.Template.Spec.Containers[0]; !slices.Contains(container.Args, "--quarantine") || container.Image != workerImage {
		t.Errorf("it runs %s %v", container.Image, container.Args)
	}
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "test (1)")
	shares := func() int { return w.config(workload.Name(transport, "default")).Replicas }
	testtransport.Eventually(t, "it to share its rate limit with the other pod", func() bool { return shares() == 3 })
	w.scale(workload.Name(transport, "default"), 3)
	testtransport.Eventually(t, "it to share its rate limit by four pods", func() bool { return shares() == 4 })
	w.handleQuarantine()
	w.takeIDs(testtransport.Queue, 1)
	testtransport.Eventually(t, "the former group gone", func() bool {
		return !w.hasQueue("test.quarantine") && !w.hasQueue(testtransport.Queue) && len(w.deployments()) == 1
	})
}

// Whoever pauses a group does so because its partner must not be called: it got a quarantine pod by leaving the spec, and nothing said that nobody read its queue.
func TestTransport_AGroupThatLeavesTheSpecPausedStaysPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Workers[0].Replicas = new(int32(0))
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	w.awaitCount(testtransport.Queue, 1)
	w.quarantined()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues, t.Spec.Workers[0].Name, t.Spec.Workers[0].Replicas = t.Spec.Queues[1:], "main", new(int32(1))
	})
	w.awaitReady(transport)
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "wait until the group has replicas again: test.quarantine (1)")
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "no worker reads test.quarantine, test: ")
	if w.get(w.quarantine(transport)) {
		t.Error("it has a quarantine pod")
	}
	w.scale(workload.Name(transport, "default"), 1)
	w.awaitQuarantine(transport)
	w.handleQuarantine()
	w.takeIDs(testtransport.Queue, 1)
	w.eventually("the former group gone", func() bool { return len(w.deployments()) == 1 })
}

// An operator took configurations of a later one for none: what workers were emptying was read by nobody, and a group that had left the spec was deleted.
func TestTransport_AfterARollbackWorkersGoOnEmptying(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.ready()
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	w.awaitCount(testtransport.Queue, 1)
	former := workload.Name(transport, "default")
	rollBack := func(want ...string) {
		t.Helper()
		w.operator.stop()
		for _, configMap := range w.configMaps() {
			w.raiseVersion(&configMap)
		}
		w.operator.start(t, testcluster.Start(t))
		w.settle()
		if got := w.reads(former); !slices.Equal(got, want) {
			t.Errorf("workers read %v, want %v", got, want)
		}
	}
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = t.Spec.Queues[1:] })
	w.awaitReady(transport)
	rollBack("lost", testtransport.Queue)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Name = "main" })
	w.awaitReady(transport)
	testtransport.Eventually(t, "the former group to have no more than it is to empty", func() bool { return slices.Equal(w.reads(former), []string{testtransport.Queue}) })
	rollBack(testtransport.Queue)
	if got := len(w.deployments()); got != 2 {
		t.Errorf("there are %d Deployments", got)
	}
}

// raiseVersion has a configuration written by a later operator.
func (w *world) raiseVersion(configMap *corev1.ConfigMap) {
	w.Helper()
	var config map[string]any
	must(w.T, json.Unmarshal([]byte(configMap.Data[workload.ConfigKey]), &config))
	config["version"], config["later"] = compile.Version+1, true
	text, err := json.Marshal(config)
	must(w.T, err)
	edit(w, configMap, func(c *corev1.ConfigMap) {
		c.Data[workload.ConfigKey], c.Annotations[workload.ConfigHashAnnotation] = string(text), compile.Hash(text)
	})
}

// Nine groups are renamed, and renamed again before a pod of the new ones is available, as where an image cannot be pulled: eighteen have left the spec, and
// nine of them are all that handles messages.
func TestTransport_ManyGroupsThatAreRenamedTwiceGoOn(t *testing.T) {
	t.Parallel()
	const groups = 9
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	group := transport.Spec.Workers[0]
	transport.Spec.Queues, transport.Spec.Workers, transport.Spec.Exchange.UnroutedTo = nil, nil, nil
	for i := range groups {
		queue, next := fmt.Sprint("q-", i), *group.DeepCopy()
		next.Name, next.Queues = fmt.Sprint("first-", i), []string{queue}
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: queue, BindingKeys: []string{queue}})
		transport.Spec.Workers = append(transport.Spec.Workers, next)
	}
	w.create(transport)
	w.awaitReady(transport)
	for _, name := range []string{"second", "third"} {
		edit(w, transport, func(t *v1alpha1.Transport) {
			for i := range t.Spec.Workers {
				t.Spec.Workers[i].Name = fmt.Sprint(name, "-", i)
			}
		})
		w.eventually("the Deployments of the "+name+" names", func() bool {
			n := 0
			for _, deployment := range w.deployments() {
				if strings.HasPrefix(deployment.Labels[workload.WorkerLabel], name) {
					n++
				}
			}
			return n == groups
		})
		w.awaitLooks(4)
	}
	for i := range groups {
		name := workload.Name(transport, fmt.Sprint("first-", i))
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		if queue := fmt.Sprint("q-", i); !w.get(deployment) || !slices.Equal(w.reads(name), []string{queue}) {
			t.Errorf("queue %s: the Deployment of the group that reads it is there: %v, and reads %v", queue, w.get(deployment), w.reads(name))
		}
	}
}

// What is in the ConfigMap is lost then, and the pods go on with it: the Deployment was deleted before the next group had a pod, and nobody read the queue.
func TestTransport_AGroupThatIsRenamedGoesOnWithoutItsConfigMap(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*world, *corev1.ConfigMap){
		"deleted": func(w *world, c *corev1.ConfigMap) { w.deleteAll(c) },
		"changed": func(w *world, c *corev1.ConfigMap) {
			edit(w, c, func(c *corev1.ConfigMap) { c.Data[workload.ConfigKey] = "{}" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			former := w.deployment(transport)
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Name = "main" })
			w.eventually("the Deployment of the new name", func() bool { return len(w.deployments()) == 2 })
			w.settle()
			spoil(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: former.Name}})
			w.awaitLooks(4)
			if !w.get(former) {
				t.Fatal("its Deployment is gone, and no pod of the next name is available")
			}
			w.awaitReady(transport)
			w.awaitGone(former)
		})
	}
}
