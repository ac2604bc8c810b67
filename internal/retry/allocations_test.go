//go:build !race

package retry

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Under the race detector pools forget at random, so that allocations cannot be counted.
func TestDecide_AllocatesLittleForTenStrategies(t *testing.T) {
	p := compile(t, tenStrategies)
	rnd := rand.New(rand.NewPCG(1, 2))
	f, m, h := lastOfTen()
	var others []Failure
	for i := range 100 {
		others = append(others, Failure{Source: SourceHandler, Status: 500 + i%3, Class: fmt.Sprint("class ", i), Message: fmt.Sprint("message ", i)})
	}
	calls := 0
	tests := []struct {
		name     string
		failure  func() Failure
		strategy string
	}{
		{"the first one decides", func() Failure { return Failure{Source: SourceHandler, Status: 429} }, "throttled"},
		{"the last one decides", func() Failure { return f }, "acme"},
		{"the last one decides, and no failure is like the one before", func() Failure { calls++; return others[calls%len(others)] }, "acme"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			allocations := testing.AllocsPerRun(1000, func() {
				if v := p.Decide(tt.failure(), m, h, start(), rnd); v.Strategy != tt.strategy || len(v.Problems) > 0 {
					t.Fatalf("verdict = %+v", v)
				}
			})
			if allocations > 5 {
				t.Errorf("%v allocations, want 5 at most", allocations)
			}
		})
	}
}
