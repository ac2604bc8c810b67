package local

import (
	"strings"
	"testing"

	"redrive.dev/redrive/internal/manifest"
)

func TestPrepareSaysWhatIsWrongAndWhere(t *testing.T) {
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

func TestAnInvalidPolicyIsReportedOnceHoweverManyUseIt(t *testing.T) {
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
