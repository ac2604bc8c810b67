package docs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/cli"
	"redrive.dev/redrive/internal/policytest"
)

// Consoles on the page show commands and what they print, both as they are.
func TestDocs_ShowWhatThePolicyCommandsPrint(t *testing.T) {
	t.Chdir(root)
	page, err := os.ReadFile("docs/policy-test.md")
	if err != nil {
		t.Fatal(err)
	}
	consoles := blocks(string(page), "console")
	if len(consoles) != 2 {
		t.Fatalf("%d consoles, want those of test and show", len(consoles))
	}
	for _, console := range consoles {
		command, want, _ := strings.Cut(strings.TrimPrefix(console, "$ redrive "), "\n")
		var out, errs bytes.Buffer
		environment := cli.Environment{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: func(string) string { return "" }}
		if code := cli.Main(t.Context(), environment, strings.Fields(command)); code != 0 {
			t.Errorf("redrive %s: exit code %d: %s", command, code, errs.String())
		}
		if out.String() != want {
			t.Errorf("redrive %s prints\n%s\nnot\n%s", command, out.String(), want)
		}
	}
}

func TestDocs_HoldOnlyValidCasesOfPolicies(t *testing.T) {
	found := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "yml") {
			if !strings.HasPrefix(block, "cases:") {
				continue
			}
			found++
			if _, err := policytest.Parse(name, []byte(block)); err != nil {
				t.Error(err)
			}
		}
	}
	if found == 0 {
		t.Error("no page shows cases: the test reads nothing")
	}
}

func TestDocs_NameEveryFlagOfThePolicyCommands(t *testing.T) {
	for _, source := range []string{"internal/cli/policy.go", "internal/cli/policy_show.go"} {
		for _, flag := range in(t, source, `\w+(?:Array)?Var(?:P)?\(&?[\w.]+, "([a-z-]+)"`) {
			mentioned(t, "docs/policy-test.md", "--"+flag)
		}
	}
	for _, field := range in(t, "internal/policytest/cases.go", "`yaml:\"([a-zA-Z]+)\"`") {
		page := read(t, filepath.Join("docs", "policy-test.md"))
		if !strings.Contains(page, "`"+field+"`") && !strings.Contains(page, "."+field+"`") && !strings.Contains(page, "`"+field+".") {
			t.Errorf("docs/policy-test.md does not mention the field %s", field)
		}
	}
}
