package retry

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// tenStrategies is a policy as teams write it; the failure of lastOfTen reaches its last strategy, and that matches.
const tenStrategies = `
maxRetries: 5
strategies:
- {name: throttled, priority: 100, when: error.status == 429, unlimited: true, delayFrom: error.retryAfter}
- {name: rejected, when: "error.status in [400, 401, 403, 404, 409, 422]", action: Fail}
- {name: gone, when: error.status == 410 && message.type != 'audit', action: Drop}
- {name: unreachable, when: error.source == 'Connection', maxRetries: 50, backoff: {type: Constant, delay: 10s}}
- {name: payments, when: message.type == 'payment.capture' && error.source == 'Timeout', action: Fail}
- {name: locked, when: error.class.endsWith('/stock-locked'), unlimited: true}
- {name: deadlock, when: error.message.contains('deadlock') && retries < 3, backoff: {type: Constant, delay: 100ms}}
- {name: maintenance, when: error.status == 503 && has(message.headers.partner) && message.headers.partner == 'initech'}
- {name: outdated, when: age > duration('6h') && message.type.startsWith('price.'), action: Drop}
- {name: acme, when: "'partner' in message.headers && message.headers.partner == 'acme'", backoff: {type: Exponential, delay: 2s}}
`

func lastOfTen() (Failure, Message, History) {
	f := Failure{Source: SourceHandler, Status: 502, Class: "https://shop.example/problems/upstream", Message: "upstream"}
	m := Message{
		ID: "0d3adb33f", Type: "order.paid", Exchange: "orders", RoutingKey: "order.paid", Queue: "invoices", ContentType: "application/json",
		Headers: map[string]any{"partner": "acme", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		Body:    []byte(`{"order": {"total": 100}}`),
	}
	return f, m, History{Attempts: 1, Retries: 1, Strategy: "acme", Streak: 1, FirstFailure: start().Add(-time.Minute)}
}

func TestCostOf_TakesOnlyCheapExpressionsForLight(t *testing.T) {
	tests := []struct {
		when  string
		light bool
	}{
		{`error.status == 429`, true},
		{`error.status in [400, 401, 403, 404, 422]`, true},
		{`message.type == 'App\\Message\\BarApiMessage'`, true},
		{`message.headers.partner == 'acme'`, true},
		{`has(message.headers.partner) && message.headers.partner == 'acme'`, true},
		{`error.message.lowerAscii().contains('try again')`, true},
		{`error.message.contains('deadlock')`, true},
		{`message.type.matches('^App.Message.*Api')`, true},
		{`age > duration('6h') && now.getHours() == 2`, true},
		{`message.headers.exists(name, name.startsWith('x-legacy-'))`, false},
		{`message.headers.a == message.headers.b`, false},
		{`'%s'.format([message.body]) == 'x'`, false},
		{`error.class.replace('a', 'b') == 'x'`, false},
		{`string(message.headers.partner) == 'acme'`, false},
		{`message.body.list.all(x, x > 0)`, false},
		{`int(message.headers.tries) > 3`, false},
		{`int(message.id) > 3`, true},
		{`duration(message.headers.wait) < age`, false},
		{`message.body.text.size() > 3`, false},
		{`message.id.size() > 3 && message.headers.size() > 3`, true},
		{`[1, 2, 3].all(x, [1, 2, 3].all(y, x * y > 0))`, true},
	}
	for _, tt := range tests {
		if got := strategyWhen(t, tt.when).strategies[0].when.light; got != tt.light {
			t.Errorf("%s: light %v, want %v", tt.when, got, tt.light)
		}
	}
}

func TestBudget_CountsLongTextsInALightExpression(t *testing.T) {
	expensive := strings.TrimSuffix(strings.Repeat(`message.type.contains('b') || `, 60), " || ")
	p := strategyWhen(t, expensive)
	if !p.strategies[0].when.light {
		t.Fatal("the expression is counted always: the test shows nothing")
	}
	v := p.Decide(Failure{}, Message{Type: strings.Repeat("a", 1<<20)}, History{}, start(), edge(false))
	checkProblem(t, v.Problems, "when", "more than the steps that one decision has")
	if v = p.Decide(Failure{}, Message{Type: "aaaab"}, History{}, start(), edge(false)); v.Action != v1alpha1.ActionDrop {
		t.Errorf("verdict = %+v", v)
	}
}

// A policy uses values of earlier messages again. Whatever these were, it decides as one that has seen none.
func TestDecide_DoesNotDependOnTheMessagesBefore(t *testing.T) {
	text := strings.NewReplacer("action: Drop", "action: Fail").Replace(tenStrategies)
	used := compile(t, text)
	rnd := rand.New(rand.NewPCG(3, 4))
	pick := func(values ...string) string { return values[rnd.IntN(len(values))] }
	for range 300 {
		f := Failure{
			Source: Source(pick("Handler", "Timeout", "Connection")), Status: []int{0, 410, 429, 502, 503}[rnd.IntN(5)],
			Class: pick("", "x/stock-locked", "other"), Message: pick("", "deadlock found", "upstream"),
		}
		m := Message{Type: pick("", "audit", "payment.capture", "price.changed"), Headers: map[string]any{}}
		if partner := pick("", "acme", "initech"); partner != "" {
			m.Headers["partner"] = partner
		}
		h := History{Attempts: rnd.Int64N(9), Retries: rnd.Int64N(9), FirstFailure: start().Add(-time.Duration(rnd.Int64N(int64(12 * time.Hour))))}
		got := used.Decide(f, m, h, start(), edge(false))
		want := compile(t, text).Decide(f, m, h, start(), edge(false))
		if got.Strategy != want.Strategy || got.Action != want.Action || got.Delay != want.Delay || got.History != want.History || len(got.Problems)+len(want.Problems) > 0 {
			t.Fatalf("%+v %+v\n got %+v\nwant %+v", f, m, got, want)
		}
	}
}
