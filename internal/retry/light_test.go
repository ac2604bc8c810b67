package retry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// A pattern counted by the length of its text, and not by what it repeats: hundreds of such expressions took seconds of a processor for each
// failure, and spent nothing.
func TestBudget_CountsPatternsOnShortTexts(t *testing.T) {
	for name, c := range map[string]struct {
		when    string
		allowed bool
	}{
		"patterns that repeat much": {`message.type.matches('(a*b*){280}c')`, false},
		"patterns of some letters":  {`message.type.matches('^[a-c]+d$')`, true},
		"comparisons":               {`message.type == 'c'`, true},
		"what a text contains":      {`error.message.contains('timeout') || message.type.startsWith('x')`, true},
	} {
		compiler, err := retry.NewCompiler()
		if err != nil {
			t.Fatal(err)
		}
		spec := v1alpha1.RetryPolicySpec{}
		for i := range 128 {
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", i), When: c.when, Action: v1alpha1.ActionFail})
		}
		policy, err := compiler.Compile("p", spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{255, 256} { // of a longer one all is counted as it is done
			m := retry.Message{ID: "1", Type: strings.Repeat("a", size), Budget: &retry.Budget{}}
			verdict := policy.Decide(retry.Failure{Source: retry.SourceHandler, Status: 502}, m, retry.History{}, time.Now(), nil)
			if allowed := len(verdict.Problems) == 0; allowed != c.allowed {
				t.Errorf("128 %s on a type of %d bytes: %d problems", name, size, len(verdict.Problems))
			}
		}
	}
}

// Each of 2,048 strategies that had the same mistake had it compiled: half a minute for a policy.
func TestCompiler_TellsAMistakeWhereverItStands(t *testing.T) {
	compiler, err := retry.NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	const wrong = `message.id == 'a' ||
 nosuch`
	var texts []string
	for _, name := range []string{"first", "second"} {
		_, err := compiler.Compile(name, v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "of-" + name, When: wrong, Action: v1alpha1.ActionFail}}})
		if err == nil || !strings.Contains(err.Error(), "of-"+name) || !strings.Contains(err.Error(), "when, 2:2") {
			t.Errorf("policy %s: %v, want the place", name, err)
			continue
		}
		texts = append(texts, strings.ReplaceAll(err.Error(), name, ""))
	}
	if len(texts) != 2 || texts[0] != texts[1] {
		t.Errorf("it is told in two ways: %q", texts)
	}
	// Were it found anew at each place, there would soon be no room for it.
	long := "message.id == '" + strings.Repeat("a", 1500) + "' || nosuch"
	spec := v1alpha1.RetryPolicySpec{}
	for i := range 100 {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("of-", i), When: long, Action: v1alpha1.ActionFail})
	}
	for i := range 20 {
		_, err := compiler.Compile(fmt.Sprint("many-", i), spec)
		if err == nil || errors.Is(err, retry.ErrTooMuch) {
			t.Fatalf("policy %d: %.200v", i, err)
		}
		if told := strings.Count(err.Error(), "when, "); told != 32 {
			t.Fatalf("policy %d: it is told at %d places, want 32", i, told)
		}
	}
}
