package workerstatus

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// All pods of a Transport were read at once, and a goroutine was begun for each.
func TestFollowers_AskAllPodsOfATransportPageByPage(t *testing.T) {
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
	leaving.DeletionTimestamp, starting.Status.PodIP, over.Status.Phase = &metav1.Time{Time: time.Now().Add(time.Minute)}, "", corev1.PodSucceeded
	const many = 2*tenancy.Page + 1
	tests := map[string]struct {
		last, first     corev1.Pod
		hash            string
		dissent, silent bool
		leaving         bool
		lists           int
	}{
		"all have it":                {last: pod, first: pod, hash: "new", lists: 3},
		"the last one goes":          {last: leaving, first: pod, hash: "new", leaving: true, lists: 3},
		"the first one goes":         {last: pod, first: leaving, hash: "new", leaving: true, lists: 3},
		"the last one has not begun": {last: starting, first: pod, hash: "new", silent: true, lists: 3},
		"the last one has ended":     {last: over, first: pod, hash: "new", lists: 3},
		"they have another one":      {last: pod, first: pod, hash: "newer", dissent: true, lists: 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := &testtransport.Pods{All: make([]corev1.Pod, many)}
			for i := range server.All {
				server.All[i] = pod
			}
			server.All[0], server.All[many-1] = tt.first, tt.last
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workload.ConfigHashAnnotation: tt.hash}}}
			live, reader := &workload.Live{ConfigMaps: map[string]*corev1.ConfigMap{workload.Name(transport, "default"): configMap}}, &tenancy.Reader{}
			f := &Followers{
				Scraper: NewScraper(0), Transport: transport, Live: live,
				Grace: time.Minute, Now: time.Now(),
				Pods: func(visit func(*corev1.Pod) (more bool)) error {
					return reader.Pods(t.Context(), server, "shop", workload.TransportLabels(transport), visit)
				},
			}
			if err := f.ask(t.Context()); err != nil || (f.dissent != "") != tt.dissent || (f.silent != "") != tt.silent || (f.leaving != "") != tt.leaving {
				t.Errorf("dissent %q, silent %q, leaving %q, %v", f.dissent, f.silent, f.leaving, err)
			}
			if server.Largest > tenancy.Page || server.Lists != tt.lists {
				t.Errorf("%d lists, of at most %d pods; want %d of %d", server.Lists, server.Largest, tt.lists, tenancy.Page)
			}
		})
	}
}

// A pod on a lost node is being deleted for ever, and where an autoscaler takes pods away faster than they end there is always one.
func TestFollowers_APodThatIsBeingDeletedKeepsNoQueueForEver(t *testing.T) {
	t.Parallel()
	const grace = 10 * time.Minute
	pod := func(until time.Duration) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "async-default-x", Labels: map[string]string{workload.WorkerLabel: "default"}, DeletionTimestamp: &metav1.Time{Time: time.Now().Add(until)},
			},
			Spec: corev1.PodSpec{NodeName: "n1"},
		}
	}
	tests := map[string]struct {
		reads  compile.Reading
		pod    *corev1.Pod
		since  time.Duration
		follow bool
		text   string
	}{
		"no order, and it ends":            {compile.ReadsBoth, pod(time.Minute), 0, true, ""},
		"an order, while the old queue is": {compile.ReadsQueue, pod(time.Minute), 0, true, ""},
		"an order, when it is made anew": {
			compile.ReadsStandin, pod(time.Minute), 72 * time.Hour, false, "pod async-default-x on node n1 is being deleted and has until ",
		},
		"it was to end, but not long ago":    {compile.ReadsStandin, pod(-time.Minute), 72 * time.Hour, false, "if its node is lost, delete it by force"},
		"its node was lost days ago":         {compile.ReadsStandin, pod(-71 * time.Hour), 72 * time.Hour, true, ""},
		"its node was lost before all began": {compile.ReadsStandin, pod(-71 * time.Hour), time.Minute, false, "if its node is lost, delete it by force"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
			since := metav1.NewTime(time.Now().Add(-tt.since))
			transport.Status.Migrations = []v1alpha1.Migration{{Queue: "test", Since: &since}}
			configMap := &corev1.ConfigMap{}
			f := &Followers{
				Scraper: NewScraper(0), Transport: transport, Grace: grace, Now: time.Now(),
				Live: &workload.Live{ConfigMaps: map[string]*corev1.ConfigMap{workload.Name(transport, "default"): configMap}},
				Pods: func(visit func(*corev1.Pod) (more bool)) error { visit(tt.pod); return nil },
			}
			if got := f.Follow(t.Context(), "test", tt.reads); got != tt.follow || !strings.Contains(f.Awaited, tt.text) || (f.Awaited == "") != tt.follow {
				t.Errorf("follow %v, awaited %q", got, f.Awaited)
			}
		})
	}
}
