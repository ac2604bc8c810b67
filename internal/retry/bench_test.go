package retry

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// manyStrategies makes a policy of n strategies of which the last one matches.
func manyStrategies(b *testing.B, n int, when string) *Policy {
	var spec v1alpha1.RetryPolicySpec
	for i := range n {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprintf("s-%d", i), When: fmt.Sprintf(when, i-n+505)})
	}
	p, err := Compile("p", spec)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func BenchmarkDecide(b *testing.B) {
	header := `error.status == %d && message.headers.partner == 'acme'`
	body := `error.status == %d && message.body.count == 3`
	benchmarks := []struct {
		name   string
		policy *Policy
	}{
		{"without strategies", compile(b, `{}`)},
		{"jitter without strategies", compile(b, `backoff: {type: Exponential, jitter: {type: Full}}`)},
		{"1 strategy", manyStrategies(b, 1, header)},
		{"10 strategies", manyStrategies(b, 10, header)},
		{"128 strategies", manyStrategies(b, 128, header)},
		{"1 strategy that reads the body", manyStrategies(b, 1, body)},
		{"10 strategies of which the last reads the body", manyStrategies(b, 10, body)},
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	h := History{Attempts: 1, Retries: 1, FirstFailure: start().Add(-time.Minute)}
	m := order()
	for _, bb := range benchmarks {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if v := bb.policy.Decide(timeout(), m, h, start(), rnd); v.Action != v1alpha1.ActionRetry || len(v.Problems) > 0 {
					b.Fatalf("verdict = %+v", v)
				}
			}
		})
	}
}

// The policy of TestDecide_AllocatesLittleForTenStrategies, with failures that its first and its last strategy decide, and
// messages of which no two are alike.
func BenchmarkDecideTypical(b *testing.B) {
	p := compile(b, tenStrategies)
	f, m, h := lastOfTen()
	rnd := rand.New(rand.NewPCG(1, 2))
	decide := func(b *testing.B, f Failure, m Message, strategy string) {
		if v := p.Decide(f, m, h, start(), rnd); v.Strategy != strategy || len(v.Problems) > 0 {
			b.Fatalf("verdict = %+v", v)
		}
	}
	b.Run("the first of 10 decides", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			decide(b, Failure{Source: SourceHandler, Status: 429}, m, "throttled")
		}
	})
	b.Run("the last of 10 decides", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			decide(b, f, m, "acme")
		}
	})
	b.Run("the last of 10 decides, each message another", func(b *testing.B) {
		messages := make([]Message, 1024)
		failures := make([]Failure, len(messages))
		for i := range messages {
			messages[i], failures[i] = m, f
			messages[i].Type = fmt.Sprintf("order.%d", i)
			failures[i].Status = 500 + i%4
			failures[i].Message = fmt.Sprintf("upstream %d", i)
			failures[i].Class = fmt.Sprintf("https://shop.example/problems/%d", i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			decide(b, failures[i%len(messages)], messages[i%len(messages)], "acme")
		}
	})
}

// The worst case is a message that no rule is for.
func BenchmarkRules(b *testing.B) {
	forms := []struct{ name, when string }{
		{"200 rules on a header", "message.headers.partner == 'partner-%d'"},
		{"200 rules on a header that may be missing", "has(message.headers.partner) && message.headers.partner == 'partner-%d'"},
		{"200 rules on the body", "message.body.partner == 'partner-%d'"},
	}
	messages := []struct {
		name    string
		headers map[string]any
	}{
		{"the last one matches", map[string]any{"partner": "partner-199"}},
		{"none matches", map[string]any{"partner": "nobody"}},
		{"no header", nil},
	}
	for _, form := range forms {
		whens := make([]string, 200)
		for i := range whens {
			whens[i] = fmt.Sprintf(form.when, i)
		}
		rules, err := CompileRules("f", whens)
		if err != nil {
			b.Fatal(err)
		}
		for _, message := range messages {
			m := order()
			m.Headers = message.headers
			m.Body = []byte(`{"partner": "partner-199", "lines": [{"sku": "a", "price": 3}, {"sku": "b", "price": 4}]}`)
			b.Run(form.name+", "+message.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					rules.First(m)
				}
			})
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	match, err := CompileMatch("f", `message.headers.partner == 'acme'`)
	if err != nil {
		b.Fatal(err)
	}
	m := order()
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := match.Matches(m); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{0, 10, 128} {
		var spec v1alpha1.RetryPolicySpec
		for i := range n {
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: strconv.Itoa(i), When: fmt.Sprintf("error.status == %d && message.type.startsWith('App')", i)})
		}
		b.Run(fmt.Sprintf("%d strategies", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Compile("p", spec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPlanLanes(b *testing.B) {
	benchmarks := []struct {
		name string
		spec string
		n    int
	}{
		{"the defaults", `{}`, 1},
		{"256 policies with jitter", `{maxRetries: 20, backoff: {type: Exponential, jitter: {type: Proportional, percent: 10}}}`, 256},
		{"256 policies of 128 steps each", `{maxRetries: 128, maxAge: 8760h, backoff: {type: Linear, delay: 1s, maxDelay: 720h, jitter: {type: Equal}}}`, 256},
	}
	for _, bb := range benchmarks {
		b.Run(bb.name, func(b *testing.B) {
			var policies []*Policy
			for i := range bb.n {
				p := compile(b, bb.spec)
				p.backoff.delay += time.Duration(i) * 37 * time.Millisecond
				policies = append(policies, p)
			}
			b.ReportAllocs()
			for b.Loop() {
				PlanLanes(policies, 24, false)
			}
		})
	}
}

func BenchmarkPick(b *testing.B) {
	lanes := Ladder()
	b.ReportAllocs()
	for b.Loop() {
		lanes.Pick(43 * time.Second)
	}
}
