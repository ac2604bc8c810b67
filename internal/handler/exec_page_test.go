package handler_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// page is the one on the exec handler.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/exec-handler.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestExec_RunsTheExamplesOnItsPage is not parallel for the sake of the environment.
func TestExec_RunsTheExamplesOnItsPage(t *testing.T) {
	for language, interpreter := range map[string]string{"sh": "sh", "python": "python3"} {
		block := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(page(t))
		if block == nil {
			t.Fatalf("the page has no example in %s", language)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "example")
		put(t, file, block[1], 0o755)
		t.Setenv("ORDERS", dir)
		t.Setenv("MAINTENANCE", filepath.Join(dir, "closed"))
		h := execute(t, interpreter, file)
		got := func(body string) *retry.Failure {
			return h.Handle(t.Context(), handler.Request{ID: "id", IdempotencyKey: "key", Attempt: 1, Body: []byte(body)})
		}
		if failure := got(`{"customer": "Ada"}`); failure != nil {
			t.Errorf("%s: got %+v", language, failure)
		}
		if order, err := os.ReadFile(filepath.Join(dir, "key")); err != nil || string(order) != `{"customer": "Ada"}` {
			t.Errorf("%s: the order is %q, %v", language, order, err)
		}
		if failure := got("{}"); failure == nil || failure.Advice != retry.AdviseFail || failure.Class != "EX_DATAERR" {
			t.Errorf("%s: got %+v", language, failure)
		}
		put(t, filepath.Join(dir, "closed"), "", 0o600)
		if failure := got(`{"customer": "Ada"}`); failure == nil || failure.Advice != retry.AdviseRetry || failure.Message != "the shop is closed" {
			t.Errorf("%s: got %+v", language, failure)
		}
		if failure := got("no JSON"); failure == nil || failure.Advice != retry.AdviseFail {
			t.Errorf("%s: got %+v", language, failure)
		}
	}
}

func TestExec_HasEveryVariableAndExitCodeOnItsPage(t *testing.T) {
	t.Parallel()
	text := page(t)
	for _, name := range handler.MessageVariables() {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the page does not have %s", name)
		}
	}
	for code := range 256 {
		got := shell(t, fmt.Sprintf("exit %d", code))
		if got == nil || got.Class == "ExitStatus" {
			continue
		}
		row := fmt.Sprintf("| %d | `%s` | %s |", code, got.Class, strings.ToLower(string(got.Advice)))
		if !strings.Contains(strings.ReplaceAll(text, "|  |", "| |"), strings.ReplaceAll(row, "|  |", "| |")) {
			t.Errorf("the page does not have %s", row)
		}
	}
}
