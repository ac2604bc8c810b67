package resilience

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
	"unsafe"
)

// everyCall are the calls that are made for each message while nothing is wrong.
func everyCall() map[string]func(now time.Time) {
	limiter := NewLimiter(LimiterConfig{PerSecond: 1e9, Burst: 1 << 30}, 0, seeded())
	denying := NewLimiter(LimiterConfig{PerSecond: 1e-6, Burst: 1}, 0, seeded())
	budget := NewBudget(BudgetConfig{Percent: 100, Window: time.Minute, MinPerSecond: 1}, seeded())
	breaker := NewBreaker(aBreaker(), seeded(), nil)
	breakers := NewBreakers(aBreaker(), seeded(), nil)
	return map[string]func(now time.Time){
		"Limiter/no key":  func(now time.Time) { limiter.Take("", now) },
		"Limiter/key":     func(now time.Time) { limiter.Take("acme", now) },
		"Limiter/denied":  func(now time.Time) { denying.Take("acme", now) },
		"Budget":          func(now time.Time) { budget.First(now); budget.Retry(now) },
		"Breaker":         func(now time.Time) { callOnce(breaker, now) },
		"Breakers":        func(now time.Time) { callOnce(breakers.For("acme", now), now) },
		"Breaker/Allowed": func(now time.Time) { breaker.Allowed(now) },
	}
}

func callOnce(b *Breaker, now time.Time) {
	permit, _, _ := b.Admit(now, timeout)
	permit.Done(now, time.Millisecond, Success)
}

func TestGuards_AllocateNothingForAMessage(t *testing.T) {
	for name, call := range everyCall() {
		call(noon)
		if n := testing.AllocsPerRun(100, func() { call(noon) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// With the index and a short text, a key of a limiter was measured at 120 bytes, and one of breakers at 500: 1.2 MB and 5 MB when all
// places are taken.
func TestKeyed_TakesLittleMemoryForAKey(t *testing.T) {
	if n := unsafe.Sizeof(place[bucket]{}); n > 64 {
		t.Errorf("a limiter's key has %d bytes", n)
	}
	if n := unsafe.Sizeof(place[*Breaker]{}) + unsafe.Sizeof(Breaker{}); n > 512 {
		t.Errorf("a breaker's key has %d bytes", n)
	}
}

func BenchmarkEveryCall(b *testing.B) {
	for name, call := range everyCall() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			now := noon
			for b.Loop() {
				now = now.Add(time.Microsecond)
				call(now)
			}
		})
	}
}

// As many goroutines as there are processors on one breaker.
func BenchmarkBreakerParallel(b *testing.B) {
	breaker := NewBreaker(aBreaker(), seeded(), nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			callOnce(breaker, noon)
		}
	})
}

// Ten times more keys than have a place, so that most calls look for an idle one.
func BenchmarkManyKeys(b *testing.B) {
	keys := make([]string, 10*maxKeys)
	for i := range keys {
		keys[i] = "tenant-" + strconv.Itoa(i)
	}
	for _, idle := range []bool{false, true} {
		b.Run(fmt.Sprintf("Limiter/idle=%t", idle), func(b *testing.B) {
			b.ReportAllocs()
			now, passed := noon, time.Duration(0)
			if idle {
				passed = time.Second
			}
			l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 1}, 0, seeded())
			for b.Loop() {
				now = now.Add(passed)
				l.Take(keys[rand.IntN(len(keys))], now)
			}
		})
		b.Run(fmt.Sprintf("Breakers/idle=%t", idle), func(b *testing.B) {
			b.ReportAllocs()
			now, passed := noon, time.Duration(0)
			if idle {
				passed = time.Minute
			}
			breakers := NewBreakers(aBreaker(), seeded(), nil)
			for b.Loop() {
				now = now.Add(passed)
				callOnce(breakers.For(keys[rand.IntN(len(keys))], now), now)
			}
		})
	}
}

// What it takes to make all places, with what is left behind when the tables grow.
func BenchmarkMemoryOfAllKeys(b *testing.B) {
	b.Run("Limiter", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 1}, 0, seeded())
			for i := range maxKeys {
				l.Take(strconv.Itoa(i), noon)
			}
		}
	})
	b.Run("Breakers", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			breakers := NewBreakers(aBreaker(), seeded(), nil)
			for i := range maxKeys {
				breakers.For(strconv.Itoa(i), noon)
			}
		}
	})
}
