package retry

import (
	"fmt"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

// Policies of one Transport share many expressions, more of them than are kept for the whole process: were each compiled anew for every
// policy that has it, 200 policies of 128 strategies would take hundreds of megabytes.
func TestCompiler_CompilesAnExpressionOfManyPoliciesOnce(t *testing.T) {
	const policies, strategies, different = 60, 128, 1400
	c, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	programs := map[*program]bool{}
	for p := range policies {
		var spec v1alpha1.RetryPolicySpec
		for n := range strategies {
			text := fmt.Sprintf(`message.type == "%04d%s"`, (p*strategies+n)%different, strings.Repeat("x", 150))
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", n), When: text})
		}
		policy, err := c.Compile(fmt.Sprint("p", p), spec)
		if err != nil {
			t.Fatal(err)
		}
		for i := range policy.strategies {
			programs[policy.strategies[i].when.program] = true
		}
	}
	if len(programs) > different {
		t.Errorf("%d expressions became %d programs", different, len(programs))
	}
}
