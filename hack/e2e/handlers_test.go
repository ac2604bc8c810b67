//go:build e2e

package e2e

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcert"
)

const (
	// Secrets of a server that only its own worker can speak to: what it asks for, and what the worker has.
	serverName  = "server"
	headersName = "headers"

	// patient is the time for an attempt: on a busy machine a program starts slowly, and a timeout is a failure of another kind.
	patient = 30 * time.Second

	// sidecarsSince is the minor version of a cluster of which every node has native sidecars.
	sidecarsSince = 32
)

func execHandler() v1alpha1.Handler {
	return v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: []string{"/partner", "exec"}}}
}

func processHandler() v1alpha1.Handler {
	return v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: []string{"/partner", "process"}}}
}

func inProcessHandler() v1alpha1.Handler {
	return v1alpha1.Handler{InProcess: &v1alpha1.InProcessHandler{}}
}

// inTeamsImage has an image of the team's own run the worker: the partner's, which is told whom to report to.
func inTeamsImage(t *testing.T, handler v1alpha1.Handler) func(*v1alpha1.Transport) {
	return func(transport *v1alpha1.Transport) {
		worker := &transport.Spec.Workers[0]
		worker.Timeout = v1alpha1.NewDuration(patient)
		worker.Handler = handler
		worker.Handler.Image = new(suite.partnerImage)
		worker.Template = template(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{teamsContainer(transport)}}})
	}
}

func teamsContainer(transport *v1alpha1.Transport) corev1.Container {
	return corev1.Container{Name: "worker", Env: []corev1.EnvVar{
		{Name: "E2E_LEDGER", Value: suite.urlOf(ledgerName)},
		{Name: "E2E_SHOP", Value: strings.TrimPrefix(transport.Namespace, "e2e-")},
	}}
}

func TestExec_HandlesMessagesInTheTeamsImage(t *testing.T) {
	t.Parallel()
	checkTeamsImage(t, openShop(t, "exec", plan{change: inTeamsImage(t, execHandler())}))
}

func TestProcess_HandlesMessagesInTheTeamsImage(t *testing.T) {
	long(t)
	t.Parallel()
	checkTeamsImage(t, openShop(t, "process", plan{change: inTeamsImage(t, processHandler())}))
}

func TestInProcess_HandlesMessagesInTheTeamsImage(t *testing.T) {
	t.Parallel()
	checkTeamsImage(t, openShop(t, "in-process", plan{change: inTeamsImage(t, inProcessHandler())}))
}

func checkTeamsImage(t *testing.T, s *shop) {
	t.Helper()
	checkMixed(t, s, 200)
	for id, copies := range s.tally.failed {
		if class := copies[0].Headers["redrive-error-class"]; class != "Refusal" {
			t.Errorf("message %s failed with the class %v", id, class)
		}
	}
	for _, pod := range s.awaitPods(2, time.Minute) {
		checkRestricted(t, &pod)
		if image := containerOf(&pod, "worker").Image; image != suite.partnerImage {
			t.Errorf("the worker of pod %s runs in the image %s", pod.Name, image)
		}
	}
}

// containerOf a pod, an ordinary one or not; an empty one where there is none of that name.
func containerOf(pod *corev1.Pod, name string) corev1.Container {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == name {
			return c
		}
	}
	return corev1.Container{}
}

// TestProcess_FailsOnlyTheMessageThatKillsIt has others in the hand of each process that dies.
func TestProcess_FailsOnlyTheMessageThatKillsIt(t *testing.T) {
	t.Parallel()
	s := openShop(t, "crash", plan{change: inTeamsImage(t, processHandler())})
	before := s.awaitPods(2, time.Minute)
	parcels := []parcel{{id: "killer", answer: "die", pause: "50ms"}}
	for n := range 400 {
		parcels = append(parcels, parcel{id: numbered("other", n), pause: "100ms"})
	}
	total := s.tally.settle(s.publish(parcels...), time.Minute)
	if total.handled != 400 || total.failed != 1 || s.tally.reason("killer") != "MaxRetries" {
		t.Fatalf("sums are %s, and the one that kills failed for %q", total, s.tally.reason("killer"))
	}
	headers := s.tally.failed["killer"][0].Headers
	if headers["redrive-error-source"] != "Crash" || headers["redrive-error-class"] != "SIGKILL" {
		t.Errorf("the one that kills has the headers %v", headers)
	}
	// Who was with it may have been handled just before, and then twice; but by the count it was the first time.
	s.checkNoAttemptBurnt(2)
	if after := s.awaitPods(2, time.Minute); !sameRestarts(before, after) {
		t.Errorf("pods and restarts are %v, before %v", restarts(after), restarts(before))
	}
}

// checkNoAttemptBurnt holds what was answered to have been the first attempt, and so many times at most.
func (s *shop) checkNoAttemptBurnt(times int) {
	s.t.Helper()
	for id, entries := range s.tally.attempts {
		if last := entries[len(entries)-1]; last.Attempt != 1 || len(entries) > times {
			s.t.Errorf("message %s was answered %v, at last in attempt %d", id, s.tally.statuses(id), last.Attempt)
		}
	}
}

func TestQuarantine_HandlesMessagesOfAKilledTeamsImage(t *testing.T) {
	long(t)
	t.Parallel()
	checkQuarantine(t, openShop(t, "quarantine-exec", plan{change: inTeamsImage(t, execHandler())}))
}

// TestExec_FailsOnlyTheMessageThatEatsTheMemoryOfItsPod: the kernel ends the command, or with cgroups of version 2 all of its
// container, so that the quarantine pod has to find out who it was.
func TestExec_FailsOnlyTheMessageThatEatsTheMemoryOfItsPod(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "glutton", plan{change: func(transport *v1alpha1.Transport) {
		inTeamsImage(t, execHandler())(transport)
		container := teamsContainer(transport)
		container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("256Mi")}
		transport.Spec.Workers[0].Template = template(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}})
	}})
	parcels := []parcel{{id: "glutton", answer: "eat"}}
	for n := range 20 {
		parcels = append(parcels, parcel{id: numbered("guest", n), pause: "1s"})
	}
	total := s.tally.settle(s.publish(parcels...), 5*time.Minute)
	if total.handled != 20 || total.failed != 1 || len(s.tally.failed["glutton"]) != 1 {
		t.Fatalf("sums are %s, want all but the glutton handled", total)
	}
	headers := s.tally.failed["glutton"][0].Headers
	if s.tally.reason("glutton") != "PoisonCrash" && headers["redrive-error-class"] != "SIGKILL" {
		t.Errorf("the glutton has the headers %v", headers)
	}
}

// TestInProcess_FailsOnlyTheMessageThatKillsIt: nothing but the quarantine pod can tell who it was.
func TestInProcess_FailsOnlyTheMessageThatKillsIt(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "poison", plan{change: inTeamsImage(t, inProcessHandler())})
	parcels := []parcel{{id: "killer", answer: "die", pause: "200ms"}}
	for n := range 40 {
		parcels = append(parcels, parcel{id: numbered("other", n), pause: "500ms"})
	}
	total := s.tally.settle(s.publish(parcels...), 3*time.Minute)
	if total.handled != 40 || total.failed != 1 || s.tally.reason("killer") != "PoisonCrash" {
		t.Fatalf("sums are %s, and the one that kills failed for %q", total, s.tally.reason("killer"))
	}
	if headers := s.tally.failed["killer"][0].Headers; headers["redrive-crash-exit"] != "signal: killed" {
		t.Errorf("the one that kills has the headers %v", headers)
	}
	s.checkNoAttemptBurnt(2)
}

// TestRollout_ChangesImageAndCommandUnderLoad has a command in the new image that the old one does not have.
func TestRollout_ChangesImageAndCommandUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "next", plan{change: inTeamsImage(t, execHandler())})
	flow := s.startLoad(10, slow(s.name, 200*time.Millisecond))
	s.awaitHandled(50)
	s.update(func(transport *v1alpha1.Transport) {
		handler := &transport.Spec.Workers[0].Handler
		handler.Image, handler.Exec.Command = new(suite.nextImage), []string{"/next", "exec"}
	})
	s.awaitRollout("the next image only", func(pod *corev1.Pod) bool { return containerOf(pod, "worker").Image == suite.nextImage })
	s.awaitHandled(50)
	all := flow.stop()
	checkOnce(t, s.tally.settle(all, 2*time.Minute))
	checkFates(t, s, all)
	s.checkNothingMoved()
	// Pods of the old image were never without a command that they have.
	if events := s.events(v1alpha1.ReasonHandlerNotReady); len(events) > 0 {
		t.Errorf("there are the events %q", events)
	}
}

// TestRollout_KeepsTheHandlerOfAPodFromBefore has an image that no node can pull: the pods from before are all there is.
func TestRollout_KeepsTheHandlerOfAPodFromBefore(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "former", plan{})
	flow := s.startLoad(10, slow(s.name, 200*time.Millisecond))
	s.awaitHandled(50)
	before := s.awaitPods(2, time.Minute)
	var url string
	s.update(func(transport *v1alpha1.Transport) {
		handler := &transport.Spec.Workers[0].Handler
		url = handler.HTTP.URL
		handler.Image, handler.HTTP.URL = new("localhost/redrive-e2e-absent:1"), "http://127.0.0.1:1/"
	})
	await(t, time.Minute, "the pod that cannot start", func() (bool, any) {
		pods, err := s.pods(t.Context())
		return len(pods) == 3, fmt.Sprint(len(pods), err)
	})
	for i := range before {
		must(t, suite.kill(t.Context(), s.namespace, before[i].Name))
	}
	await(t, 2*time.Minute, "two pods like those before", func() (bool, any) {
		pods, err := s.pods(t.Context())
		fresh := slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
			return !podReady(&pod) || pod.UID == before[0].UID || pod.UID == before[1].UID
		})
		return len(fresh) == 2, fmt.Sprint(len(fresh), err)
	})
	s.awaitHandled(50)
	s.update(func(transport *v1alpha1.Transport) {
		handler := &transport.Spec.Workers[0].Handler
		handler.Image, handler.HTTP.URL = nil, url
	})
	s.awaitPods(2, time.Minute)
	s.awaitHandled(20)
	s.tally.settle(flow.stop(), 2*time.Minute)
	for id, letters := range s.tally.failed {
		if headers := letters[0].Headers; headers["redrive-error-status"] == nil {
			t.Errorf("message %s did not fail for an answer of the partner, but with the headers %v", id, headers)
		}
	}
}

// events of a reason in the shop's namespace.
func (s *shop) events(reason string) (notes []string) {
	s.t.Helper()
	var all eventsv1.EventList
	must(s.t, suite.client.List(s.t.Context(), &all, client.InNamespace(s.namespace)))
	for i := range all.Items {
		if all.Items[i].Reason == reason {
			notes = append(notes, all.Items[i].Note)
		}
	}
	return notes
}

// serverBeside runs the partner in the worker's pod as the image of its handler. It speaks TLS with a certificate of an
// authority of the shop's own, on a socket if one is given, and answers nobody who does not have its token.
func serverBeside(t *testing.T, socket string) func(*v1alpha1.Transport) {
	from := func(variable, key string) corev1.EnvVar {
		return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: serverName}, Key: key,
		}}}
	}
	return func(transport *v1alpha1.Transport) {
		address := fmt.Sprintf("127.0.0.1:%d", programPort)
		base := "https://" + address + "/"
		worker := &transport.Spec.Workers[0]
		worker.Timeout = v1alpha1.NewDuration(patient)
		worker.Handler = v1alpha1.Handler{
			Image: new(suite.partnerImage),
			HTTP: &v1alpha1.HTTPHandler{
				URL:              base + strings.TrimPrefix(transport.Namespace, "e2e-"),
				ReadinessURL:     new(base + "healthz"),
				HeadersSecretRef: &v1alpha1.LocalReference{Name: headersName},
				TLS:              &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: serverName}},
			},
		}
		if socket != "" {
			worker.Handler.HTTP.UnixSocket = &socket
		}
		worker.Template = template(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "handler",
			Args: []string{"partner", "-to=" + suite.urlOf(ledgerName), "-listen=" + cmp.Or(socket, address)},
			Env:  []corev1.EnvVar{from("E2E_AUTHORIZATION", "authorization"), from("E2E_CERTIFICATE", "tls.crt"), from("E2E_KEY", "tls.key")},
		}}}})
	}
}

// newServer is a shop with a server beside the worker. allow gives the worker what that asks for.
func newServer(t *testing.T, name, socket string) (s *shop, allow func()) {
	t.Helper()
	s = newShop(t, name, plan{change: serverBeside(t, socket)})
	token := rand.Text()
	suite.secrets.add("worker at the server of "+s.name, "", "Bearer "+token, token)
	authority := testcert.NewAuthority(t, s.name)
	pair := authority.Issue(t, "127.0.0.1")
	headers := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: headersName},
		StringData: map[string]string{"Authorization": "Bearer of another"},
	}
	must(t, suite.create(t.Context(), headers, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: serverName},
		StringData: map[string]string{
			"authorization": "Bearer " + token, "ca.crt": string(authority.PEM), "tls.crt": string(pair.Cert), "tls.key": string(pair.Key),
		},
	}))
	return s, func() {
		t.Helper()
		headers.StringData = map[string]string{"Authorization": "Bearer " + token}
		must(t, suite.client.Update(t.Context(), headers))
	}
}

func TestHTTP_KeepsMessagesWaitingForAServerBesideTheWorker(t *testing.T) {
	t.Parallel()
	s, allow := newServer(t, "server", "")
	s.open()
	await(t, readyWithin, "the Transport to say why no message is taken", func() (bool, any) {
		transport, err := s.read(t.Context())
		if err != nil {
			return false, err
		}
		c := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition)
		return c != nil && c.Reason == v1alpha1.ReasonHandlerNotReady && strings.Contains(c.Message, strconv.Itoa(http.StatusUnauthorized)),
			transport.Status.Conditions
	})
	parcels := make([]parcel, 100)
	for n := range parcels {
		parcels[n] = parcel{id: numbered("wait", n)}
	}
	all := s.publish(parcels...)
	if waiting, err := s.count(ordersQueue); err != nil || waiting != len(all) {
		t.Errorf("%d messages wait, %v, want all %d", waiting, err, len(all))
	}

	allow()
	began := time.Now()
	s.awaitReady(readyWithin)
	t.Logf("ready %s after the Secret was right", time.Since(began).Round(100*time.Millisecond))
	checkOnce(t, s.tally.settle(all, time.Minute))
	s.checkNoAttemptBurnt(1)
	for _, pod := range s.awaitPods(2, time.Minute) {
		checkRestricted(t, &pod)
		checkSidecar(t, &pod)
	}
}

// checkSidecar holds the server to start before the worker and to end after it, where the cluster can do that.
func checkSidecar(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	version, err := suite.clientset.Discovery().ServerVersion()
	must(t, err)
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	must(t, err)
	native := ptr.Deref(containerOf(pod, "handler").RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
	if native != (minor >= sidecarsSince) {
		t.Errorf("in Kubernetes 1.%d the server of pod %s is a native sidecar: %t", minor, pod.Name, native)
	}
}

// TestSidecar_OutlivesTheWorker rolls the pods while each has messages in hand.
func TestSidecar_OutlivesTheWorker(t *testing.T) {
	long(t)
	t.Parallel()
	s, allow := newServer(t, "outlive", "/run/server/https.sock")
	allow()
	s.open()
	s.awaitReady(readyWithin)
	flow := s.startLoad(20, slow(s.name, 500*time.Millisecond))
	s.awaitHandled(50)
	before := restarts(s.awaitPods(2, time.Minute))
	s.kubectl("rollout", "restart", "deployment", "--selector", "redrive.dev/transport="+transportName)
	s.awaitRollout("after the restart only", func(pod *corev1.Pod) bool {
		_, there := before[string(pod.UID)+"/worker"]
		return !there
	})
	s.awaitHandled(50)
	all := flow.stop()
	checkOnce(t, s.tally.settle(all, 2*time.Minute))
	checkFates(t, s, all) // where the server had ended first, attempts would be missing
	s.checkNothingMoved()
}
