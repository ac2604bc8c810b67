package retry

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Each evaluation may hold some MiB of texts. Where 200 messages failed together, all 200 had begun before the first was done.
func TestTurns_FewCostlyExpressionsAreEvaluatedAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := strategyWhen(t, `message.body.all(x, x == 0)`)
		var now, most atomic.Int64
		held := make(chan struct{})
		p.decode = func(body []byte) (any, error) { // in the midst of an evaluation
			most.Store(max(most.Load(), now.Add(1)))
			<-held
			now.Add(-1)
			return decodeJSON(body)
		}
		turns := NewTurns(3)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				v := p.Decide(Failure{}, Message{Body: []byte(`[0, 0]`), Turns: turns}, History{}, start(), edge(false))
				if v.Strategy != "s" {
					t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
				}
			})
			synctest.Wait()
		}
		if now.Load() != 3 {
			t.Errorf("%d are evaluated while none is done, want 3", now.Load())
		}
		close(held)
		all.Wait()
		if most.Load() != 3 {
			t.Errorf("%d were evaluated at a time, want 3", most.Load())
		}
	})
}

func TestTurns_LightExpressionsWaitForNone(t *testing.T) {
	turns := NewTurns(1)
	turns.take("")
	m := Message{ID: "1", Body: []byte(`{"x": 1}`), Headers: map[string]any{"partner": "acme"}, Turns: turns}
	for _, when := range []string{`error.status == 0`, `message.headers.partner == 'acme'`, `message.body.x == 1`, `message.id.startsWith('1')`} {
		if v := strategyWhen(t, when).Decide(Failure{}, m, History{}, start(), edge(false)); v.Strategy != "s" {
			t.Errorf("%s: problems %v", when, v.Problems)
		}
	}
}

// What is over its budget needs no turn to be told so.
func TestTurns_AnEvaluationWithoutABudgetWaitsForNone(t *testing.T) {
	turns := NewTurns(1)
	turns.take("")
	m := Message{Body: []byte(`[0]`), Turns: turns, Budget: &Budget{steps: DecisionSteps + 1}}
	v := strategyWhen(t, `message.body.all(x, x == 0)`).Decide(Failure{}, m, History{}, start(), edge(false))
	checkProblem(t, v.Problems, "when", string(errSteps))
}

// An evaluation that kept its turn while it waited for the memory of a body would wait for one that has the memory and waits for the turn.
func TestTurns_AnEvaluationThatWaitsForMemoryHasNone(t *testing.T) {
	for _, size := range []int{100, quickBody + 100} {
		synctest.Test(t, func(t *testing.T) {
			p := strategyWhen(t, `['a'].map(t, t.replace('a', 'xyz')).exists(t, t == message.body[0])`)
			body := []byte(`["xyz"` + strings.Repeat(" ", size-7) + `]`)
			bodies, turns := NewBodies(int64(len(body)), 2), NewTurns(1)
			if err := bodies.take("", len(body)); err != nil {
				t.Fatal(err)
			}
			var budgets [10]Budget
			var all sync.WaitGroup
			for i := range budgets {
				all.Go(func() {
					m := Message{Body: body, Bodies: bodies, Turns: turns, Budget: &budgets[i], Queue: strconv.Itoa(i % 3)}
					if v := p.Decide(Failure{}, m, History{}, start(), edge(false)); v.Strategy != "s" || len(v.Problems) > 0 {
						t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
					}
				})
			}
			synctest.Wait()
			if !turns.line.tryTake(1) {
				t.Fatal("one that waits for memory has the turn")
			}
			turns.give("", 0)
			bodies.give("", len(body))
			all.Wait()
			var alone Budget
			p.Decide(Failure{}, Message{Body: body, Budget: &alone}, History{}, start(), edge(false))
			for i := range budgets {
				if budgets[i].steps != alone.steps {
					t.Errorf("a message that waited took %d steps, and one that did not %d", budgets[i].steps, alone.steps)
				}
			}
			if !bodies.tryTake(len(body)) || !turns.line.tryTake(1) {
				t.Error("memory or a turn is missing in the end")
			}
		})
	}
}

func TestTurns_AnUndecodableBodyIsTriedOnceInATurn(t *testing.T) {
	p := compile(t, `strategies: [{name: a, when: "message.body.all(x, x == 1)"}, {name: b, when: "message.body.all(x, x == 2)"}]`)
	for _, size := range []int{10, quickBody + 10} {
		decoded := 0
		p.decode = func(body []byte) (any, error) {
			decoded++
			return decodeJSON(body)
		}
		v := p.Decide(Failure{}, Message{Body: []byte(strings.Repeat("?", size)), Turns: NewTurns(1)}, History{}, start(), edge(false))
		if decoded != 1 || len(v.Problems) != 2 || !strings.Contains(v.Problems[1].Error(), "message.body is not JSON") {
			t.Errorf("%d bytes: decoded %d times, problems %v", size, decoded, v.Problems)
		}
	}
	v := p.Decide(Failure{}, Message{Body: []byte(`[1, 1, 1]`), Bodies: NewBodies(5, 2), Turns: NewTurns(1)}, History{}, start(), edge(false))
	if len(v.Problems) != 2 || !strings.Contains(v.Problems[0].Error(), "it counts as 9 bytes") {
		t.Errorf("a body that never has room: %v", v.Problems)
	}
}

// BenchmarkCountedMatch tells what a short evaluation costs that has to count: with its turn, which it need not wait for.
func BenchmarkCountedMatch(b *testing.B) {
	m := Message{Headers: map[string]any{"partner": "acme"}, Body: []byte(`["acme"]`), Turns: NewTurns(2)}
	for name, when := range map[string]string{
		"header": `message.headers.partner.matches('^acme$')`, "body": `message.body.exists(p, p == 'acme')`,
	} {
		match, err := CompileMatch("f", when)
		if err != nil || match.expression.light {
			b.Fatal(err, "is light")
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := match.Matches(m); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
