package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestRetryPolicy_RefusesInvalidLimits(t *testing.T) {
	const ageRange = "maxAge is between 1s and 8760h"
	runs(t, "RetryPolicy", map[string]verdict{
		"an empty spec": {"{}", ""},

		"maxRetries 0":                    {"maxRetries: 0", ""},
		"maxRetries at its bound":         {"maxRetries: 1000000", ""},
		"maxRetries over its bound":       {"maxRetries: 1000001", atMost},
		"maxRetries below 0":              {"maxRetries: -1", atLeast},
		"unlimited":                       {"unlimited: true", ""},
		"unlimited with a maxRetries":     {"{unlimited: true, maxRetries: 5}", "unlimited and maxRetries exclude each other"},
		"unlimited with none":             {"{unlimited: true, maxRetries: 0}", "unlimited and maxRetries exclude each other"},
		"unlimited with the default of 3": {"{unlimited: true, maxRetries: 3}", ""},
		"not unlimited, with maxRetries":  {"{unlimited: false, maxRetries: 5}", ""},

		"maxAge at its least":    {"maxAge: 1s", ""},
		"maxAge below its least": {"maxAge: 999ms", ageRange},
		"maxAge at its most":     {"maxAge: 8760h", ""},
		"maxAge over its most":   {"maxAge: 8760h1ms", ageRange},
	})
}

func TestBackoff_RefusesInvalidFields(t *testing.T) {
	const (
		delayRange = "a delay is between 100ms and 720h"
		maxRange   = "maxDelay is between 100ms and 720h"
	)
	backoff := func(fields string) string { return "backoff: {" + fields + "}" }
	runs(t, "RetryPolicy", map[string]verdict{
		"Constant":                        {backoff("type: Constant, delay: 5s"), ""},
		"Constant by default":             {backoff("type: Constant"), ""},
		"Linear":                          {backoff("type: Linear, delay: 5s, step: 1s, maxDelay: 1m"), ""},
		"Linear with a step of 0":         {backoff("type: Linear, step: 0s"), ""},
		"Exponential":                     {backoff(`type: Exponential, delay: 1s, multiplier: "1.5", maxDelay: 1h`), ""},
		"Explicit":                        {backoff("type: Explicit, delays: [5s, 1m, 10m]"), ""},
		"a type that is none":             {backoff("type: Fibonacci"), enum},
		"no type":                         {backoff("delay: 1s"), required},
		"Explicit without delays":         {backoff("type: Explicit"), "delays belongs to type Explicit, which needs it, and to no other"},
		"Explicit with no delay in it":    {backoff("type: Explicit, delays: []"), tooFew},
		"delays on Constant":              {backoff("type: Constant, delays: [1s]"), "delays belongs to type Explicit"},
		"Explicit with delay":             {backoff("type: Explicit, delays: [1s], delay: 1s"), "type Explicit takes delays, not delay"},
		"Explicit with maxDelay":          {backoff("type: Explicit, delays: [1s], maxDelay: 1s"), "maxDelay belongs to types Linear and Exponential"},
		"32 delays":                       {backoff("type: Explicit, delays: [" + list(32, "1s") + "]"), ""},
		"33 delays":                       {backoff("type: Explicit, delays: [" + list(33, "1s") + "]"), tooMany},
		"a short delay in the list":       {backoff("type: Explicit, delays: [1s, 99ms]"), delayRange},
		"a long delay in the list":        {backoff("type: Explicit, delays: [1s, 721h]"), delayRange},
		"step on Exponential":             {backoff("type: Exponential, step: 1s"), "step belongs to type Linear"},
		"step at its most":                {backoff("type: Linear, step: 720h"), ""},
		"step over its most":              {backoff("type: Linear, step: 720h1ms"), "step is at most 720h"},
		"multiplier on Linear":            {backoff(`type: Linear, multiplier: "2"`), "multiplier belongs to type Exponential"},
		"maxDelay on Constant":            {backoff("type: Constant, maxDelay: 1m"), "maxDelay belongs to types Linear and Exponential, and to Decorrelated jitter"},
		"maxDelay of Decorrelated jitter": {backoff("type: Constant, delay: 1s, maxDelay: 1m, jitter: {type: Decorrelated}"), ""},
		"maxDelay of another jitter":      {backoff("type: Constant, delay: 1s, maxDelay: 1m, jitter: {type: Full}"), "maxDelay belongs to types"},
		"Decorrelated on Explicit":        {backoff("type: Explicit, delays: [1s], jitter: {type: Decorrelated}"), "Decorrelated jitter does not go with type Explicit"},
		"delay as long as maxDelay":       {backoff("type: Linear, delay: 60s, maxDelay: 1m"), ""},
		"delay longer than maxDelay":      {backoff("type: Linear, delay: 61s, maxDelay: 1m"), "delay is longer than maxDelay"},
		"delay at its least":              {backoff("type: Constant, delay: 100ms"), ""},
		"delay below its least":           {backoff("type: Constant, delay: 99ms"), delayRange},
		"delay at its most":               {backoff("type: Constant, delay: 720h"), ""},
		"delay over its most":             {backoff("type: Constant, delay: 720h1ms"), delayRange},
		"maxDelay at its most":            {backoff("type: Linear, maxDelay: 720h"), ""},
		"maxDelay below its least":        {backoff("type: Linear, maxDelay: 99ms"), maxRange},
		"maxDelay over its most":          {backoff("type: Linear, maxDelay: 721h"), maxRange},
	})
}

func TestJitter_RefusesInvalidFields(t *testing.T) {
	const percent = "percent belongs to type Proportional, and to no other"
	backoff := func(fields string) string { return "backoff: {" + fields + "}" }
	runs(t, "RetryPolicy", map[string]verdict{
		"no jitter":                    {backoff("type: Constant, jitter: {type: None}"), ""},
		"Proportional jitter":          {backoff("type: Constant, jitter: {type: Proportional, percent: 1}"), ""},
		"all of the delay as jitter":   {backoff("type: Constant, jitter: {type: Proportional, percent: 100}"), ""},
		"more than all as jitter":      {backoff("type: Constant, jitter: {type: Proportional, percent: 101}"), atMost},
		"0 percent":                    {backoff("type: Constant, jitter: {type: Proportional, percent: 0}"), atLeast},
		"Proportional without percent": {backoff("type: Constant, jitter: {type: Proportional}"), percent},
		"percent on Full":              {backoff("type: Constant, jitter: {type: Full, percent: 10}"), percent},
		"Full jitter":                  {backoff("type: Constant, jitter: {type: Full}"), ""},
		"Equal jitter":                 {backoff("type: Explicit, delays: [1s], jitter: {type: Equal}"), ""},
		"a jitter that is none":        {backoff("type: Constant, jitter: {type: Gaussian}"), enum},
		"jitter without type":          {backoff("type: Constant, jitter: {}"), required},
	})
}

func TestStrategyInclude_RefusesInvalidFields(t *testing.T) {
	runs(t, "RetryPolicy", map[string]verdict{
		"an include":              {"includeStrategies: [{name: a}]", ""},
		"16 includes":             {"includeStrategies: [" + names(16) + "]", ""},
		"17 includes":             {"includeStrategies: [" + names(17) + "]", tooMany},
		"the same include twice":  {"includeStrategies: [{name: a}, {name: a}]", "has the same policy or preset twice"},
		"a preset":                {"includeStrategies: [{preset: HTTP}]", ""},
		"a preset and policies":   {"includeStrategies: [{name: a}, {preset: HTTP}, {name: b}]", ""},
		"a preset twice":          {"includeStrategies: [{preset: HTTP}, {preset: HTTP}]", "has the same policy or preset twice"},
		"a preset that is none":   {"includeStrategies: [{preset: http}]", enum},
		"a preset with a name":    {"includeStrategies: [{name: a, preset: HTTP}]", "set exactly one of name and preset"},
		"an include without name": {"includeStrategies: [{}]", "set exactly one of name and preset"},
		"an empty include":        {`includeStrategies: [{name: ""}]`, tooShort},
	})
}

func TestStrategy_RefusesInvalidFields(t *testing.T) {
	const (
		maxRange  = "maxDelay is between 100ms and 720h"
		retryOnly = "unlimited, delayFrom, maxDelay, maxRetries and backoff belong to action Retry"
	)
	strategy := func(fields string) string { return `strategies: [{name: a, when: "true", ` + fields + "}]" }
	runs(t, "RetryPolicy", map[string]verdict{
		"a strategy":                     {strategy("priority: 1"), ""},
		"no condition":                   {"strategies: [{name: a}]", required},
		"an empty condition":             {`strategies: [{name: a, when: ""}]`, tooShort},
		"a condition of 2048 characters": {"strategies: [{name: a, when: " + strings.Repeat("x", 2048) + "}]", ""},
		"a condition that is longer":     {"strategies: [{name: a, when: " + strings.Repeat("x", 2049) + "}]", tooLong},
		"a name of 63 characters":        {"strategies: [{when: x, name: " + strings.Repeat("a", 63) + "}]", ""},
		"a name that is longer":          {"strategies: [{when: x, name: " + strings.Repeat("a", 64) + "}]", tooLong},
		"a name with capitals":           {"strategies: [{when: x, name: Throttled}]", pattern},
		"a name that ends in a dash":     {"strategies: [{when: x, name: a-}]", pattern},
		"a name with a slash":            {"strategies: [{when: x, name: a/b}]", pattern},
		"a name with a line feed":        {`strategies: [{when: x, name: "a\n"}]`, pattern},
		"the same name twice":            {"strategies: [{when: x, name: a}, {when: y, name: a}]", duplicate},
		"priority at its bounds":         {strategy("priority: -1000000"), ""},
		"priority over its bound":        {strategy("priority: 1000001"), atMost},
		"priority below its bound":       {strategy("priority: -1000001"), atLeast},
		"an action that is none":         {strategy("action: Ignore"), enum},
		"an empty action":                {strategy(`action: ""`), enum},
		"Retry with all it may have": {
			strategy("action: Retry, delayFrom: error.retryAfter, maxDelay: 1h, maxRetries: 3, backoff: {type: Constant}"), "",
		},
		"Fail alone":                      {strategy("action: Fail"), ""},
		"Drop alone":                      {strategy("action: Drop"), ""},
		"Fail and unlimited":              {strategy("action: Fail, unlimited: true"), retryOnly},
		"Fail and not unlimited":          {strategy("action: Fail, unlimited: false"), retryOnly},
		"Drop with delayFrom":             {strategy("action: Drop, delayFrom: error.retryAfter"), retryOnly},
		"Fail with maxRetries":            {strategy("action: Fail, maxRetries: 0"), retryOnly},
		"Fail with a backoff":             {strategy("action: Fail, backoff: {type: Constant}"), retryOnly},
		"maxDelay without delayFrom":      {strategy("maxDelay: 1h"), "maxDelay bounds delayFrom, which is missing"},
		"a strategy's maxDelay too short": {strategy("delayFrom: x, maxDelay: 99ms"), maxRange},
		"a strategy's maxDelay too long":  {strategy("delayFrom: x, maxDelay: 721h"), maxRange},
		"an empty delayFrom":              {strategy(`delayFrom: ""`), tooShort},
		"a long delayFrom":                {strategy("delayFrom: " + strings.Repeat("x", 2049)), tooLong},
		"unlimited and maxRetries":        {strategy("unlimited: true, maxRetries: 3"), "unlimited and maxRetries exclude each other"},
		"limited and maxRetries":          {strategy("unlimited: false, maxRetries: 3"), ""},
		"a strategy's maxRetries":         {strategy("maxRetries: 1000001"), atMost},
		"a strategy's broken backoff":     {strategy("backoff: {type: Explicit}"), "delays belongs to type Explicit"},
	})
}

func TestDuration_RefusesInvalidTexts(t *testing.T) {
	step := func(text string) string { return fmt.Sprintf("backoff: {type: Linear, step: %q}", text) }
	verdicts := map[string]verdict{
		"a number":                      {"maxAge: 5", "must be of type string"},
		"more than 16 characters":       {step("0000h0000m00001ms"), "Too long"},
		"more than Go's duration holds": {step("999999h999999h"), "step is at most 720h"},
	}
	for _, text := range []string{
		"0s", "1ms", "1s", "1000ms", "1.5s", "1.001s", "0.5h", "0.001m", "1h30m", "1h30m1.5s", "1m1ms", "000001s", "1s1s", "0h0m1s", "720h", "43200m", "999999ms",
	} {
		verdicts["accepted "+text] = verdict{step(text), ""}
	}
	for _, text := range []string{
		"", " ", "1", "s", "1 s", " 1s", "1s ", "1s\n", "-5s", "+5s", "1e3s", "99999999h", ".5s", "1.s", "1.2345s", "1S", "1d", "1w", "1us", "1µs", "1ns",
		"µs", "１s", "1,5s", "0x1s", "1_000s", "1h1h1h1h", "0.5ms", "100.5ms", "1s0.001ms", "1000000s", "PT1S", "inf",
	} {
		verdicts["refused "+text] = verdict{step(text), "should match"}
	}
	runs(t, "RetryPolicy", verdicts)
}

func TestBackoff_RefusesInvalidMultipliers(t *testing.T) {
	verdicts := map[string]verdict{}
	for _, text := range []string{`"1"`, `"2"`, `"10"`, `"99"`, `"1.5"`, `"1.125"`, `"99.999"`, `"1.000"`} {
		verdicts["accepted "+text] = verdict{"backoff: {type: Exponential, multiplier: " + text + "}", ""}
	}
	for _, text := range []string{
		`2`, `1.5`, `""`, `"0"`, `"0.5"`, `"01"`, `"100"`, `"1."`, `".5"`, `"1.2345"`, `"-1"`, `"+1"`, `"1e1"`, `"1,5"`, `"1500m"`, `"NaN"`, `"١"`, `" 1"`, `true`,
	} {
		verdicts["refused "+text] = verdict{"backoff: {type: Exponential, multiplier: " + text + "}", "spec.backoff.multiplier"}
	}
	runs(t, "RetryPolicy", verdicts)
}

func TestRetryPolicy_HasDefaults(t *testing.T) {
	cluster := server(t)
	o := object(t, "RetryPolicy", "{}")
	unstructured.RemoveNestedField(o.Object, "spec")
	o.SetNamespace(cluster.Namespace(t))
	if err := cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"maxRetries": int64(3), "maxAge": "24h", "retryPriority": "Same", "handlerAdvice": "Follow"}
	if got := fmt.Sprint(o.Object["spec"]); got != fmt.Sprint(want) {
		t.Errorf("spec is %v, want %v", got, want)
	}
	if got := fmt.Sprint(o.Object["status"]); got != "map[observedGeneration:-1]" {
		t.Errorf("status is %v, want observedGeneration -1: else a fresh object looks healthy", got)
	}
}

// runs submits each spec and compares what the server says.
func runs(t *testing.T, kind string, verdicts map[string]verdict) {
	t.Helper()
	cluster := server(t)
	for name, v := range verdicts {
		t.Run(name, func(t *testing.T) {
			err := submit(t, cluster, object(t, kind, v.spec))
			switch {
			case v.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case v.want != "" && err == nil:
				t.Errorf("accepted, want %q", v.want)
			case v.want != "" && !strings.Contains(err.Error(), v.want):
				t.Errorf("error is\n%v\nwant %q in it", err, v.want)
			}
		})
	}
}

// list repeats an item n times.
func list(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }

// names are n objects with different names.
func names(n int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf("{name: n%d}", i)
	}
	return strings.Join(items, ", ")
}
