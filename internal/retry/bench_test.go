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
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: strconv.Itoa(i), When: `error.status == 429 && message.type.startsWith('App')`})
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
				PlanLanes(policies, 24)
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
