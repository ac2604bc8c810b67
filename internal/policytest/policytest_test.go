package policytest_test

import (
	"encoding/xml"
	"fmt"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/policytest"
)

const policies = `
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: standard}
spec:
  immediate: 1
  includeStrategies: [{name: shared}]
---
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: shared}
spec:
  backoff: {type: Exponential, delay: 10s, jitter: {type: Proportional, percent: 10}}
  strategies:
  - {name: throttled, priority: 10, when: error.status == 429, unlimited: true, delayFrom: error.retryAfter, backoff: {type: Constant, delay: 5m}}
  - {name: unreachable, when: error.source == 'Connection', maxRetries: 10, backoff: {type: Explicit, delays: [1s, 1m, 1h]}}
  - {name: night, when: now.getHours() == 2, action: Drop}
  - {name: heavy, when: message.body.amount > 1000, action: Fail}
---
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: acme}
spec: {maxRetries: 0, handlerAdvice: Ignore}
`

const transports = `---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: shop}
spec:
  broker: {secretRef: {name: r}}
  retryPolicyRef: {name: standard}
  retryPolicies: [{when: message.headers.partner == 'acme', retryPolicyRef: {name: acme}}]
  queues: [{name: orders}, {name: mail, retryPolicyRef: {name: shared}}]
---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: plain}
spec:
  broker: {secretRef: {name: r}}
  queues: [{name: plain}, {name: ordered, ordering: {type: Strict}}]
`

func suite(t *testing.T, manifests string) *policytest.Suite {
	t.Helper()
	made, err := newSuite(t, manifests)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func newSuite(t *testing.T, manifests string) (*policytest.Suite, error) {
	t.Helper()
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	set, err := loader.Load(t.Context(), strings.NewReader(manifests), manifest.Stdin)
	if err != nil {
		t.Fatal(err)
	}
	return policytest.NewSuite(set)
}

// run answers one case, which is written without its name.
func run(t *testing.T, s *policytest.Suite, fields, forced string) (policytest.Result, error) {
	t.Helper()
	cases, err := policytest.Parse("cases.yaml", []byte("cases:\n- {"+fields+"}\n"))
	if err != nil {
		t.Fatalf("the test's own case: %v", err)
	}
	results, err := s.Run(cases, forced, 1)
	if err != nil {
		return policytest.Result{}, err
	}
	return results[0], nil
}

func TestSuite_TellsWhatDiffersFromACase(t *testing.T) {
	const retries = "expect: {action: Retry"
	tests := []struct {
		name, fields string
		// differences, where there are some.
		want string
	}{
		{"a try at once comes first", `error: {status: 502}, expect: {action: Retry, reason: Immediate, delay: 0s}`, ""},
		{"when it is over, the first delay", `error: {status: 502}, immediate: 1, expect: {action: Retry, reason: Retry, delay: 1s, strategy: ""}`, ""},
		{"the delay differs", `error: {status: 502}, immediate: 1, expect: {action: Retry, delay: 2s}`, "delay is 1s, not 2s"},
		{"the strategy differs", `error: {status: 429}, expect: {action: Retry, strategy: ""}`, `strategy is "shared/throttled", not none`},
		{"another strategy is expected", `error: {status: 502}, expect: {action: Retry, strategy: shared/throttled}`, `strategy is none, not "shared/throttled"`},
		{
			"all that differs is told", `message: {queue: orders}, error: {status: 502}, retries: 3, expect: {action: Drop, reason: Strategy, policy: acme}`,
			"action is Fail, not Drop: 3 of 3 retries used; reason is MaxRetries, not Strategy; policy is standard, not acme",
		},
		{"what is left out is not compared", `error: {status: 429}, ` + retries + `}`, ""},
		{"retryAfter left out is absent", `error: {status: 429}, ` + retries + `, delay: 5m}`, ""},
		{"retryAfter of zero is not", `error: {status: 429, retryAfter: 0s}, ` + retries + `, delay: 0s}`, ""},
		{"retryAfter", `error: {status: 429, retryAfter: 90s}, ` + retries + `, delay: 1m30s}`, ""},
		{"a streak counts against a strategy's own limit", `error: {source: Connection}, retries: 9, streak: {strategy: shared/unreachable, count: 9}, ` + retries + `, delay: 1h}`, ""},
		{"and reaches it", `error: {source: Connection}, retries: 10, streak: {strategy: shared/unreachable, count: 10}, expect: {action: Fail, reason: MaxRetries}`, ""},
		{"without a streak the strategy begins", `error: {source: Connection}, retries: 9, ` + retries + `, delay: 1s}`, ""},
		{"age ends it", `error: {status: 429}, attempts: 300, age: 24h1s, expect: {action: Fail, reason: MaxAge}`, ""},
		{"a case knows no night", `error: {status: 500}, immediate: 1, ` + retries + `, strategy: ""}`, ""},
		{"unless it says so", `error: {status: 500}, now: 2026-03-04T02:30:00Z, expect: {action: Drop, strategy: shared/night}`, ""},
		{"the handler cannot read it", `error: {status: 415}, expect: {action: Fail, reason: Undecodable}`, ""},
		{"the handler's advice goes before the policy", `error: {status: 429, advice: Fail}, expect: {action: Fail, reason: Unrecoverable, strategy: (handler)}`, ""},
		{"in any case", `error: {advice: dRoP}, expect: {action: Drop, reason: Advice, strategy: (handler)}`, ""},
		{"it may ask for a retry", `error: {advice: retry, retryAfter: 30s}, retries: 3, ` + retries + `, delay: 30s, strategy: (handler)}`, ""},
		{"without a delay the policy's backoff counts by its streak", `error: {advice: retry}, attempts: 2, streak: {strategy: (handler), count: 2}, ` + retries + `, delay: 4s}`, ""},
		{"a policy may ignore it", `policy: acme, error: {advice: Retry}, expect: {action: Fail, reason: MaxRetries, strategy: ""}`, ""},
		{"advice that is not given differs", `error: {status: 502}, immediate: 1, ` + retries + `, strategy: (handler)}`, `strategy is none, not "(handler)"`},
		{"a strictly ordered queue leaves a retry to the policy", `message: {queue: ordered}, error: {advice: Retry, retryAfter: 1m}, ` + retries + `, delay: 1s, strategy: ""}`, ""},
		{"but fails as it is asked", `message: {queue: ordered}, error: {advice: Fail}, expect: {action: Fail, reason: Unrecoverable}`, ""},
		{"jitter within bounds", `policy: shared, error: {status: 500}, ` + retries + `, delay: {min: 9s, max: 11s}}`, ""},
		{"jitter beyond them", `policy: shared, error: {status: 500}, ` + retries + `, delay: {min: 9500ms, max: 11s}}`, "delay is 9s to 11s, not within 9.5s to 11s"},
		{"an upper bound alone", `policy: shared, error: {status: 500}, ` + retries + `, delay: {max: 10s}}`, "delay is 9s to 11s, not within 0s to 10s"},
		{"a lower bound alone", `policy: shared, error: {status: 500}, ` + retries + `, delay: {min: 10s}}`, "delay is 9s to 11s, not at least 10s"},
		{"the delay before jitter", `policy: shared, error: {status: 500}, retries: 1, ` + retries + `, delay: 20s}`, ""},
		{"a body is written as JSON", `message: {queue: orders, body: {amount: 1001}}, error: {status: 500}, expect: {action: Fail, strategy: shared/heavy}`, ""},
		{"or taken as it is", `message: {queue: orders, rawBody: '{"amount": 1001}'}, error: {status: 500}, expect: {action: Fail, strategy: shared/heavy}`, ""},
		{"a rule chooses the policy", `message: {queue: orders, headers: {partner: acme}}, error: {status: 500}, expect: {action: Fail, policy: acme}`, ""},
		{"a rule goes before the queue", `message: {queue: mail, headers: {partner: acme}}, error: {status: 500}, expect: {action: Fail, policy: acme}`, ""},
		{"the queue goes before the Transport", `message: {queue: mail, headers: {partner: other}}, error: {status: 500}, ` + retries + `, delay: 10s, policy: shared}`, ""},
		{"a Transport without a policy has the defaults", `transport: plain, error: {status: 500}, ` + retries + `, delay: 1s, policy: (defaults)}`, ""},
		{"a queue tells the Transport", `message: {queue: plain}, error: {status: 500}, ` + retries + `, policy: (defaults)}`, ""},
	}
	s := suite(t, policies+transports)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fields := tt.fields
			if !strings.Contains(fields, "queue:") && !strings.Contains(fields, "policy:") && !strings.Contains(fields, "transport:") {
				fields = "policy: standard, " + fields
			}
			r, err := run(t, s, fields, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Differences, "; "); got != tt.want {
				t.Errorf("differences %q, want %q; got %+v", got, tt.want, r.Got)
			}
		})
	}
}

func TestSuite_ChoosesThePolicyOfACase(t *testing.T) {
	one := strings.SplitAfterN(policies, "---\n", 3)
	const failure = `error: {status: 500}, expect: {action: Retry}`
	tests := []struct {
		name, manifests, fields, forced string
		want                            string
		err                             string
	}{
		{"the only one", strings.TrimSuffix(one[1], "---\n"), failure, "", "shared", ""},
		{"the forced one, whatever the case says", policies, "policy: shared, " + failure, "acme", "acme", ""},
		{"the one that the case names", policies + transports, "policy: shared, message: {queue: orders}, " + failure, "", "shared", ""},
		{"by namespace", policies, failure, "default/acme", "acme", ""},
		{"none of several", policies, failure, "", "", `which policy? Set ` + "`policy`" + ` to one of acme, shared, standard, or add the Transport to the files`},
		{"one that does not exist", policies, "policy: acne, " + failure, "", "", `there is no RetryPolicy "acne" in the files, which have acme, shared, standard`},
		{"several of a name", policies + strings.Replace("---\n"+strings.TrimSuffix(one[1], "---\n"), "{name: shared}", "{name: shared, namespace: other}", 1), "policy: shared, " + failure, "", "", `say which of default/shared, other/shared`},
		{"several Transports", policies + transports, failure, "", "", "which Transport? Set `transport` to one of plain, shop, or message.queue to a queue of one of them"},
		{"a Transport that does not exist", policies + transports, "transport: shoop, " + failure, "", "", `there is no Transport "shoop" in the files, which have plain, shop`},
		{"a queue that no Transport has", policies + transports, "message: {queue: oders}, " + failure, "", "", `no Transport in the files has the queue "oders"`},
		{"a queue that the Transport does not have", policies + transports, "transport: shop, message: {queue: oders}, " + failure, "", "", `message.queue is "oders": Transport shop has orders, mail`},
		{"queues with different policies", policies + transports, "transport: shop, " + failure, "", "", "set message.queue to one of orders, mail"},
		{"a streak of a strategy that does not exist", policies, "policy: standard, attempts: 3, streak: {strategy: throttled, count: 3}, " + failure, "", "", `streak.strategy is "throttled": the strategies of policy standard are shared/throttled, shared/unreachable, shared/night, shared/heavy`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, suite(t, tt.manifests), tt.fields, tt.forced)
			if text := fmt.Sprint(err); err != nil && (tt.err == "" || !strings.Contains(text, tt.err) || !strings.HasPrefix(text, `cases.yaml:2: case "case 1": `)) {
				t.Errorf("error = %v, want %q", err, tt.err)
			}
			if err == nil && tt.err != "" || r.Policy != tt.want {
				t.Errorf("policy %q, want %q; error %v, want %q", r.Policy, tt.want, err, tt.err)
			}
		})
	}
}

func TestNewSuite_RefusesManifestsThatDoNotFitTogether(t *testing.T) {
	tests := []struct{ name, manifests, want string }{
		{
			"a policy that is not there", transports,
			`stdin:2: Transport default/shop: it refers to RetryPolicy "acme", which is not in the files`,
		},
		{
			"an include that is not there", strings.SplitN(policies, "---\n", 2)[0],
			`RetryPolicy default/standard: RetryPolicy "standard", spec.includeStrategies[0]: RetryPolicy "shared" does not exist in namespace "default"`,
		},
		{
			"an expression that does not compile", strings.Replace(policies, "error.status == 429", "error.statsu == 429", 1),
			`policy "shared", strategy "throttled", when, 1:6: there is no field statsu; did you mean status?`,
		},
		{
			"a rule that does not compile", policies + strings.Replace(transports, "message.headers.partner ==", "error.status ==", 1),
			`Transport default/shop: spec.retryPolicies[0].when, 1:1: there is no variable error here, only message`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := newSuite(t, tt.manifests); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestSuite_DrawsTheSameDelayFromTheSameSeed(t *testing.T) {
	s := suite(t, policies)
	cases, err := policytest.Parse("cases.yaml", []byte("cases:\n- {error: {status: 500}, expect: {action: Retry}}\n- {name: b, error: {status: 500}, expect: {action: Retry}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	drawn := func(seed uint64) string {
		results, err := s.Run(cases, "shared", seed)
		if err != nil {
			t.Fatal(err)
		}
		if results[0].Got.Drawn != results[1].Got.Drawn {
			t.Errorf("the same failure was drawn %s and %s", results[0].Got.Drawn, results[1].Got.Drawn)
		}
		return results[0].Got.Drawn
	}
	if first := drawn(7); first != drawn(7) || first == drawn(8) {
		t.Errorf("seed 7 draws %s and %s, seed 8 %s", first, drawn(7), drawn(8))
	}
}

func TestSuite_TellsOfExpressionsThatFail(t *testing.T) {
	r, err := run(t, suite(t, policies+transports), `message: {queue: orders, body: {other: 1}}, error: {status: 500}, immediate: 1, expect: {action: Retry}`, "")
	if err != nil {
		t.Fatal(err)
	}
	want := `spec.retryPolicies[0].when, 1:16: no such key; policy "standard", strategy "shared/heavy", when, 1:13: no such key`
	if got := strings.Join(r.Problems, "; "); got != want || !r.Holds() {
		t.Errorf("problems %q, want %q; differences %v", got, want, r.Differences)
	}
}

func TestSuite_ShowsMessagesAsAWorkerWould(t *testing.T) {
	const policy = `
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: p}
spec:
  strategies:
  - name: all
    action: Drop
    when: >-
      message.correlationId == 'c' && message.replyTo == 'r' && message.appId == 'a' && message.userId == 'u' && message.expiration == duration('1m') &&
      message.id == 'i' && message.type == 'App.Foo' && message.exchange == 'e' && message.routingKey == 'k' && message.contentType == 'c' &&
      message.priority == 7 && message.timestamp == timestamp('2026-01-02T03:04:05Z') && message.headers.n == 3 && message.headers.list[1].deep == true
      && message.body.items[0].price == 1.5 && message.body.none == null && message.body.day == '2026-01-02' && message.size == 56 && attempt == 6 && retries == 2
      && age == duration('90s') && now == timestamp('2026-01-05T12:00:00Z') && error.source == 'Timeout' && error.class == 'C' && error.message == 'M'
`
	r, err := run(t, suite(t, policy), `message: {id: i, exchange: e, routingKey: k, contentType: c, correlationId: c, replyTo: r, appId: a, userId: u, expiration: 1m, priority: 7, timestamp: 2026-01-02T03:04:05Z,
    headers: {type: App.Foo, n: 3, list: [a, {deep: true}]}, body: {items: [{price: 1.5}], none: null, day: 2026-01-02}},
  error: {source: Timeout, class: C, message: M}, retries: 2, attempts: 5, age: 90s, expect: {action: Drop}`, "")
	if err != nil || !r.Holds() {
		t.Errorf("%v, differences %v, problems %v", err, r.Differences, r.Problems)
	}
}

func TestParse_RefusesWrongFiles(t *testing.T) {
	const rest = "  error: {status: 500}\n  expect: {action: Retry}\n"
	tests := []struct{ name, file, want string }{
		{"empty", "", "cases.yaml: it is empty; a file of cases begins with `cases:`"},
		{"no cases", "cases: []\n", "cases.yaml: there are no cases in it"},
		{"no YAML", "cases:\n- {", "cases.yaml:2: did not find expected node content"},
		{"two documents", "cases:\n- name: a\n" + rest + "---\ncases: []\n", "cases.yaml: there is more than one document in it; all cases stand in one list"},
		{"another field at the top", "case:\n- name: a\n" + rest, "cases.yaml:1: unknown field \"case\": a file of cases has `cases`, a list"},
		{"a list at the top", "- name: a\n" + rest, "cases.yaml:1: a list stands where fields should, such as {status: 502}"},
		{
			"an unknown field", "cases:\n- name: a\n  mesage: {}\n" + rest,
			`cases.yaml:3: unknown field "mesage": the fields here are name, transport, policy, message, error, retries, immediate, attempts, streak, age, lastDelay, now, expect`,
		},
		{
			"an unknown field further down", "cases:\n- name: a\n" + strings.Replace(rest, "status", "code", 1),
			`cases.yaml:3: unknown field "code": the fields here are source, status, class, message, retryAfter, advice`,
		},
		{"an unknown field of a delay", "cases:\n- expect: {action: Retry, delay: {from: 1s}}\n", `cases.yaml:2: unknown field "from": the fields here are min, max`},
		{"a bad duration", "cases:\n- age: 1 day\n" + rest, `cases.yaml:2: "1 day" is no duration: write 500ms, 5s, 1h30m`},
		{"a negative duration", "cases:\n- expect: {action: Retry, delay: -1s}\n", `cases.yaml:2: "-1s" is no duration: write 500ms, 5s, 1h30m`},
		{"a number as a duration", "cases:\n- expect: {action: Retry, delay: 5}\n", `cases.yaml:2: "5" is no duration: write 500ms, 5s, 1h30m`},
		{"bounds the wrong way round", "cases:\n- expect: {action: Retry, delay: {min: 2s, max: 1s}}\n", `cases.yaml:2: min 2s is longer than max 1s`},
		{"a word for a number", "cases:\n- retries: two\n" + rest, `cases.yaml:2: "two" stands where a whole number should`},
		{"a number for fields", "cases:\n- error: 502\n  expect: {action: Retry}\n", `cases.yaml:2: "502" stands where fields should, such as {status: 502}`},
		{"a word for a time", "cases:\n- now: yesterday\n" + rest, `cases.yaml:2: "yesterday" is no time: write 2026-01-05T02:00:00Z`},
		{"a list for headers", "cases:\n- message: {headers: [a]}\n" + rest, `cases.yaml:2: a list stands where fields with values should`},
		{"no action", "cases:\n- name: a\n  error: {status: 500}\n", `cases.yaml:2: case "a": expect.action is "": it is one of Retry, Fail, Drop`},
		{"an unknown action", "cases:\n- expect: {action: Ignore}\n", `cases.yaml:2: case "case 1": expect.action is "Ignore": it is one of Retry, Fail, Drop`},
		{"an unknown reason", "cases:\n- expect: {action: Fail, reason: TooOld}\n", `expect.reason is "TooOld": it is one of Retry, Immediate, MaxRetries, MaxAge, Strategy, Undecodable, Unrecoverable, Advice`},
		{"a delay of what is not retried", "cases:\n- expect: {action: Fail, delay: 1s}\n", `expect.delay belongs to action Retry, not to Fail`},
		{"an unknown source", "cases:\n- error: {source: Network}\n  expect: {action: Fail}\n", `error.source is "Network": it is one of Handler, Timeout, Crash, Connection`},
		{"advice that is none", "cases:\n- error: {advice: ignore}\n  expect: {action: Fail}\n", `error.advice is "ignore": it is one of Fail, Drop, Retry`},
		{"a status that is none", "cases:\n- error: {status: 1000}\n  expect: {action: Fail}\n", `error.status is 1000: it is from 0 (none) to 599`},
		{"a negative count", "cases:\n- retries: -1\n" + rest, `retries is -1: it is from 0 to 1000000000`},
		{"fewer attempts than retries", "cases:\n- {retries: 3, attempts: 2, expect: {action: Fail}}\n", `attempts is 2: every retry and every try at once was an attempt, so it is 3 at least`},
		{"a streak without a strategy", "cases:\n- {retries: 3, streak: {count: 2}, expect: {action: Fail}}\n", `streak has a strategy and a count from 1 up, or is left out`},
		{"a streak longer than the attempts", "cases:\n- {streak: {strategy: a, count: 2}, expect: {action: Fail}}\n", `streak.count is 2: every decision was an attempt, so set attempts to that at least`},
		{"two bodies", "cases:\n- {message: {body: 1, rawBody: x}, expect: {action: Fail}}\n", `message has body, which is written as JSON, or rawBody, which is used unchanged, not both`},
		{"a header of Redrive", "cases:\n- {message: {headers: {redrive-retries: 3}}, expect: {action: Fail}}\n", `message.headers has "redrive-retries": expressions do not see headers of Redrive; use retries, age, streak`},
		{"too many retries and tries at once", "cases:\n- {retries: 1000000000, immediate: 1, expect: {action: Fail}}\n", `retries and immediate are 1000000001 together: they are 1000000000 at most`},
		{"a name twice", "cases:\n- {name: a, expect: {action: Fail}}\n- {name: a, expect: {action: Drop}}\n", `cases.yaml:3: case "a": there is a case of this name in line 2`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := policytest.Parse("cases.yaml", []byte(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestParse_TellsEachMistakeOnceWithItsPlace(t *testing.T) {
	_, err := policytest.Parse("cases.yaml", []byte(`cases:
- {age: soon, expect: {action: Fail}}
- {expect: {action: Ignore, delay: 1s, reason: None}, retries: -1}
- {title: c}
- {retries: -2, immediate: 1, streak: {strategy: a, count: 3}, expect: {action: Fail}}
`))
	want := `cases.yaml:2: "soon" is no duration: write 500ms, 5s, 1h30m
cases.yaml:3: case "case 2": retries is -1: it is from 0 to 1000000000
cases.yaml:3: case "case 2": expect.action is "Ignore": it is one of Retry, Fail, Drop
cases.yaml:3: case "case 2": expect.reason is "None": it is one of Retry, Immediate, MaxRetries, MaxAge, Strategy, Undecodable, Unrecoverable, Advice
cases.yaml:4: unknown field "title": the fields here are name, transport, policy, message, error, retries, immediate, attempts, streak, age, lastDelay, now, expect
cases.yaml:5: case "case 4": retries is -2: it is from 0 to 1000000000`
	if fmt.Sprint(err) != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestSuite_RefusesNamesThatNothingHas(t *testing.T) {
	const failure = "error: {status: 500}, expect: {action: Retry, "
	tests := []struct {
		name, fields string
		// want is all the error; empty where there is none.
		want string
	}{
		{"a strategy", "policy: acme, " + failure + "strategy: throttled}", `expect.strategy is "throttled": the strategies of policy acme are none`},
		{"a policy", "policy: acme, " + failure + "policy: acne}", `expect.policy is "acne": the policies are (defaults), acme, shared, standard`},
		{
			"a strategy of the policy that is expected", "policy: acme, " + failure + "policy: shared, strategy: shared/night}",
			`expect.strategy is "shared/night": the strategies of policy shared are throttled, unreachable, night, heavy`,
		},
		{
			"a strategy, whatever the message chooses", "message: {queue: orders}, " + failure + "strategy: nigth}",
			`expect.strategy is "nigth": the strategies of policy standard are shared/throttled, shared/unreachable, shared/night, shared/heavy`,
		},
		{"one of a policy that should have been chosen differs", "message: {queue: orders}, " + failure + "strategy: night}", ""},
		{"one of the policy that is expected differs", "policy: acme, " + failure + "policy: shared, strategy: night}", ""},
		{"the defaults are a policy", "policy: acme, " + failure + `policy: (defaults), strategy: ""}`, ""},
	}
	s := suite(t, policies+transports)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, s, tt.fields, "")
			if tt.want != "" && fmt.Sprint(err) != `cases.yaml:2: case "case 1": `+tt.want {
				t.Errorf("error = %v\nwant %s", err, tt.want)
			}
			if tt.want == "" && (err != nil || r.Holds()) {
				t.Errorf("error = %v, want a case that does not hold", err)
			}
		})
	}
}

func TestSuite_TellsOnceOfAForcedPolicyThatIsMissing(t *testing.T) {
	cases, err := policytest.Parse("cases.yaml", []byte("cases:\n- {expect: {action: Retry}}\n- {expect: {action: Retry}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := `--policy: there is no RetryPolicy "nope" in the files, which have acme, shared, standard`
	if _, err := suite(t, policies).Run(cases, "nope", 1); fmt.Sprint(err) != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestParse_AllowsAnchorsToShareParts(t *testing.T) {
	cases, err := policytest.Parse("cases.yaml", []byte("cases:\n- {name: a, error: &down {status: 503}, expect: {action: Retry}}\n- {name: b, error: *down, expect: {action: Retry}}\n"))
	if err != nil || len(cases) != 2 || cases[1].Error.Status != 503 {
		t.Errorf("%+v, %v", cases, err)
	}
}

func TestJUnit_WritesASuiteForEachFile(t *testing.T) {
	results := []policytest.Result{
		{Name: "holds", File: "a.yaml", Line: 2, Policy: "p", Took: 1500 * time.Microsecond, Problems: []string{"no such key: x"}},
		{Name: "<differs> \x00", File: "a.yaml", Line: 3, Policy: "p", Took: time.Microsecond, Differences: []string{"delay is 1s, not 2s", `strategy is none, not "s"`}},
		{Name: "elsewhere", File: "b.yaml", Line: 2, Policy: "q"},
	}
	text, err := policytest.JUnit(results)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Name     string `xml:"name,attr"`
			Tests    int    `xml:"tests,attr"`
			Failures int    `xml:"failures,attr"`
			Time     string `xml:"time,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Class   string `xml:"classname,attr"`
				Time    string `xml:"time,attr"`
				Output  string `xml:"system-out"`
				Failure *struct {
					Message string `xml:"message,attr"`
					Text    string `xml:",chardata"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if report.Tests != 3 || report.Failures != 1 || len(report.Suites) != 2 {
		t.Fatalf("%d tests, %d failures, %d suites\n%s", report.Tests, report.Failures, len(report.Suites), text)
	}
	a := report.Suites[0]
	if a.Name != "a.yaml" || a.Tests != 2 || a.Failures != 1 || a.Time != "0.001501" || a.Cases[0].Output != "no such key: x" || a.Cases[0].Class != "p" {
		t.Errorf("%+v", a)
	}
	if f := a.Cases[1].Failure; a.Cases[0].Failure != nil || f == nil || f.Message != `delay is 1s, not 2s; strategy is none, not "s"` || !strings.Contains(f.Text, "a.yaml:3") {
		t.Errorf("%s", text)
	}
}
