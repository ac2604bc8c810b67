package quarantinepod

import (
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

func TestWanted_HoldsWhileMessagesMayBeInQuarantine(t *testing.T) {
	now := time.Now()
	const stay = 5 * time.Minute
	aged := func(age time.Duration) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))}}
	}
	tests := map[string]struct {
		replicas *int32
		live     *appsv1.Deployment
		queues   []string
		counts   Counts
		want     bool
	}{
		"no quarantined messages, and no pod":                    {queues: []string{"a", "b"}, counts: Counts{"a": 0, "b": 0}},
		"quarantined messages in one queue":                      {queues: []string{"a", "b"}, counts: Counts{"a": 0, "b": 1}, want: true},
		"quarantined messages in one queue, another not counted": {queues: []string{"a", "b"}, counts: Counts{"b": 1}, want: true},
		"quarantined messages of another group":                  {queues: []string{"a"}, counts: Counts{"a": 0, "b": 1}},
		"nothing is counted, and no pod":                         {queues: []string{"a"}, counts: Counts{}},
		"nothing is counted, and a pod":                          {live: aged(time.Hour), queues: []string{"a"}, counts: Counts{}, want: true},
		"a broker that counts nothing at all":                    {queues: []string{"a"}, want: true},
		"the same, and no queue that may have any":               {},
		"the same, and a group that is stopped":                  {replicas: ptr.To[int32](0), queues: []string{"a"}},
		"one queue is not counted, and a pod":                    {live: aged(time.Hour), queues: []string{"a", "b"}, counts: Counts{"a": 0}, want: true},
		"no quarantined messages any more, and a young pod":      {live: aged(stay - time.Second), queues: []string{"a"}, counts: Counts{"a": 0}, want: true},
		"no quarantined messages any more, and an old pod":       {live: aged(stay), queues: []string{"a"}, counts: Counts{"a": 0}},
		"quarantined messages, and an old pod":                   {live: aged(time.Hour), queues: []string{"a"}, counts: Counts{"a": 9}, want: true},
		"no queue that may have any, and an old pod":             {live: aged(time.Hour), counts: Counts{}},
		"quarantined messages of a group that is stopped":        {replicas: ptr.To[int32](0), live: aged(0), queues: []string{"a"}, counts: Counts{"a": 1}},
		"quarantined messages of a group that runs":              {replicas: ptr.To[int32](3), queues: []string{"a"}, counts: Counts{"a": 1}, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			group := Group{Worker: &v1alpha1.Worker{Replicas: tt.replicas}, Queues: tt.queues}
			if got := group.Wanted(tt.live, tt.counts, now, stay); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTrouble_TellsOfAPodThatDoesNotGetReady(t *testing.T) {
	now := time.Now()
	ago := func(age time.Duration) metav1.Time { return metav1.NewTime(now.Add(-age)) }
	const unready = "its pod is not ready: look at its log for a right or a connection that is missing"
	tests := map[string]struct {
		created     metav1.Time
		unavailable metav1.Time
		cause       string
		want        string
	}{
		"a young one":                            {created: ago(startLimit - time.Second), unavailable: ago(startLimit - time.Second)},
		"one whose Deployment has no status yet": {created: ago(startLimit), want: unready},
		"one that was never ready":               {created: ago(time.Hour), unavailable: ago(time.Hour), want: unready},
		"one that was ready until a moment ago":  {created: ago(time.Hour), unavailable: ago(time.Second)},
		"a young one that cannot start":          {created: ago(time.Second), cause: ": no room", want: "its Deployment quarantine does not start: no room"},
		"an old one that cannot start":           {created: ago(time.Hour), cause: ": no room", want: "its Deployment quarantine does not start: no room"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			live := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "quarantine", CreationTimestamp: tt.created}}
			live.Status.Conditions = []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, LastTransitionTime: tt.unavailable},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, LastTransitionTime: ago(0)},
			}
			if got := Trouble(live, tt.cause, now); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// publishedOf is the ConfigMap of a configuration with a queue that has a quarantine queue, and one that has not.
func publishedOf(t *testing.T, transport *v1alpha1.Transport, config compile.Config) *corev1.ConfigMap {
	t.Helper()
	config.Version, config.Worker, config.Concurrency = compile.Version, "default", 1
	config.Exchanges = compile.Exchanges{Fallback: "async.fallback", Return: "async.return", Failed: "async.failed"}
	config.Queues = []compile.Queue{{Name: "test", Policy: "policy", Quarantine: "test.quarantine"}, {Name: "strict", Policy: "policy"}}
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": {}}
	config.Timeout.Duration.Duration = time.Second
	configMap, err := workload.ConfigMap(transport, config)
	if err != nil {
		t.Fatal(err)
	}
	return configMap
}

func TestGroups_AreThoseWhoseWorkersStay(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "default"}}
	name := workload.Name(transport, "default")
	ending := metav1.Now()
	tests := map[string]struct {
		change func(*workload.Live)
		want   bool
	}{
		"workers that are there":                          {func(*workload.Live) {}, true},
		"workers that are being deleted":                  {func(l *workload.Live) { l.Deployments[name].DeletionTimestamp = &ending }, false},
		"workers that are gone":                           {func(l *workload.Live) { delete(l.Deployments, name) }, false},
		"workers whose configuration is not published":    {func(l *workload.Live) { delete(l.ConfigMaps, name) }, false},
		"workers whose configuration was edited, by hand": {func(l *workload.Live) { l.ConfigMaps[name].Data[workload.ConfigKey] += " " }, false},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			configMap := publishedOf(t, transport, compile.Config{})
			live := &workload.Live{
				Deployments: map[string]*appsv1.Deployment{name: {}}, ConfigMaps: map[string]*corev1.ConfigMap{name: configMap},
			}
			tt.change(live)
			groups := Groups(transport, live)
			if got := len(groups) == 1 && slices.Equal(groups[0].Queues, []string{"test.quarantine"}); got != tt.want || !got && len(groups) > 0 {
				t.Errorf("got %+v", groups)
			}
		})
	}
}

func TestCountsOwned_LeavesOutQueuesOfAnotherOwner(t *testing.T) {
	queue := func(owner string, messages *int64) topology.QueueState {
		return topology.QueueState{Evidence: topology.Evidence{Messages: messages}, Queue: topology.Queue{Arguments: topology.Arguments{topology.OwnerArgument: owner}}}
	}
	observed := &topology.Observed{Queues: map[string]topology.QueueState{
		"ours": queue("us", ptr.To[int64](1)), "new": queue("us", nil), "theirs": queue("them", ptr.To[int64](2)), "other": queue("us", ptr.To[int64](3)),
	}}
	got := CountsOwned([]Group{{Queues: []string{"ours", "new"}}, {Queues: []string{"theirs", "gone"}}}, observed, "us")
	if want := (Counts{"ours": 1}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
