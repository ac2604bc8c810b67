package local

import (
	"fmt"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/manifest"
)

func TestPrepare_SaysWhatIsWrongAndWhere(t *testing.T) {
	const head = "apiVersion: redrive.dev/v1alpha1\n"
	transport := head + "kind: Transport\nmetadata: {name: async}\nspec:\n  broker: {secretRef: {name: rabbitmq}}\n"
	tests := map[string]struct {
		yaml string
		want []string
	}{
		"a policy that is missing": {
			transport + "  retryPolicyRef: {name: gone}\n  queues: [{name: test}]\n",
			[]string{`stdin:1: Transport default/async`, `RetryPolicy "gone" does not exist in namespace "default"`},
		},
		"an expression of a policy that nobody uses": {
			head + "kind: RetryPolicy\nmetadata: {name: p}\nspec: {strategies: [{name: s, when: error.statu == 1}]}\n---\n" +
				transport + "  queues: [{name: test}]\n",
			[]string{"stdin:4: RetryPolicy default/p", `strategy "s", when, 1:6`},
		},
		"lists that contradict each other, all at once": {
			transport + "  queues: [{name: test, bindingKeys: [a]}]\n  failure: {queue: test}\n",
			[]string{"stdin:6: Transport default/async", "spec.queues[0].name", "spec.queues[0].bindingKeys"},
		},
	}
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := loader.Load(t.Context(), strings.NewReader(tt.yaml), manifest.Stdin)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Prepare(set)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestPrepare_ReportsAnInvalidPolicyOnce(t *testing.T) {
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	text := `apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: p}
spec: {strategies: [{name: s, when: "1"}]}
---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: async}
spec:
  broker: {secretRef: {name: rabbitmq}}
  retryPolicyRef: {name: p}
  queues: [{name: test}]
`
	set, err := loader.Load(t.Context(), strings.NewReader(text), manifest.Stdin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(set); err == nil || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("want one line, got %v", err)
	}
}

// Each of two policies is fine, and one Transport cannot have both. It was left out without a word, and ran with nothing.
func TestPrepare_TellsOfPoliciesThatDoNotGoTogether(t *testing.T) {
	policy := func(name string) string {
		var text strings.Builder
		fmt.Fprintf(&text, "apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: %s}\nspec:\n  strategies:\n", name)
		for i := range 80 {
			fmt.Fprintf(&text, "  - {name: s%d, when: 'message.id == \"%s%d%s\"', action: Fail}\n", i, name, i, strings.Repeat("x", 1900))
		}
		return text.String() + "---\n"
	}
	const transport = `apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: async}
spec:
  broker: {secretRef: {name: rabbitmq}}
  retryPolicyRef: {name: a}
  queues: [{name: one}, {name: two, retryPolicyRef: {name: b}}]
`
	checkPrepare(t, policy("a")+policy("b")+transport, `Transport default/async`, "the expressions of all policies, rules and keys together are too large")
}

// The operator refuses such a Transport, and what is tried beforehand is to say so.
func TestPrepare_RefusesASpecTooLargeForTheOperator(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: redrive.dev/v1alpha1\nkind: Transport\nmetadata: {name: async}\nspec:\n  broker: {secretRef: {name: rabbitmq}}\n  queues:\n")
	for i := range 64 {
		fmt.Fprintf(&text, "  - name: q%d\n    bindings:\n", i)
		for j := range 8 {
			fmt.Fprintf(&text, "    - {exchange: e%d, keys: [%s]}\n", j, strings.Join(keys(32), ", "))
		}
	}
	checkPrepare(t, text.String(), "Transport default/async", "spec: takes ", "kB of the operator's memory, and 512 are allowed")
}

func keys(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("key%030d", i))
	}
	return all
}

// checkPrepare wants an error that says all of this.
func checkPrepare(t *testing.T, text string, says ...string) {
	t.Helper()
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	set, err := loader.Load(t.Context(), strings.NewReader(text), manifest.Stdin)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Prepare(set)
	for _, want := range says {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %.300v, want %q in it", err, want)
		}
	}
}
