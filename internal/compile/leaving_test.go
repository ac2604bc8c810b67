package compile_test

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// Workers refused a configuration with a queue that is only to be emptied where the spec had no room for one more: the queue was forgotten, and its messages
// stood for good.
func TestConfig_AQueueThatIsOnlyToBeEmptiedIsNeverTooMuch(t *testing.T) {
	slow := func(queue string, change func(*compile.Config)) compile.Config {
		result, err := compile.Compile(transport(func(spec *v1alpha1.TransportSpec) {
			spec.Queues = []v1alpha1.Queue{{Name: queue, BindingKeys: []string{queue}}}
			spec.Exchange.UnroutedTo = nil
			spec.Workers[0].Timeout, spec.Workers[0].Concurrency = v1alpha1.NewDuration(10*time.Minute), ptr.To[int32](1)
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
		config := result.Workers[0]
		if change != nil {
			change(&config)
		}
		return config
	}
	next := slow("orders", nil)
	for name, tt := range map[string]struct {
		last    compile.Config
		leaving []string
		want    int
	}{
		"a queue":                                {slow("test", nil), []string{"test", "test.quarantine"}, 2},
		"its quarantine queue":                   {slow("test", nil), []string{"test.quarantine"}, 2},
		"the quarantine queue of one that stays": {slow("orders", nil), []string{"orders.quarantine"}, 2},
		"a queue whose policy has many tries at once": {slow("test", func(c *compile.Config) {
			c.Queues[0].Policy = "immediate"
			c.Policies = map[string]v1alpha1.RetryPolicySpec{"immediate": {Immediate: ptr.To[int32](5)}}
		}), []string{"test"}, 2},
	} {
		with := next
		if name == "the quarantine queue of one that stays" {
			with.Queues = []compile.Queue{with.Queues[0]}
			with.Queues[0].Quarantine, with.Queues[0].Strict = "", v1alpha1.OnFailureBlock
		}
		with = with.WithLeaving(tt.last, tt.leaving)
		data, err := compile.Encode(with)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := compile.Decode(data); err != nil || len(got.Queues) != tt.want {
			t.Errorf("%s: %d queues, %v", name, len(got.Queues), err)
		}
	}
	both := next
	both.Queues = append(both.Queues[:1:1], slow("test", nil).Queues...)
	if both.Validate() == nil {
		t.Error("two queues of the spec are taken, and one of them may be held for too long")
	}
}
