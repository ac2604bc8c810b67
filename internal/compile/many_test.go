package compile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

const partners = 200

// manyPartners is a Transport for partners that each have a policy of their own, with a schedule of their own, that includes
// three shared ones. A message's header chooses.
func manyPartners(density v1alpha1.LaneDensity) (*v1alpha1.Transport, map[string]*v1alpha1.RetryPolicy) {
	included := []v1alpha1.StrategyInclude{{Name: "http-statuses"}, {Name: "network"}, {Name: "business-hours"}}
	policies := byName(
		policy("http-statuses", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{
			{Name: "throttled", Priority: new(int32(100)), When: "error.status == 429", Unlimited: new(true), DelayFrom: new("error.retryAfter"), MaxDelay: v1alpha1.NewDuration(30 * time.Minute)},
			strategy("rejected", "error.status in [400, 401, 403, 404, 422]"),
			{Name: "gone", When: "error.status == 410", Action: v1alpha1.ActionDrop},
		}}),
		policy("network", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{
			Name: "unreachable", When: "error.source in ['Connection', 'Timeout'] || error.status in [502, 503, 504]", Unlimited: new(true),
			Backoff: &v1alpha1.Backoff{
				Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(5 * time.Second), MaxDelay: v1alpha1.NewDuration(10 * time.Minute),
				Jitter: &v1alpha1.Jitter{Type: v1alpha1.JitterEqual},
			},
		}}}),
		policy("business-hours", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{
			Name: "closed", When: "error.class == 'https://shop.example/problems/closed' && now.getHours('Europe/Paris') < 6", Unlimited: new(true),
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(30 * time.Minute)},
		}}}),
	)
	t := transport(func(spec *v1alpha1.TransportSpec) { spec.Lanes = density })
	for i := range partners {
		name := fmt.Sprintf("partner-%03d", i)
		policies[name] = policy(name, v1alpha1.RetryPolicySpec{
			MaxRetries: new(int32(3 + i%8)), MaxAge: v1alpha1.NewDuration(72 * time.Hour), IncludeStrategies: included,
			Backoff: &v1alpha1.Backoff{
				Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(time.Second + time.Duration(i)*37*time.Millisecond),
				Multiplier: new([]string{"1.5", "2", "3"}[i%3]), MaxDelay: v1alpha1.NewDuration(time.Duration(1+i%60) * time.Minute),
				Jitter: &v1alpha1.Jitter{Type: v1alpha1.JitterProportional, Percent: new(int32(1 + i%30))},
			},
			Strategies: []v1alpha1.Strategy{
				strategy("duplicate", fmt.Sprintf("error.class == 'https://%s.example/problems/duplicate'", name)),
				{
					Name: "maintenance", When: fmt.Sprintf("error.status == 503 && error.message.contains('maintenance') && now.getHours() == %d", i%24),
					Unlimited: new(true), Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(time.Duration(5+i%20) * time.Minute)},
				},
			},
		})
		t.Spec.RetryPolicies = append(t.Spec.RetryPolicies, v1alpha1.PolicyRule{
			When:           fmt.Sprintf("has(message.headers.partner) && message.headers.partner == '%s'", name),
			RetryPolicyRef: v1alpha1.PolicyReference{Name: name},
		})
	}
	return t, policies
}

func TestCompile_BoundsTheLanesOfManyPolicies(t *testing.T) {
	for density, limit := range map[v1alpha1.LaneDensity]int{v1alpha1.LanesStandard: 24, v1alpha1.LanesFine: 64} {
		t.Run(string(density), func(t *testing.T) {
			transport, policies := manyPartners(density)
			result, err := compile.Compile(transport, policies)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := topology.Desired(transport, result.Needs, "cluster/shop/orders")
			if err != nil {
				t.Fatal(err)
			}
			lanes := 0
			for _, queue := range objects.Queues {
				if queue.Role == topology.RoleLane {
					lanes++
				}
			}
			// Each work queue has a quarantine queue; the failure queue is the last one.
			if others := len(objects.Queues) - lanes; lanes > limit || lanes == 0 || others != 2*len(transport.Spec.Queues)+1 {
				t.Errorf("%d lanes, at most %d are allowed; %d other queues", lanes, limit, others)
			}
			if result.MergedDelays == 0 {
				t.Error("no delays share a lane: these policies show nothing")
			}
			t.Logf("%d lanes for %d policies; %d delays share them", lanes, partners, result.MergedDelays)
			everyDelayHasALane(t, result)
		})
	}
}

// everyDelayHasALane checks that what shares lanes is never early, and a tenth late at most, hops included.
func everyDelayHasALane(t *testing.T, result *compile.Result) {
	t.Helper()
	smallest, longest := result.Lanes[0], result.Lanes[len(result.Lanes)-1]
	for delay := smallest; delay <= 2*longest; delay += delay / 37 {
		waited := time.Duration(0)
		for hops := 0; waited < delay && hops < 50; hops++ {
			lane, _ := result.Lanes.Pick(delay - waited)
			waited += lane
		}
		if waited < delay || waited-delay > max(delay/10, smallest) {
			t.Errorf("a delay of %s becomes %s", delay, waited)
		}
	}
}

func TestConfig_FitsIntoAConfigMapWithManyPartners(t *testing.T) {
	transport, policies := manyPartners(v1alpha1.LanesFine)
	result, err := compile.Compile(transport, policies)
	if err != nil {
		t.Fatal(err)
	}
	data, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d partners: %d bytes, %d for each; %d without indentation", partners, len(data), len(data)/partners, compact.Len())
	if limit := 1 << 20; len(data) > limit {
		t.Errorf("%d bytes do not fit into a ConfigMap, which takes %d", len(data), limit)
	}
	if _, err := compile.Decode(data); err != nil {
		t.Error(err)
	}
}

// Each of the 200 would say so for itself, and nobody could read on to what else is wrong.
func TestCompile_TellsOnceOfPoliciesTooLargeTogether(t *testing.T) {
	transport, policies := manyPartners(v1alpha1.LanesStandard)
	for name, p := range policies {
		for n := range 100 {
			if len(p.Spec.IncludeStrategies) == 0 {
				break // what is included counts for each of the 200, and would be too much by its number
			}
			p.Spec.Strategies = append(p.Spec.Strategies, strategy(fmt.Sprint("s", n), fmt.Sprintf(`message.type == "%s %03d"`, name, n)))
		}
	}
	_, err := compile.Compile(transport, policies)
	if err == nil || strings.Count(err.Error(), "are too large") != 1 {
		t.Errorf("got %v", err)
	}
}

// including are 16 policies of 128 strategies, with as many schedules, and others that include them all. Each is as the API takes it.
func including(n int, change func(i int, spec *v1alpha1.RetryPolicySpec)) (*v1alpha1.Transport, map[string]*v1alpha1.RetryPolicy) {
	policies, t := map[string]*v1alpha1.RetryPolicy{}, transport(func(*v1alpha1.TransportSpec) {})
	var all []v1alpha1.StrategyInclude
	for i := range 16 {
		name := fmt.Sprint("base-", i)
		var spec v1alpha1.RetryPolicySpec
		for j := range 128 {
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{
				Name: fmt.Sprint("s", j), When: "true", MaxRetries: new(int32(1000)),
				Backoff: &v1alpha1.Backoff{
					Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(time.Duration(1000+(i*128+j)*7) * time.Millisecond),
					Multiplier: new("1.01"), MaxDelay: v1alpha1.NewDuration(time.Hour),
					Jitter: &v1alpha1.Jitter{Type: v1alpha1.JitterProportional, Percent: new(int32(20))},
				},
			})
		}
		policies[name] = policy(name, spec)
		all = append(all, v1alpha1.StrategyInclude{Name: name})
	}
	for i := range n {
		spec := v1alpha1.RetryPolicySpec{MaxAge: v1alpha1.NewDuration(700 * time.Hour), IncludeStrategies: all}
		change(i, &spec)
		name := fmt.Sprint("all-", i)
		policies[name] = policy(name, spec)
		t.Spec.RetryPolicies = append(t.Spec.RetryPolicies, v1alpha1.PolicyRule{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: name}})
	}
	return t, policies
}

// 34 policies that include 16 of 128 strategies made 69,632 copies, and took four seconds and 71 MB.
func TestCompile_CountsStrategiesBeforeItCopiesThem(t *testing.T) {
	transport, policies := including(34, func(int, *v1alpha1.RetryPolicySpec) {})
	var err error
	allocated := allocatedBy(func() { _, err = compile.Compile(transport, policies) })
	refused, ok := errors.AsType[*compile.Error](err)
	if !ok || refused.Reason != v1alpha1.ReasonInvalid || !strings.Contains(err.Error(), "have 69632 strategies together, and 32768 are allowed") {
		t.Errorf("error %v", err)
	}
	if allocated > 256<<10 {
		t.Errorf("%d kB were allocated before it was refused", allocated>>10)
	}
}

// What stays allowed takes memory for the copies, and not for each step of each schedule: neither where policies share their schedules, nor where
// each follows them to another age.
func TestCompile_TakesLittleMemoryForAllAllowedIncludes(t *testing.T) {
	for name, change := range map[string]func(int, *v1alpha1.RetryPolicySpec){
		"the same schedules": func(int, *v1alpha1.RetryPolicySpec) {},
		"schedules that end elsewhere": func(i int, spec *v1alpha1.RetryPolicySpec) {
			spec.MaxAge = v1alpha1.NewDuration(700*time.Hour + time.Duration(i)*time.Second)
		},
	} {
		transport, policies := including(compile.MaxStrategies/2048-1, change)
		var result *compile.Result
		var err error
		begun := time.Now()
		allocated := allocatedBy(func() { result, err = compile.Compile(transport, policies) })
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d strategies, %d MB, %s", name, compile.Strategies(transport, policies), allocated>>20, time.Since(begun))
		if allocated > 64<<20 || len(result.Lanes) != 24 {
			t.Errorf("%s: %d MB were allocated, for %d lanes", name, allocated>>20, len(result.Lanes))
		}
	}
}

// allocatedBy is how many bytes are allocated in all, by this test alone.
func allocatedBy(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A policy for each of 256 rules, each with as many strategies as a policy has of its own.
func TestCompile_AllowsAllStrategiesInThePoliciesOfAllRules(t *testing.T) {
	transport, policies := transport(func(*v1alpha1.TransportSpec) {}), map[string]*v1alpha1.RetryPolicy{}
	for i := range 256 {
		name := fmt.Sprint("p", i)
		var spec v1alpha1.RetryPolicySpec
		for j := range 128 {
			spec.Strategies = append(spec.Strategies, strategy(fmt.Sprint("s", j), fmt.Sprintf("error.status == %d", 400+j)))
		}
		policies[name] = policy(name, spec)
		transport.Spec.RetryPolicies = append(transport.Spec.RetryPolicies, v1alpha1.PolicyRule{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: name}})
	}
	if _, err := compile.Compile(transport, policies); err != nil {
		t.Errorf("%.500v", err)
	}
}

func TestCompile_TellsOnlySomeOfThousandsOfWrongStrategies(t *testing.T) {
	transport, policies := including(15, func(int, *v1alpha1.RetryPolicySpec) {})
	for _, p := range policies {
		for i := range p.Spec.Strategies {
			p.Spec.Strategies[i].When = "error.statsu == 1"
		}
	}
	_, err := compile.Compile(transport, policies)
	if err == nil || strings.Count(err.Error(), "statsu") == 0 || len(err.Error()) > 100_000 {
		t.Errorf("%.500v", err)
	}
}

func TestCompile_TellsOnceOfRulesAndKeysTooLarge(t *testing.T) {
	long := func(n int) string { return fmt.Sprintf(`message.id + "%04d%s"`, n, strings.Repeat("x", 2000)) }
	for field, change := range map[string]func(*v1alpha1.TransportSpec){
		"spec.retryPolicies[129].when": func(s *v1alpha1.TransportSpec) {
			for n := range 256 {
				s.RetryPolicies = append(s.RetryPolicies, v1alpha1.PolicyRule{When: long(n) + ` == ""`, RetryPolicyRef: v1alpha1.PolicyReference{Name: "p"}})
			}
		},
		"spec.workers[14].rateLimits[3].key": func(s *v1alpha1.TransportSpec) {
			s.Workers = slices.Repeat(s.Workers, 16)
			for w := range s.Workers {
				for n := range 9 {
					s.Workers[w].RateLimits = append(s.Workers[w].RateLimits, v1alpha1.RateLimit{
						Name: fmt.Sprint("l", n), PerSecond: intstr.FromInt32(1), Key: new(long(9*w + n)),
					})
				}
			}
		},
	} {
		_, err := compile.Compile(transport(change), byName(policy("p", v1alpha1.RetryPolicySpec{})))
		refused, ok := errors.AsType[*compile.Error](err)
		if !ok || refused.Reason != v1alpha1.ReasonInvalidExpression || !strings.HasPrefix(err.Error(), field+": ") || strings.Count(err.Error(), "are too large") != 1 {
			t.Errorf("error %.300v, want one that begins with %s", err, field)
		}
	}
}

// What the operator does for a Transport with 200 policies.
func BenchmarkCompileManyPartners(b *testing.B) {
	transport, policies := manyPartners(v1alpha1.LanesStandard)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := compile.Compile(transport, policies); err != nil {
			b.Fatal(err)
		}
	}
}

// What a worker does with it, and what it keeps.
func BenchmarkPoliciesOfManyPartnersInAWorker(b *testing.B) {
	transport, policies := manyPartners(v1alpha1.LanesStandard)
	result, err := compile.Compile(transport, policies)
	if err != nil {
		b.Fatal(err)
	}
	config := &result.Workers[0]
	whens := make([]string, len(config.Rules))
	for i := range config.Rules {
		whens[i] = config.Rules[i].When
	}
	compileAll := func(compile func(string, v1alpha1.RetryPolicySpec) (*retry.Policy, error)) map[string]*retry.Policy {
		compiled := map[string]*retry.Policy{}
		for name, spec := range config.Policies {
			if compiled[name], err = compile(name, spec); err != nil {
				b.Fatal(err)
			}
		}
		return compiled
	}
	b.Run("each policy by itself", func(b *testing.B) {
		keeps(b, func() any { return compileAll(retry.Compile) })
	})
	b.Run("all together", func(b *testing.B) {
		keeps(b, func() any {
			compiler, err := retry.NewCompiler()
			if err != nil {
				b.Fatal(err)
			}
			return compileAll(compiler.Compile)
		})
	})
	b.Run("each rule by itself", func(b *testing.B) {
		keeps(b, func() any {
			matches := make([]*retry.Match, len(whens))
			for i, when := range whens {
				if matches[i], err = retry.CompileMatch("rules", when); err != nil {
					b.Fatal(err)
				}
			}
			return matches
		})
	})
	b.Run("all rules together", func(b *testing.B) {
		keeps(b, func() any {
			rules, err := retry.CompileRules("rules", whens)
			if err != nil {
				b.Fatal(err)
			}
			return rules
		})
	})
}

// keeps reports how much memory that stays in use what is made takes.
func keeps(b *testing.B, build func() any) {
	b.Helper()
	var made any
	before := heap()
	b.ReportAllocs()
	for b.Loop() {
		made = build()
	}
	b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-kept")
	runtime.KeepAlive(made)
}

// heap is the memory in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
