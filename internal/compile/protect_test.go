package compile_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

func protected(t *testing.T, change func(*v1alpha1.Worker)) compile.Config {
	t.Helper()
	result, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) { change(&s.Workers[0]) }), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(result.Lanes[len(result.Lanes)-1], retry.Ladder()[len(retry.Ladder())-1]) {
		t.Errorf("lanes %v: without the ladder a message has nowhere to wait for its turn", result.Lanes)
	}
	return result.Workers[0]
}

func TestCompile_FillsInTheDefaultsOfTheProtection(t *testing.T) {
	config := protected(t, func(w *v1alpha1.Worker) {
		w.Replicas = new(int32(4))
		w.RateLimits = []v1alpha1.RateLimit{
			{Name: "all", PerSecond: intstr.FromString("2.5")},
			{Name: "pod", PerSecond: intstr.FromInt32(7), Type: v1alpha1.RateLimitLeakyBucket, Scope: v1alpha1.RateLimitScopePod, Key: new("message.type")},
		}
		w.RetryBudget = &v1alpha1.RetryBudget{Percent: 20}
		w.CircuitBreaker = &v1alpha1.CircuitBreaker{SlowAfter: v1alpha1.NewDuration(time.Second)}
	})
	want := []compile.RateLimit{
		{Name: "all", PerSecond: 2.5, Burst: 3, Shared: true},
		{Name: "pod", Smooth: true, PerSecond: 7, Key: "message.type"},
	}
	if !reflect.DeepEqual(config.RateLimits, want) || config.Replicas != 4 {
		t.Errorf("limits %+v for %d replicas", config.RateLimits, config.Replicas)
	}
	if b := config.RetryBudget; b.Percent != 20 || b.Window.Duration.Duration != time.Minute || b.MinPerSecond != 1 {
		t.Errorf("budget %+v", b)
	}
	b := config.CircuitBreaker
	if b.FailurePercent != 50 || b.SlowPercent != 80 || b.MinimumCalls != 20 || b.Window.Duration.Duration != 30*time.Second ||
		b.OpenFor.Duration.Duration != 10*time.Second || b.MaxOpenFor.Duration.Duration != time.Minute {
		t.Errorf("breaker %+v", b)
	}
}

func TestCircuitBreaker_FitsItsOpenTimesToTheOneThatIsSet(t *testing.T) {
	times := func(b v1alpha1.CircuitBreaker) [2]time.Duration {
		config := protected(t, func(w *v1alpha1.Worker) { w.CircuitBreaker = &b })
		return [2]time.Duration{config.CircuitBreaker.OpenFor.Duration.Duration, config.CircuitBreaker.MaxOpenFor.Duration.Duration}
	}
	if got := times(v1alpha1.CircuitBreaker{MaxOpenFor: v1alpha1.NewDuration(5 * time.Second)}); got != [2]time.Duration{5 * time.Second, 5 * time.Second} {
		t.Errorf("a short maxOpenFor gives %v", got)
	}
	if got := times(v1alpha1.CircuitBreaker{OpenFor: v1alpha1.NewDuration(5 * time.Minute)}); got != [2]time.Duration{5 * time.Minute, 5 * time.Minute} {
		t.Errorf("a long openFor gives %v", got)
	}
}

func TestCompile_LeavesOutReplicasWhereNoLimitIsShared(t *testing.T) {
	config := protected(t, func(w *v1alpha1.Worker) {
		w.Replicas = new(int32(4))
		w.RateLimits = []v1alpha1.RateLimit{{Name: "pod", PerSecond: intstr.FromInt32(1), Scope: v1alpha1.RateLimitScopePod}}
	})
	if config.Replicas != 0 {
		t.Errorf("%d replicas: scaling would change the configuration", config.Replicas)
	}
}

func TestCompile_NamesAKeyThatDoesNotCompile(t *testing.T) {
	for field, change := range map[string]func(*v1alpha1.Worker){
		"spec.workers[0].rateLimits[0].key": func(w *v1alpha1.Worker) {
			w.RateLimits = []v1alpha1.RateLimit{{Name: "a", PerSecond: intstr.FromInt32(1), Key: new("message.size")}}
		},
		"spec.workers[0].circuitBreaker.key": func(w *v1alpha1.Worker) { w.CircuitBreaker = &v1alpha1.CircuitBreaker{Key: new("error.status")} },
	} {
		_, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) { change(&s.Workers[0]) }), nil)
		refused, ok := errors.AsType[*compile.Error](err)
		if !ok || refused.Reason != v1alpha1.ReasonInvalidExpression || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("error %v, want one that begins with %s", err, field)
		}
	}
}

func TestCompile_CountsTwinsOfHighPriorityAmongTheLanes(t *testing.T) {
	many := v1alpha1.RetryPolicySpec{RetryPriority: v1alpha1.RetryPriorityHigher, MaxRetries: new(int32(30)), Backoff: &v1alpha1.Backoff{
		Type: v1alpha1.BackoffLinear, Delay: v1alpha1.NewDuration(time.Second), MaxDelay: v1alpha1.NewDuration(time.Hour),
	}}
	result, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) {
		s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "p"}
	}), byName(policy("p", many)))
	if err != nil {
		t.Fatal(err)
	}
	if keys := result.LaneKeys(); len(result.HighLanes) != 12 || !result.Workers[0].HighLanes || len(keys) != 24 || keys[1].Key != keys[0].Key+".high" {
		t.Errorf("lanes %v", result.LaneKeys())
	}
}
