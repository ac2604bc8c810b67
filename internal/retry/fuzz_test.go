package retry

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// documented are expressions as the documentation shows them, each reading something that a client has in its hand.
func documented() []string {
	return []string{
		`error.status == 429`,
		`error.status in [400, 401, 403, 404, 422]`,
		`error.message.lowerAscii().contains('try again')`,
		`has(error.retryAfter) && error.retryAfter > duration('1h')`,
		`message.type.matches('^App.Message.*Api')`,
		`message.headers.partner == 'acme'`,
		`string(message.headers.partner) == 'acme'`,
		`'x-tenant' in message.headers && message.headers['x-tenant'] == 'acme'`,
		`message.headers.exists(name, name.startsWith('x-legacy-'))`,
		`message.headers.partner in message.body.partners`,
		`message.body.order.total > 100`,
		`message.body.all(a, message.body.all(b, a == b))`,
		`message.body.exists(k, message.body[k] == message.headers.partner)`,
		`message.timestamp < now - duration('1h') && age > duration('10m')`,
		`message.body`,
		`attempt > retries + 1`,
		`message.headers == message.body`,
		`size(message.body) > size(message.id)`,
	}
}

// anything is a message whose parts come from a fuzzer. The first bytes of the raw text choose the type of its header.
func anything(id, kind, partner, raw string, body []byte) Message {
	values := []any{raw, []byte(raw), len(raw), int64(-len(raw)), float32(len(raw)), len(raw) > 3, nil, []any{raw, nil, 1}, map[string]any{raw: raw}, start(), make(chan int)}
	return Message{
		ID: id, Type: kind, Queue: partner, Body: body, Priority: len(raw), Timestamp: start().Add(time.Duration(len(raw)) * time.Hour),
		Headers: map[string]any{"partner": partner, "x-tenant": values[len(id+kind)%len(values)], raw: values[len(body)%len(values)]},
	}
}

func seeds(f *testing.F) {
	f.Helper()
	f.Add("id", "order.paid", "acme", "x-legacy-a", []byte(`{"order": {"total": 120}, "partners": ["acme"]}`), int64(2), int64(502))
	f.Add("", "", "", "", []byte(``), int64(0), int64(0))
	f.Add("\xff", "App\\Message\\FooApi", "\x00", "try again", []byte(`[[[[[[[[`), int64(-1), int64(429))
	f.Add("i", "t", "p", "r", []byte(`[1e999, 9007199254740993, null, {"a": [true]}]`), int64(1<<62), int64(415))
	f.Add("i", "t", "p", "r", append([]byte(`{"k": "`), make([]byte, 3000)...), int64(3), int64(-7))
}

// history takes counts from a number, the absurd ones too.
func history(n int64) History {
	var digits [8]byte
	binary.BigEndian.PutUint64(digits[:], uint64(n))
	return History{
		Attempts: n, Retries: n >> 8, Strategy: string(digits[7:]), Streak: n >> 16, FirstFailure: start().Add(-time.Duration(n)),
		LastDelay: time.Duration(n), Immediate: n >> 60,
	}
}

func checkVerdict(t *testing.T, p *Policy, v Verdict, before History) {
	t.Helper()
	if !slices.Contains([]v1alpha1.Action{v1alpha1.ActionRetry, v1alpha1.ActionFail, v1alpha1.ActionDrop}, v.Action) {
		t.Errorf("action %q", v.Action)
	}
	if v.Delay < 0 || v.Delay > p.maxAge || v.Action != v1alpha1.ActionRetry && v.Delay != 0 {
		t.Errorf("%s in %s, maxAge %s", v.Action, v.Delay, p.maxAge)
	}
	if h := v.History; h.Attempts < max(before.Attempts, 1) || h.Retries < 0 || h.Streak < 0 || h.FirstFailure.After(start().Add(MaxAhead)) {
		t.Errorf("history %+v after %+v", h, before)
	}
	for _, problem := range v.Problems {
		var at *ExpressionError
		if !errors.As(problem, &at) || len(problem.Error()) > maxErrorText+200 {
			t.Errorf("problem %.500v", problem)
		}
	}
}

func FuzzDecisionsOnAnyMessage(f *testing.F) {
	seeds(f)
	var spec v1alpha1.RetryPolicySpec
	for _, when := range documented() {
		// Each is asked, and none decides but by its delay: the next one is asked too.
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: "when", When: "(" + when + ") && age < duration('0s')"})
	}
	spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{
		Name: "delay", When: "true", DelayFrom: new("duration(string(message.headers.partner))"), MaxDelay: v1alpha1.NewDuration(time.Hour),
	})
	p, err := Compile("p", spec)
	if err != nil {
		f.Fatal(err)
	}
	rules, err := CompileRules("rules", []string{documented()[5], documented()[8], documented()[10]})
	if err != nil {
		f.Fatal(err)
	}
	key, err := CompileKey("key", `message.headers['x-tenant']`)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, id, kind, partner, raw string, body []byte, count, status int64) {
		m := anything(id, kind, partner, raw, body)
		failure := Failure{Source: Source(kind), Class: id, Message: raw, Status: int(status), RetryAfter: new(time.Duration(count))}
		failure.Advice = []Advice{"", AdviseFail, AdviseDrop, AdviseRetry}[uint64(status)%4]
		checkVerdict(t, p, p.Decide(failure, m, history(count), start(), edge(count&1 == 0)), history(count))
		if index, problems := rules.First(m); index < -1 || index > 2 || len(problems) > 3 {
			t.Errorf("rule %d, problems %v", index, problems)
		}
		if text, err := key.Of(m); len(text) > maxKey || err != nil && text != "" {
			t.Errorf("key %q, %v", text, err)
		}
	})
}

// A fuzzer writes the expression too. What compiles runs on any message, and gives the same with and without its cost counted.
func FuzzAnyExpression(f *testing.F) {
	for _, when := range documented() {
		f.Add(when, "acme", "id", []byte(`{"partner": "acme", "n": [1, 2]}`))
	}
	f.Add(`[1,2,3].map(a, [a, a]).exists(b, b == message.headers)`, "", "", []byte(`1`))
	f.Add(`message.type.split('').join('x').format([]) == r'\'`, "", "", []byte(`{`))
	f.Fuzz(func(t *testing.T, when, partner, raw string, body []byte) {
		if len(when) > 2048 {
			t.Skip("longer than the API allows")
		}
		p, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: when}}})
		if err != nil {
			return
		}
		if _, err := p.Strategies(); err != nil {
			t.Errorf("%q is not understood: %v", when, err)
		}
		m := anything(raw, partner, partner, raw, body)
		checkVerdict(t, p, p.Decide(Failure{Message: raw}, m, History{}, start(), edge(false)), History{})
		compiled := p.strategies[0].when
		if !compiled.light {
			return
		}
		s := p.schema.scope(p.decode, m)
		defer s.release()
		s.setFailure(Failure{Message: raw}, History{}, 0, start())
		s.short = true
		plain, plainErr := compiled.matches(s)
		s.short = false
		counted, countedErr := compiled.matches(s)
		if counted != plain || (countedErr == nil) != (plainErr == nil) {
			t.Errorf("%q: %v, %v where costs are counted; %v, %v where not", when, counted, countedErr, plain, plainErr)
		}
	})
}
