//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func keyOf(object client.Object) client.ObjectKey { return client.ObjectKeyFromObject(object) }

func TestWorkers_ScaleUnderLoad(t *testing.T) {
	t.Parallel()
	s := openShop(t, "scale", plan{})
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	steps := []int32{5, 0, 2}
	if suite.short {
		steps = []int32{0, 2}
	}
	for _, replicas := range steps {
		s.scale(replicas)
		s.awaitPods(int(replicas), time.Minute)
		s.awaitReady(time.Minute)
		if replicas == 0 {
			await(t, 30*time.Second, "messages that wait for workers", func() (bool, any) {
				waiting, err := s.count(ordersQueue)
				return waiting > 60, fmt.Sprint(waiting, err)
			})
		}
		s.awaitHandled(20)
	}
	checkOnce(t, s.tally.settle(flow.stop(), time.Minute))
}

// checkOnce holds workers that were stopped in peace to handle nothing twice.
func checkOnce(t *testing.T, total sums) {
	t.Helper()
	if total.duplicated > 0 {
		t.Errorf("sums are %s, want none handled twice", total)
	}
}

// awaitHandled waits until some more messages were handled, where there are workers.
func (s *shop) awaitHandled(more int) {
	s.t.Helper()
	if transport, err := s.read(s.t.Context()); err != nil || *transport.Spec.Workers[0].Replicas == 0 {
		must(s.t, err)
		return
	}
	await(s.t, time.Minute, "the count", func() (bool, any) { // the broker may have just come back
		err := s.tally.refresh(s.t.Context())
		return err == nil, err
	})
	s.tally.awaitEntries(time.Minute, "more messages to be handled", len(s.tally.attempts)+more, func(string) bool { return true })
}

func TestRollout_ReplacesPodsUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "rolling", plan{})
	flow := s.startLoad(60, slow(s.name, 200*time.Millisecond))
	before := s.awaitPods(2, time.Minute)
	for _, version := range []string{"2", "3"} {
		s.update(func(transport *v1alpha1.Transport) {
			transport.Spec.Workers[0].Template = template(t, corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"shop.example/version": version}},
			})
		})
		s.awaitRollout("version "+version+" only", func(pod *corev1.Pod) bool { return pod.Annotations["shop.example/version"] == version })
	}
	s.awaitHandled(20)
	checkOnce(t, s.tally.settle(flow.stop(), time.Minute))
	s.checkNothingMoved()
	for uid := range restarts(s.awaitPods(2, time.Minute)) {
		if _, there := restarts(before)[uid]; there {
			t.Errorf("pod %s was there before", uid)
		}
	}
}

// awaitRollout waits until there are two ready pods that are as they should be, and no others.
func (s *shop) awaitRollout(what string, is func(*corev1.Pod) bool) {
	s.t.Helper()
	await(s.t, 2*time.Minute, "pods of "+what, func() (bool, any) {
		pods, err := s.pods(s.t.Context())
		if err != nil || len(pods) != 2 {
			return false, fmt.Sprint(len(pods), " pods ", err)
		}
		ready := func(pod *corev1.Pod) bool { return podReady(pod) && is(pod) }
		return ready(&pods[0]) && ready(&pods[1]), "not all are new and ready"
	})
}

// checkNothingMoved fails where a message was taken for one that ended its worker.
func (s *shop) checkNothingMoved() {
	s.t.Helper()
	var queues []struct {
		Name  string `json:"name"`
		Stats struct {
			Published int `json:"publish"`
		} `json:"message_stats"` //nolint:tagliatelle // the broker's name
	}
	must(s.t, s.broker.manage(s.t.Context(), http.MethodGet, apiPath("queues", s.vhost), nil, &queues))
	for _, q := range queues {
		if strings.HasSuffix(q.Name, ".quarantine") && q.Stats.Published > 0 {
			s.t.Errorf("%d messages were moved to %s", q.Stats.Published, q.Name)
		}
	}
}

func TestQuarantine_HandlesMessagesOfAKilledWorker(t *testing.T) {
	t.Parallel()
	checkQuarantine(t, openShop(t, "quarantine", plan{}))
}

// checkQuarantine kills a worker and looks what becomes of what it had in hand.
func checkQuarantine(t *testing.T, s *shop) {
	t.Helper()
	parcels := make([]parcel, 60)
	for n := range parcels {
		parcels[n] = parcel{id: numbered("held", n), pause: "1s"}
	}
	all := s.publish(parcels...)
	s.awaitHandled(1)
	before := s.awaitPods(2, time.Minute)
	must(t, suite.kill(t.Context(), s.namespace, before[0].Name))
	await(t, 2*time.Minute, "a quarantine pod", func() (bool, any) {
		pods, err := s.podsWith(t.Context(), "redrive.dev/quarantine")
		return err == nil && len(pods) == 1 && podReady(&pods[0]), fmt.Sprint(len(pods), err)
	})
	s.tally.settle(all, 2*time.Minute)
	s.awaitReady(time.Minute)
	s.awaitPods(2, time.Minute)
}

// TestWorker_HandlesLargeMessagesInLittleMemory gives the worker less memory than the messages that it might hold take.
func TestWorker_HandlesLargeMessagesInLittleMemory(t *testing.T) {
	t.Parallel()
	s := openShop(t, "large", plan{change: little(t, "48Mi")})
	before := s.awaitPods(1, time.Minute)
	total := s.tally.settle(s.publish(bigParcels(50, 2<<20)...), 4*time.Minute)
	if after := s.awaitPods(1, time.Minute); total.handled != 50 || !sameRestarts(before, after) {
		t.Errorf("sums are %s, pods and restarts are %v, before %v", total, restarts(after), restarts(before))
	}
}

// TestWorker_LosesNothingWhenKilledForItsMemory gives the worker less memory than it needs for a single message.
func TestWorker_LosesNothingWhenKilledForItsMemory(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "oom", plan{change: little(t, "32Mi")})
	all := s.publish(bigParcels(10, 12<<20)...)
	s.awaitOOMKill("worker", time.Minute)
	s.update(func(transport *v1alpha1.Transport) { transport.Spec.Workers[0].Template = memoryLimit(t, "1Gi") })
	s.tally.settle(all, 4*time.Minute)
}

// little gives the one worker there is so much memory, and as many messages at a time as it likes.
func little(t *testing.T, limit string) func(*v1alpha1.Transport) {
	return func(transport *v1alpha1.Transport) {
		worker := &transport.Spec.Workers[0]
		worker.Replicas, worker.Concurrency = ptr.To[int32](1), ptr.To[int32](100)
		worker.Template = memoryLimit(t, limit)
	}
}

// bigParcels are messages of so many bytes each.
func bigParcels(number, size int) []parcel {
	parcels := make([]parcel, number)
	for n := range parcels {
		parcels[n] = parcel{id: numbered("big", n), pause: "1s", body: bytes.Repeat([]byte("x"), size)}
	}
	return parcels
}

func memoryLimit(t *testing.T, limit string) *runtime.RawExtension {
	t.Helper()
	return template(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "worker", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: quantity("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: quantity(limit)},
		},
	}}}})
}

// awaitOOMKill waits until the kernel ended a container of a worker pod for its memory.
func (s *shop) awaitOOMKill(container string, limit time.Duration) {
	s.t.Helper()
	await(s.t, limit, "the container "+container+" to be killed for its memory", func() (bool, any) {
		pods, err := s.pods(s.t.Context())
		if err != nil {
			return false, err
		}
		var last []string
		for i := range pods {
			for _, status := range pods[i].Status.ContainerStatuses {
				for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
					if status.Name == container && ended != nil {
						last = append(last, ended.Reason)
					}
				}
			}
		}
		return slices.Contains(last, "OOMKilled"), fmt.Sprintf("ended for %q", last)
	})
}

// TestWorker_GoesOnWhenItsHandlerIsKilledForMemory lets a handler beside the worker eat what it gets; the worker goes on.
func TestWorker_GoesOnWhenItsHandlerIsKilledForMemory(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "hungry", plan{
		change: func(transport *v1alpha1.Transport) {
			beside(t)(transport)
			worker := &transport.Spec.Workers[0]
			worker.Replicas, worker.Template = ptr.To[int32](1), handlerBeside(t, "64Mi")
		},
		// The handler's container may take a while to come back.
		policy: &v1alpha1.RetryPolicySpec{MaxRetries: ptr.To[int32](30), Backoff: constant(2 * time.Second)},
	})
	parcels := []parcel{{id: "glutton", answer: "eat,200"}}
	for n := range 50 {
		parcels = append(parcels, parcel{id: numbered("guest", n), pause: "50ms"})
	}
	all := s.publish(parcels...)
	s.awaitOOMKill("handler", time.Minute)
	total := s.tally.settle(all, 2*time.Minute)
	if total.handled != len(all) {
		t.Errorf("sums are %s, want all handled", total)
	}
	for _, pod := range s.awaitPods(1, time.Minute) {
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name == "worker" && status.RestartCount > 0 {
				t.Errorf("the worker restarted %d times with its handler", status.RestartCount)
			}
		}
	}
}

// TestWorker_GoesOnWhileTheKubeletIsKilled is not run beside others: no pod starts or ends meanwhile.
func TestWorker_GoesOnWhileTheKubeletIsKilled(t *testing.T) {
	long(t)
	if suite.kubelet == "" {
		t.Skip("E2E_KUBELET names no program that stops and starts the node's kubelet")
	}
	if suite.hostIP == "" {
		t.Skip("RabbitMQ runs in the cluster, and the suite reaches it through the kubelet only")
	}
	s := openShop(t, "kubelet", plan{})
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	before := s.awaitPods(2, time.Minute)
	s.awaitHandled(50)

	kubelet(t, "stop")
	running := false
	t.Cleanup(func() {
		if !running {
			_ = exec.Command(suite.kubelet, "start").Run()
		}
	})
	must(t, suite.kill(t.Context(), s.namespace, before[0].Name))
	s.scale(3)
	s.awaitHandled(300)
	kubelet(t, "start")
	running = true

	after := s.awaitPods(3, 2*time.Minute)
	s.awaitReady(time.Minute)
	s.awaitHandled(20)
	s.tally.settle(flow.stop(), 3*time.Minute)
	for container, count := range restarts(before[1:]) {
		if again, there := restarts(after)[container]; !there || again != count {
			t.Errorf("container %s has %d restarts, and %d before the kubelet was killed", container, again, count)
		}
	}
}

func kubelet(t *testing.T, verb string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if output, err := exec.CommandContext(ctx, suite.kubelet, verb).CombinedOutput(); err != nil {
		t.Fatalf("%s the kubelet: %v\n%s", verb, err, output)
	}
}
