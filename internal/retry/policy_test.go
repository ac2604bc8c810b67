package retry

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
)

// spec reads a policy's spec as a user writes it.
func spec(t testing.TB, text string) v1alpha1.RetryPolicySpec {
	t.Helper()
	var s v1alpha1.RetryPolicySpec
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatalf("spec: %v", err)
	}
	return s
}

// compile makes a policy named p from a spec as a user writes it.
func compile(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Compile("p", spec(t, text))
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return p
}

func TestCompile_FillsWhatIsLeftOut(t *testing.T) {
	tests := []struct {
		name string
		spec string
		want backoff
	}{
		{
			"an empty spec is exponential from 1s to 1m", `{}`,
			backoff{kind: v1alpha1.BackoffExponential, delay: time.Second, step: time.Second, multiplier: 2, maxDelay: time.Minute},
		},
		{
			"a step left out is the delay", `backoff: {type: Linear, delay: 3s}`,
			backoff{kind: v1alpha1.BackoffLinear, delay: 3 * time.Second, step: 3 * time.Second, multiplier: 2, maxDelay: time.Minute},
		},
		{
			"a delay over a minute is its own bound", `backoff: {type: Exponential, delay: 5m}`,
			backoff{kind: v1alpha1.BackoffExponential, delay: 5 * time.Minute, step: 5 * time.Minute, multiplier: 2, maxDelay: 5 * time.Minute},
		},
		{
			"a constant has no bound", `backoff: {type: Constant}`,
			backoff{kind: v1alpha1.BackoffConstant, delay: time.Second, step: time.Second, multiplier: 2, maxDelay: longest},
		},
		{
			"a constant with decorrelated jitter has one", `backoff: {type: Constant, jitter: {type: Decorrelated}}`,
			backoff{
				kind: v1alpha1.BackoffConstant, delay: time.Second, step: time.Second, multiplier: 2, maxDelay: time.Minute,
				jitter: jitter{kind: v1alpha1.JitterDecorrelated},
			},
		},
		{
			"what is given stays", `backoff: {type: Exponential, delay: 2s, multiplier: "1.5", maxDelay: 1h, jitter: {type: Proportional, percent: 20}}`,
			backoff{
				kind: v1alpha1.BackoffExponential, delay: 2 * time.Second, step: 2 * time.Second, multiplier: 1.5, maxDelay: time.Hour,
				jitter: jitter{kind: v1alpha1.JitterProportional, percent: 20},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, tt.spec)
			if tt.want.jitter.kind == "" {
				tt.want.jitter.kind = v1alpha1.JitterNone
			}
			got := p.backoff
			if got.kind != tt.want.kind || got.delay != tt.want.delay || got.step != tt.want.step ||
				got.multiplier != tt.want.multiplier || got.maxDelay != tt.want.maxDelay || got.jitter != tt.want.jitter {
				t.Errorf("backoff = %+v, want %+v", got, tt.want)
			}
			if p.maxRetries != 3 || p.MaxAge() != 24*time.Hour || p.Name() != "p" {
				t.Errorf("maxRetries %d, maxAge %s, name %q", p.maxRetries, p.MaxAge(), p.Name())
			}
		})
	}
}

func TestCompile_OrdersStrategiesByPriorityAndAsTheyStand(t *testing.T) {
	p := compile(t, `
strategies:
- {name: plain-1, when: "true"}
- {name: low, when: "true", priority: -1}
- {name: high, when: "true", priority: 1000000}
- {name: plain-2, when: "true", priority: 0}
`)
	var names []string
	for _, s := range p.strategies {
		names = append(names, s.name)
	}
	if got, want := strings.Join(names, " "), "high plain-1 plain-2 low"; got != want {
		t.Errorf("order = %q, want %q", got, want)
	}
}

func TestCompile_LeavesTheSpecAsItIs(t *testing.T) {
	s := spec(t, `{strategies: [{name: a, when: "true"}, {name: b, when: "true", priority: 1}]}`)
	if _, err := Compile("p", s); err != nil {
		t.Fatal(err)
	}
	if s.Strategies[0].Name != "a" {
		t.Errorf("the caller's strategies were reordered")
	}
}

func TestCompile_RefusesValuesOutOfRange(t *testing.T) {
	tests := []struct {
		name, spec, want string
	}{
		{"a negative number of retries", `maxRetries: -1`, `policy "p": maxRetries is negative: -1`},
		{"an age of zero", `maxAge: 0s`, `policy "p": maxAge is not positive: 0s`},
		{"a multiplier that is no number", `backoff: {type: Exponential, multiplier: two}`, `policy "p": backoff.multiplier is not a number: "two"`},
		{"a multiplier below one", `backoff: {type: Exponential, multiplier: "0.5"}`, `policy "p": backoff.multiplier is not a number from 1 up: 0.5`},
		{"a multiplier that is not finite", `backoff: {type: Exponential, multiplier: NaN}`, `policy "p": backoff.multiplier is not a number from 1 up: NaN`},
		{"a negative delay", `backoff: {type: Constant, delay: -1s}`, `policy "p": backoff has a delay that is negative or too long: -1s`},
		{"an unknown backoff", `backoff: {type: Fibonacci}`, `policy "p": backoff.type is unknown: "Fibonacci"`},
		{"an explicit backoff without delays", `backoff: {type: Explicit}`, `policy "p": backoff.delays is empty`},
		{
			"decorrelated jitter of explicit delays", `backoff: {type: Explicit, delays: [1s], jitter: {type: Decorrelated}}`,
			`policy "p": backoff.jitter Decorrelated does not go with type Explicit`,
		},
		{"an unknown jitter", `backoff: {type: Constant, jitter: {type: Wild}}`, `policy "p": backoff.jitter.type is unknown: "Wild"`},
		{"a percentage left out", `backoff: {type: Constant, jitter: {type: Proportional}}`, `policy "p": backoff.jitter.percent is not from 1 to 100: 0`},
		{"an unknown action", `strategies: [{name: s, when: "true", action: Explode}]`, `policy "p", strategy "s": action is unknown: "Explode"`},
		{"a strategy's negative limit", `strategies: [{name: s, when: "true", maxRetries: -2}]`, `policy "p", strategy "s": maxRetries is negative: -2`},
		{"a strategy's negative bound", `strategies: [{name: s, when: "true", maxDelay: -2s}]`, `policy "p", strategy "s": maxDelay is negative: -2s`},
		{"a strategy's bad backoff", `strategies: [{name: s, when: "true", backoff: {type: Explicit}}]`, `policy "p", strategy "s": backoff.delays is empty`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Compile("p", spec(t, tt.spec))
			if err == nil || err.Error() != tt.want {
				t.Errorf("Compile: %v, want %s", err, tt.want)
			}
		})
	}
}

func TestCompile_ReportsEverythingThatIsWrong(t *testing.T) {
	_, err := Compile("p", spec(t, `
maxRetries: -1
strategies:
- {name: a, when: error.statsu == 429, delayFrom: error.status}
- {name: b, when: "message.foo =="}
`))
	var first *ExpressionError
	if !errors.As(err, &first) || first.Strategy != "a" || first.Field != "when" {
		t.Fatalf("first expression error = %+v", first)
	}
	for _, want := range []string{
		`policy "p": maxRetries is negative`,
		`policy "p", strategy "a", when, 1:6: there is no field statsu; did you mean status?`,
		`policy "p", strategy "a", delayFrom, 1:1: must give a duration, but gives int`,
		`policy "p", strategy "b", when, 1:15: Syntax error`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}
