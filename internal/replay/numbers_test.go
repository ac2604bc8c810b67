package replay

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestNumbers_AreASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var numbers Numbers
		model := map[int64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := rapid.Int64Range(1, 40).Draw(t, "n")
				if numbers.Add(n) == model[n] {
					t.Fatalf("added %d, which was there: %t", n, model[n])
				}
				model[n] = true
			},
			"remove": func(t *rapid.T) {
				n := rapid.Int64Range(1, 40).Draw(t, "n")
				if numbers.Remove(n) != model[n] {
					t.Fatalf("removed %d, which was there: %t", n, model[n])
				}
				delete(model, n)
			},
			"": func(t *rapid.T) {
				text, err := json.Marshal(&numbers)
				var again Numbers
				if err != nil || json.Unmarshal(text, &again) != nil {
					t.Fatalf("%s: %v", text, err)
				}
				for n := range int64(42) {
					if numbers.Has(n) != model[n] || again.Has(n) != model[n] {
						t.Fatalf("%d: %t and %t, want %t", n, numbers.Has(n), again.Has(n), model[n])
					}
				}
				if numbers.Len() != int64(len(model)) {
					t.Fatalf("%d of %d", numbers.Len(), len(model))
				}
			},
		})
	})
}

func TestNumbers_RefuseRangesThatAreNone(t *testing.T) {
	for _, text := range []string{`[[2,1]]`, `[[3,4],[1,1]]`, `[[1,2],[3,4]]`, `[[1,2],[2,4]]`, `[[0,2]]`, `[1]`, `{}`} {
		var n Numbers
		if json.Unmarshal([]byte(text), &n) == nil {
			t.Errorf("%s is taken for a set", text)
		}
	}
}
