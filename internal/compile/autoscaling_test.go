package compile_test

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// scaling is a Transport with an ordinary queue, one of a single active consumer and one of Strict ordering, and a group that has some.
func scaling(most int32, queues ...string) *v1alpha1.Transport {
	t := &v1alpha1.Transport{}
	t.Namespace, t.Name = "shop", "async"
	t.Spec.Queues = []v1alpha1.Queue{
		{Name: "plain"}, {Name: "single", SingleActiveConsumer: new(true)}, {Name: "strict", Ordering: &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}},
	}
	t.Spec.Workers = []v1alpha1.Worker{{
		Name: "default", Queues: queues, Autoscaling: &v1alpha1.Autoscaling{Max: most},
		Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1/"}},
	}}
	return t
}

func TestCompile_RefusesMorePodsThanQueuesOfOneConsumer(t *testing.T) {
	for name, tt := range map[string]struct {
		max    int32
		queues []string
		refuse string
	}{
		"a queue that all share":                {100, []string{"plain"}, ""},
		"beside others, one that all share":     {100, nil, ""},
		"one pod for one queue":                 {1, []string{"strict"}, ""},
		"a pod for each of two":                 {2, []string{"strict", "single"}, ""},
		"a pod more than Strict queues":         {2, []string{"strict"}, "spec.workers[0].autoscaling.max is 2"},
		"a pod more than queues of one pod":     {3, []string{"strict", "single"}, "max can be 2 at most"},
		"a group whose queues are not there is": {5, []string{"other"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compile.Compile(scaling(tt.max, tt.queues...), nil)
			if (err == nil) != (tt.refuse == "") || err != nil && !strings.Contains(err.Error(), tt.refuse) {
				t.Errorf("the error is %v, want %q", err, tt.refuse)
			}
		})
	}
}

func TestScaling_HasDefaultsAndCountsTheMessagesOfItsQueues(t *testing.T) {
	transport := scaling(10)
	worker := &transport.Spec.Workers[0]
	got, ok := compile.ScalingOf(worker)
	if want := (compile.Scaling{Min: 1, Max: 10, MessagesPerPod: 100}); !ok || got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
	messages := map[string]int64{"plain": 250, "before": 3, "single": 40, "single.migrating": 80, "strict": 7, "gone": 20, "other": 9, "plain.quarantine": 5}
	count := func(queue string) int64 { return messages[queue] }
	queues := []compile.Queue{
		{Name: "plain", Standin: "before", Quarantine: "plain.quarantine"},
		{Name: "single", SingleActiveConsumer: true, Standin: "single.migrating", Reads: compile.ReadsQueue},
		{Name: "strict", Strict: v1alpha1.OnFailureBlock},
		{Name: "gone", Leaving: true},
		{Name: "other", Quarantine: "other.quarantine", Leaving: true, Reads: compile.ReadsQuarantine},
	}
	if n := compile.Demand(queues, got, count); n != 250+3+100+7+20 {
		t.Errorf("the demand is %d", n)
	}
	worker.Autoscaling = nil
	if _, ok := compile.ScalingOf(worker); ok {
		t.Error("it is scaled without autoscaling")
	}
	worker.Autoscaling = &v1alpha1.Autoscaling{Min: ptr.To[int32](0), Max: 2, MessagesPerPod: ptr.To[int32](5)}
	if got, _ := compile.ScalingOf(worker); got != (compile.Scaling{Min: 0, Max: 2, MessagesPerPod: 5}) {
		t.Errorf("it is %+v", got)
	}
}
