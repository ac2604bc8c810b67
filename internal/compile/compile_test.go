package compile_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

func transport(change func(*v1alpha1.TransportSpec)) *v1alpha1.Transport {
	t := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	t.Spec = v1alpha1.TransportSpec{
		Broker:   v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
		Exchange: &v1alpha1.Exchange{Name: "async", Type: v1alpha1.ExchangeDirect},
		Queues:   []v1alpha1.Queue{{Name: "lost", BindingKeys: []string{"lost"}}, {Name: "test", BindingKeys: []string{"test"}}},
		Workers: []v1alpha1.Worker{{
			Name: "default", Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1:8080/"}},
		}},
	}
	if change != nil {
		change(&t.Spec)
	}
	return t
}

func policy(name string, spec v1alpha1.RetryPolicySpec) *v1alpha1.RetryPolicy {
	return &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
}

func byName(policies ...*v1alpha1.RetryPolicy) map[string]*v1alpha1.RetryPolicy {
	m := map[string]*v1alpha1.RetryPolicy{}
	for _, p := range policies {
		m[p.Name] = p
	}
	return m
}

func strategy(name, when string) v1alpha1.Strategy {
	return v1alpha1.Strategy{Name: name, When: when, Action: v1alpha1.ActionFail}
}

func TestCompile_UsesDefaultsWithoutPolicies(t *testing.T) {
	result, err := compile.Compile(transport(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 10 * time.Second, time.Minute, 10 * time.Minute}; !slices.Equal(result.Lanes, want) {
		t.Errorf("lanes %v, want %v", result.Lanes, want)
	}
	config := result.Workers[0]
	if config.Concurrency != 10 || config.Timeout.Duration.Duration != 30*time.Second {
		t.Errorf("concurrency %d and timeout %s, want 10 and 30s", config.Concurrency, config.Timeout.Duration.Duration)
	}
	if len(config.Queues) != 2 || config.Queues[1].Policy != compile.Defaults {
		t.Errorf("queues %+v: want both, on the defaults", config.Queues)
	}
	if want := (compile.Exchanges{Work: "async", Fallback: "async.fallback", Return: "async.return", Failed: "async.failed"}); config.Exchanges != want {
		t.Errorf("exchanges %+v, want %+v", config.Exchanges, want)
	}
}

func TestCompile_PrefersAQueuesPolicyToTheTransports(t *testing.T) {
	result, err := compile.Compile(transport(func(s *v1alpha1.TransportSpec) {
		s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "a"}
		s.Queues[1].RetryPolicyRef = &v1alpha1.PolicyReference{Name: "b"}
		s.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.type == 'x'", RetryPolicyRef: v1alpha1.PolicyReference{Name: "c"}}}
		s.Workers[0].Queues = []string{"test"}
	}), byName(policy("a", v1alpha1.RetryPolicySpec{}), policy("b", v1alpha1.RetryPolicySpec{}), policy("c", v1alpha1.RetryPolicySpec{})))
	if err != nil {
		t.Fatal(err)
	}
	config := result.Workers[0]
	if len(config.Queues) != 1 || config.Queues[0].Name != "test" || config.Queues[0].Policy != "b" {
		t.Errorf("queues %+v: want test alone, on policy b", config.Queues)
	}
	if len(config.Rules) != 1 || config.Rules[0].Policy != "c" {
		t.Errorf("rules %+v: want one that leads to policy c", config.Rules)
	}
	if _, there := config.Policies[compile.Defaults]; there || len(config.Policies) != 3 {
		t.Errorf("policies %v: want a, b and c", config.Policies)
	}
}

func TestResolve_AppendsIncludedStrategiesWithoutTheirIncludes(t *testing.T) {
	all := byName(
		policy("own", v1alpha1.RetryPolicySpec{
			IncludeStrategies: []v1alpha1.StrategyInclude{{Name: "shared"}, {Preset: v1alpha1.PresetHTTP}},
			Strategies:        []v1alpha1.Strategy{strategy("s", "true")},
		}),
		policy("shared", v1alpha1.RetryPolicySpec{
			IncludeStrategies: []v1alpha1.StrategyInclude{{Name: "deep"}},
			Strategies:        []v1alpha1.Strategy{strategy("s", "false")},
		}),
		policy("deep", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{strategy("d", "true")}}),
	)
	spec, err := compile.Resolve(all["own"], all)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range spec.Strategies {
		names = append(names, s.Name)
	}
	if want := []string{"s", "shared/s", "HTTP/redirect", "HTTP/bad-address", "HTTP/unknown-ca", "HTTP/rejected", "HTTP/not-implemented"}; !slices.Equal(names, want) {
		t.Errorf("strategies %v, want %v", names, want)
	}
	if all["own"].Spec.IncludeStrategies == nil || len(all["own"].Spec.Strategies) != 1 {
		t.Error("Resolve altered the policy it was given")
	}
}

func TestCompile_NamesErrorsWithTheirReason(t *testing.T) {
	cases := []struct {
		name     string
		change   func(*v1alpha1.TransportSpec)
		policies map[string]*v1alpha1.RetryPolicy
		reason   string
		says     []string
	}{
		{
			name:   "every policy that does not exist",
			change: func(s *v1alpha1.TransportSpec) { s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "gone"} },
			reason: v1alpha1.ReasonPolicyNotFound, says: []string{`"gone"`, `"shop"`},
		},
		{
			name:   "an included policy that does not exist",
			change: func(s *v1alpha1.TransportSpec) { s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "a"} },
			policies: byName(policy("a", v1alpha1.RetryPolicySpec{
				IncludeStrategies: []v1alpha1.StrategyInclude{{Name: "b"}},
			})),
			reason: v1alpha1.ReasonPolicyNotFound, says: []string{`"a"`, "includeStrategies[0]", `"b"`},
		},
		{
			name:     "a policy that does not compile",
			change:   func(s *v1alpha1.TransportSpec) { s.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "a"} },
			policies: byName(policy("a", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{strategy("typo", "error.statsu == 1")}})),
			reason:   v1alpha1.ReasonPolicyInvalid, says: []string{"typo", "statsu"},
		},
		{
			name: "a rule that does not compile",
			change: func(s *v1alpha1.TransportSpec) {
				s.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.typo == 1", RetryPolicyRef: v1alpha1.PolicyReference{Name: "a"}}}
			},
			policies: byName(policy("a", v1alpha1.RetryPolicySpec{})),
			reason:   v1alpha1.ReasonInvalidExpression, says: []string{"spec.retryPolicies[0].when", "typo"},
		},
		{
			name: "more waiting than the broker's consumer timeout allows",
			change: func(s *v1alpha1.TransportSpec) {
				one := int32(1)
				s.Workers[0].Concurrency, s.Workers[0].Timeout = &one, v1alpha1.NewDuration(15*time.Minute)
			},
			reason: v1alpha1.ReasonInvalid, says: []string{"spec.workers[0]", "30m", "15m"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := compile.Compile(transport(c.change), c.policies)
			var typed *compile.Error
			if !errors.As(err, &typed) || typed.Reason != c.reason {
				t.Fatalf("error %v, want one with reason %s", err, c.reason)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestPrefetch_KeepsToConcurrencyAndConsumerTimeout(t *testing.T) {
	cases := []struct {
		name        string
		concurrency int
		queues      int
		timeout     time.Duration
		want        int
	}{
		{"one queue gets twice the concurrency", 10, 1, 30 * time.Second, 20},
		{"two queues share it", 10, 2, 30 * time.Second, 10},
		{"many queues get one each", 2, 64, time.Second, 1},
		{"slow handlers prefetch no second round", 10, 1, 14 * time.Minute, 10},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := compile.Config{Concurrency: c.concurrency, Queues: make([]compile.Queue, c.queues), Timeout: *v1alpha1.NewDuration(c.timeout)}
			if got := config.Prefetch(); got != c.want {
				t.Errorf("prefetch %d, want %d", got, c.want)
			}
		})
	}
}

func TestEncode_RoundTripsAndIsStable(t *testing.T) {
	result, err := compile.Compile(transport(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := compile.Decode(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := compile.Encode(decoded)
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != string(second) || compile.Hash(first) != compile.Hash(second) {
		t.Errorf("a round trip changes the configuration:\n%s\n%s", first, second)
	}
}

func TestDecode_RefusesWhatAWorkerCannotRunOn(t *testing.T) {
	result, err := compile.Compile(transport(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name  string
		field string
		value any
		says  string
	}{
		{"a newer version", "version", compile.Version + 1, "newer"},
		{"no version", "version", 0, "version"},
		{"no queues", "queues", []any{}, "queues"},
		{"more queues than can be", "queues", slices.Repeat([]any{map[string]any{"name": "q", "policy": compile.Defaults}}, 1089), "1089"},
		{"a queue whose policy is missing", "queues", []any{map[string]any{"name": "q", "policy": "nope"}}, `"nope"`},
		{"a rule whose policy is missing", "rules", []any{map[string]any{"when": "true", "policy": "nope"}}, `"nope"`},
		{"no exchanges", "exchanges", map[string]any{}, "exchanges"},
		{"no concurrency", "concurrency", 0, "concurrency"},
		{"lanes out of order", "lanes", []any{"2s", "1s"}, "lane"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var fields map[string]any
			if err := json.Unmarshal(data, &fields); err != nil {
				t.Fatal(err)
			}
			fields[c.field] = c.value
			changed, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := compile.Decode(changed); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
		})
	}
	if _, err := compile.Decode([]byte("{")); err == nil {
		t.Error("half a document is taken")
	}
}

func TestDecode_IgnoresFieldsOfALaterBuildOfItsVersion(t *testing.T) {
	result, err := compile.Compile(transport(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := compile.Encode(result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(data), "{", `{"somethingNew": true,`, 1)
	if _, err := compile.Decode([]byte(later)); err != nil {
		t.Error(err)
	}
}
