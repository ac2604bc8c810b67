package manifest_test

import (
	"errors"
	"strings"
	"testing"
)

// Each mistake stands at its own line of the file, whatever stands before its document.
func TestLoader_NamesTheLineOfEachMistake(t *testing.T) {
	const before = "# a comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n\n"
	const head = "apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata:\n  name: p\nspec:\n"
	cases := map[string]struct {
		yaml string
		want []string
	}{
		"several mistakes in one object": {
			before + head + "  maxRetrys: 3\n  backoff:\n    type: Exponential\n    multiplier: 2\n    delay: 30\n",
			[]string{
				"stdin:13: RetryPolicy default/p: spec.maxRetrys: unknown field; did you mean maxRetries?",
				`stdin:16: RetryPolicy default/p: spec.backoff.multiplier: 2 is a number where a text should stand: write "2", in quotes`,
				"stdin:17: RetryPolicy default/p: spec.backoff.delay: 30 has no unit: write 500ms, 5s, 1h30m",
			},
		},
		"a tab": {before + "apiVersion: redrive.dev/v1alpha1\nmetadata:\n\tname: p\n", []string{
			"stdin:10: the line is indented with a tab: YAML is indented with spaces only",
		}},
		"lines that end as in Windows": {strings.ReplaceAll(before+head+"  maxRetries: x\n", "\n", "\r\n"), []string{
			`stdin:13: RetryPolicy default/p: spec.maxRetries: "x" is a text where a whole number should stand`,
		}},
		"a word that YAML takes for true": {head + "  strategies:\n  - name: y\n    when: 'true'\n", []string{
			`stdin:7: RetryPolicy default/p: spec.strategies[0].name: YAML takes y for true or false: write "y", in quotes`,
		}},
		"a number in quotes": {head + "  maxRetries: \"3\"\n", []string{
			`stdin:6: RetryPolicy default/p: spec.maxRetries: "3" is a text where a whole number should stand: write 3, without quotes`,
		}},
		"plain text under data": {
			"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  host: rabbitmq\n  port: NTY3Mg==\n  password: hunter2!\n", []string{
				"stdin:5: Secret default/s: data[host]: this is not base64: move it to stringData, where values stand in plain text",
				"stdin:7: Secret default/s: data[password]: this is not base64: move it to stringData, where values stand in plain text",
			},
		},
		"another group": {"apiVersion: redrive.io/v1\nkind: Transport\nmetadata: {name: t}\n", []string{
			"stdin:1: apiVersion: there is no kind Transport in redrive.io/v1: write redrive.dev/v1alpha1",
		}},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			_, err := load(t, tc.yaml)
			if err == nil || err.Error() != strings.Join(tc.want, "\n") {
				t.Errorf("error is\n%v\nwant\n%s", err, strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestLocate_FindsTheFieldThatAnErrorNames(t *testing.T) {
	set := mustLoad(t, "---\n"+transport("queues:", "- name: a", "- name: b", "  bindingKeys: [k]"))
	err := set.Locate("Transport", name("default", "subject"), errors.Join(
		errors.New("spec.queues[1].bindingKeys: twice"), errors.New("spec.failure.queue: taken"), errors.New("something else"),
	))
	want := strings.Join([]string{
		"stdin:10: Transport default/subject: spec.queues[1].bindingKeys: twice",
		"stdin:5: Transport default/subject: spec.failure.queue: taken",
		"stdin:2: Transport default/subject: something else",
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("error is\n%v\nwant\n%s", err, want)
	}
	if place := set.Place("Transport", name("default", "absent")); place != "" {
		t.Errorf("an absent object is at %s", place)
	}
}
