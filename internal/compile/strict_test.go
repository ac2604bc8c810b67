package compile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// strictly has one strictly ordered queue with a policy.
func strictly(policySpec v1alpha1.RetryPolicySpec, change func(*v1alpha1.TransportSpec)) (*compile.Result, error) {
	return compile.Compile(transport(func(s *v1alpha1.TransportSpec) {
		s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "p"}
		s.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		if change != nil {
			change(s)
		}
	}), byName(policy("p", policySpec), policy("other", v1alpha1.RetryPolicySpec{MaxRetries: new(int32(40))})))
}

func TestDeliveries_CoverWhatThePoliciesOfAStrictQueueNeed(t *testing.T) {
	cases := []struct {
		name   string
		spec   v1alpha1.RetryPolicySpec
		change func(*v1alpha1.TransportSpec)
		want   int64
	}{
		{"the defaults", v1alpha1.RetryPolicySpec{}, nil, 3 + 3 + 1010},
		{"more retries", v1alpha1.RetryPolicySpec{MaxRetries: new(int32(10))}, nil, 10 + 3 + 1010},
		{"more crashes", v1alpha1.RetryPolicySpec{}, func(s *v1alpha1.TransportSpec) {
			s.Poison = &v1alpha1.Poison{MaxCrashes: new(int32(7))}
		}, 3 + 7 + 1010},
		{"a strategy with retries of its own", v1alpha1.RetryPolicySpec{
			Strategies: []v1alpha1.Strategy{{Name: "s", When: "error.status == 503", MaxRetries: new(int32(6))}},
		}, nil, 3 + 6 + 3 + 1010},
		{"a policy by message", v1alpha1.RetryPolicySpec{}, func(s *v1alpha1.TransportSpec) {
			s.RetryPolicies = []v1alpha1.PolicyRule{{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: "other"}}}
		}, 40 + 3 + 1010},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			result, err := strictly(c.spec, c.change)
			if err != nil {
				t.Fatal(err)
			}
			if got := result.Deliveries; got["test"] != c.want || len(got) != 1 {
				t.Errorf("deliveries %v, want %d of test alone", got, c.want)
			}
			queues := result.Workers[0].Queues
			if queues[0].Quarantine != "lost.quarantine" || queues[0].Strict != "" || queues[1].Quarantine != "" || queues[1].Strict != v1alpha1.OnFailureContinue {
				t.Errorf("queues %+v", queues)
			}
		})
	}
}

func TestCompile_RefusesPoliciesThatAStrictQueueCannotCarryOut(t *testing.T) {
	cases := []struct {
		name   string
		spec   v1alpha1.RetryPolicySpec
		change func(*v1alpha1.TransportSpec)
		want   []string // nothing: it is accepted
	}{
		{"unlimited retries", v1alpha1.RetryPolicySpec{
			Strategies: []v1alpha1.Strategy{{Name: "throttled", When: "error.status == 429", Unlimited: new(true)}},
		}, nil, []string{"spec.queues[1]", `"throttled"`, "unlimited"}},
		{"a long delay", v1alpha1.RetryPolicySpec{
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(15 * time.Minute)},
		}, nil, []string{"spec.queues[1]", "may wait 15m", "less than 15m", "broker.consumerTimeout"}},
		{"a long delay where the broker waits longer", v1alpha1.RetryPolicySpec{
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(15 * time.Minute)},
		}, func(s *v1alpha1.TransportSpec) { s.Broker.ConsumerTimeout = v1alpha1.NewDuration(time.Hour) }, nil},
		{"no limit at all", v1alpha1.RetryPolicySpec{Unlimited: new(true)}, nil, []string{"spec.queues[1]", `policy "p" is unlimited`, "maxRetries"}},
		{"a delay from the partner without a bound of its own", v1alpha1.RetryPolicySpec{
			Strategies: []v1alpha1.Strategy{{Name: "s", When: "error.status == 429", DelayFrom: new("error.retryAfter")}},
		}, nil, []string{"may wait 1h"}},
		{"a delay from the partner with one", v1alpha1.RetryPolicySpec{
			Strategies: []v1alpha1.Strategy{{
				Name: "s", When: "error.status == 429", DelayFrom: new("error.retryAfter"), MaxDelay: v1alpha1.NewDuration(time.Minute),
			}},
		}, nil, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := strictly(c.spec, c.change)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("error %v", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestCompile_CountsTriesAtOnceToTheTimeAMessageIsHeld(t *testing.T) {
	held := func(timeout, consumerTimeout time.Duration, immediate int32) error {
		_, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) {
			s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "p"}
			s.Workers[0].Timeout = v1alpha1.NewDuration(timeout)
			s.Broker.ConsumerTimeout = v1alpha1.NewDuration(consumerTimeout)
		}), byName(policy("p", v1alpha1.RetryPolicySpec{Immediate: &immediate})))
		return err
	}
	if err := held(4*time.Minute, 30*time.Minute, 2); err != nil {
		t.Errorf("3 tries of 4m within 15m: %v", err)
	}
	err := held(5*time.Minute, 30*time.Minute, 2)
	if err == nil {
		t.Fatal("3 tries of 5m fill 15m, and are accepted")
	}
	for _, part := range []string{"spec.workers[0]", "held for 15m", "3 tries at once of 5m", "less than 15m"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if err := held(5*time.Minute, 31*time.Minute, 2); err != nil {
		t.Errorf("with a longer consumer timeout: %v", err)
	}
}

func TestHolding_ConsumesNoHeldQueue(t *testing.T) {
	config := compile.Config{Version: 3, Queues: []compile.Queue{
		{Name: "ordered", Strict: v1alpha1.OnFailureContinue},
		{Name: "other", Quarantine: "other.quarantine"},
		{Name: "migrated", Strict: v1alpha1.OnFailureContinue, Standin: "migrated.migrating", Reads: compile.ReadsStandin},
		{Name: "leaves", Quarantine: "leaves.quarantine", Leaving: true, Reads: compile.ReadsQuarantine},
	}}
	held, changed := config.Holding(map[string]string{"ordered": "its order", "migrated": "its order", "leaves": "not consumed anyway"})
	consumed := func(c compile.Config) (names []string) {
		for _, queue := range c.Queues {
			names = append(names, queue.Consumed()...)
		}
		return names
	}
	if got := consumed(held); !changed || !slices.Equal(got, []string{"other"}) || held.Version != 4 || held.Queues[0].Hold != "its order" {
		t.Errorf("consumed are %v, by version %d", got, held.Version)
	}
	if got := consumed(config); !slices.Equal(got, []string{"ordered", "other", "migrated.migrating"}) {
		t.Errorf("the configuration itself was changed: %v", got)
	}
	if _, changed := held.Holding(map[string]string{"ordered": "its order", "migrated": "its order"}); changed {
		t.Error("what is held is to be held again")
	}
	if again, changed := held.Holding(map[string]string{"migrated": "its order"}); !changed || !slices.Equal(consumed(again), []string{"ordered", "other"}) || again.Queues[0].Hold != "" {
		t.Errorf("what is not held any more is consumed: %v", consumed(again))
	}
}

// The hold of a queue that is migrated stayed when its reason had gone, for good where the queue had left the spec: nobody consumed it, nor its stand-in.
func TestHolding_EndsWithItsReason(t *testing.T) {
	last := compile.Config{Version: 4, Policies: map[string]v1alpha1.RetryPolicySpec{"p": {}}, Queues: []compile.Queue{
		{Name: "test", Policy: "p", Standin: "test.migrating", Reads: compile.ReadsQuarantine, Hold: "its order"},
		{Name: "other", Policy: "p"},
	}}
	consumed := func(c compile.Config) (names []string) {
		for _, queue := range c.Queues {
			if queue.Hold != "" {
				t.Errorf("queue %s is held: %s", queue.Name, queue.Hold)
			}
			names = append(names, queue.Consumed()...)
		}
		slices.Sort(names)
		return names
	}
	steps := map[string]compile.Standin{"test": {Queue: "test.migrating", Reads: compile.ReadsQueue}}

	stays, _ := last.Following(steps, nil, nil)
	stays, _ = stays.Holding(nil)
	if got := consumed(stays); !slices.Equal(got, []string{"other", "test"}) {
		t.Errorf("beside a conflict the workers consume %v", got)
	}
	deleted, changed := last.WithoutHolds(false)
	if got := consumed(deleted); !changed || !slices.Equal(got, []string{"other", "test"}) {
		t.Errorf("of a Transport that is deleted, the workers consume %v", got)
	}
	if _, again := deleted.WithoutHolds(false); again {
		t.Error("what is consumed changes again")
	}
	last.Queues[1].Reads, last.Queues[1].Hold = compile.ReadsQuarantine, compile.HoldNewToPods
	deleted, _ = last.WithoutHolds(true)
	if _, again := deleted.WithoutHolds(true); again || len(deleted.Queues[1].Consumed()) > 0 || !slices.Equal(deleted.Queues[0].Consumed(), []string{"test"}) {
		t.Errorf("beside pods for a former handler, the workers consume %v and %v", deleted.Queues[0].Consumed(), deleted.Queues[1].Consumed())
	}
	last.Queues[1].Reads, last.Queues[1].Hold = "", ""
	without := last.WithoutQueues()
	without.Queues, without.Policies = last.Queues[1:], last.Policies
	for name, leaving := range map[string][]string{
		"both":         {"test", "test.migrating"},
		"the stand-in": {"test.migrating"},
		"the queue":    {"test"},
	} {
		left := without.WithLeaving(last, leaving)
		left, _ = left.Holding(nil)
		if got, want := consumed(left), []string{"other", leaving[0]}; !slices.Equal(got, want) {
			t.Errorf("%s left: the workers consume %v, want %v", name, got, want)
		}
	}
}
