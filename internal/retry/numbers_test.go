package retry

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

func TestHasLongNumber_FindsOneWhereverItStands(t *testing.T) {
	long := regexp.MustCompile(`[-+.0-9eE]{20,}`)
	rnd := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 20_000 {
		body := make([]byte, rnd.IntN(120))
		for i := range body {
			if body[i] = "0123456789-+.eE"[rnd.IntN(15)]; rnd.IntN(18) == 0 {
				body[i] = `,"[ x`[rnd.IntN(5)]
			}
		}
		want := long.Match(body)
		if got := hasLongNumber(body); got != want {
			t.Fatalf("%q: %t, want %t", body, got, want)
		}
		if want {
			found++
		}
	}
	if found < 2000 || found > 18_000 {
		t.Errorf("%d of 20000 have one: this shows little", found)
	}
}

// BenchmarkDecodeJSON is what reading a large body costs whose elements are small.
func BenchmarkDecodeJSON(b *testing.B) {
	body := []byte(`{"tenant":"large","a":[{"":0}` + strings.Repeat(`,{"":0}`, 150_000) + `]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := decodeJSON(body); err != nil {
			b.Fatal(err)
		}
	}
}
