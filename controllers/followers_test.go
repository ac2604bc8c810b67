package controllers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// paged is an API server with pods, which gives out so many as it is asked for.
type paged struct {
	client.Reader

	pods    []corev1.Pod
	largest int
	lists   int
}

// List implements client.Reader.
func (p *paged) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	all := client.ListOptions{}
	all.ApplyOptions(options)
	from, _ := strconv.Atoi(all.Continue)
	to := len(p.pods)
	if all.Limit > 0 {
		to = min(to, from+int(all.Limit))
	}
	pods := list.(*corev1.PodList)
	pods.Items, pods.Continue = p.pods[from:to], ""
	if to < len(p.pods) {
		pods.Continue = strconv.Itoa(to)
	}
	p.lists, p.largest = p.lists+1, max(p.largest, len(pods.Items))
	return nil
}

// All pods of a Transport were read at once, and a goroutine was begun for each.
func TestAllPodsOfAnExchangeAreAskedPageByPage(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"configHash":"new"}`) }))
	t.Cleanup(worker.Close)
	host, text, err := net.SplitHostPort(worker.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{workload.WorkerLabel: "default"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: workload.PortName, ContainerPort: int32(port)}}}}},
		Status:     corev1.PodStatus{PodIP: host, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	leaving, starting, over := *pod.DeepCopy(), *pod.DeepCopy(), *pod.DeepCopy()
	leaving.DeletionTimestamp, starting.Status.PodIP, over.Status.Phase = &metav1.Time{Time: time.Now()}, "", corev1.PodSucceeded
	const many = 2*tenancy.PodsPage + 1
	tests := map[string]struct {
		last, first     corev1.Pod
		hash            string
		dissent, silent bool
		lists           int
	}{
		"all have it":                {last: pod, first: pod, hash: "new", lists: 3},
		"the last one goes":          {last: leaving, first: pod, hash: "new", dissent: true, lists: 3},
		"the first one goes":         {last: pod, first: leaving, hash: "new", dissent: true, lists: 1},
		"the last one has not begun": {last: starting, first: pod, hash: "new", silent: true, lists: 3},
		"the last one has ended":     {last: over, first: pod, hash: "new", lists: 3},
		"they have another one":      {last: pod, first: pod, hash: "newer", dissent: true, lists: 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := &paged{pods: make([]corev1.Pod, many)}
			for i := range server.pods {
				server.pods[i] = pod
			}
			server.pods[0], server.pods[many-1] = tt.first, tt.last
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workload.ConfigHashAnnotation: tt.hash}}}
			run := &transportRun{transport: transport}
			run.live.ConfigMaps = map[string]*corev1.ConfigMap{workload.Name(transport, "default"): configMap}
			f := &rolloutCheck{r: &TransportReconciler{Live: server, scraper: workerstatus.NewScraper(0)}, run: run}
			if err := f.ask(t.Context()); err != nil || f.dissent != tt.dissent || f.silent != tt.silent {
				t.Errorf("dissent %v, silent %v, %v", f.dissent, f.silent, err)
			}
			if server.largest > tenancy.PodsPage || server.lists != tt.lists {
				t.Errorf("%d lists, of at most %d pods; want %d of %d", server.lists, server.largest, tt.lists, tenancy.PodsPage)
			}
		})
	}
}

// Pods were read a hundred at a time: those of one Transport, with a megabyte each, ended the operator.
func TestPodsAreReadAFewAtATime(t *testing.T) {
	t.Parallel()
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: workload.Selector(transport, "default")}
	for name, tt := range map[string]struct {
		read func(r *TransportReconciler) error
		most int
	}{
		"for their status": {func(r *TransportReconciler) error {
			_, err := r.hearGroups(t.Context(), r.scraper, transport, map[string]int32{"default": 1}, time.Now())
			return err
		}, 2 * workerstatus.MaxPodsAsked},
		"for why they do not start": {func(r *TransportReconciler) error {
			_, err := r.rolloutCause(t.Context(), deployment)
			return err
		}, rollout.MaxPodsRead},
	} {
		server := &paged{pods: make([]corev1.Pod, 4*workerstatus.MaxPodsAsked)}
		if err := tt.read(&TransportReconciler{Live: server, scraper: workerstatus.NewScraper(0)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if server.largest != tenancy.PodsPage || server.lists != tt.most/tenancy.PodsPage {
			t.Errorf("%s: %d lists, of at most %d pods", name, server.lists, server.largest)
		}
	}
}
