package retry

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestRules_TheFirstThatMatchesCounts(t *testing.T) {
	rules, err := CompileRules("spec.retryPolicies", []string{
		`message.headers.nobody == 'x'`,
		`message.headers.partner == 'other'`,
		`message.body.count == 3`,
		`message.headers.partner == 'acme'`,
	})
	if err != nil {
		t.Fatal(err)
	}
	index, problems := rules.First(order())
	if index != 2 || len(problems) != 1 || problems[0].Error() != "spec.retryPolicies[0].when, 1:16: no such key" {
		t.Errorf("rule %d, problems %v", index, problems)
	}
	if index, problems = rules.First(Message{Headers: map[string]any{"partner": "acme", "nobody": ""}}); index != 3 || len(problems) != 1 {
		t.Errorf("rule %d, problems %v", index, problems)
	}
	if index, _ = rules.First(Message{}); index != -1 {
		t.Errorf("rule %d matches a message without headers", index)
	}
	none, err := CompileRules("spec.retryPolicies", nil)
	if err != nil {
		t.Fatal(err)
	}
	if index, problems = none.First(order()); index != -1 || problems != nil {
		t.Errorf("no rules: rule %d, problems %v", index, problems)
	}
}

func TestRules_DecodeTheBodyOnce(t *testing.T) {
	rules, err := CompileRules("f", []string{`message.body.count == 1`, `message.body.count == 2`, `message.body.name == 'x'`})
	if err != nil {
		t.Fatal(err)
	}
	decoded := 0
	rules.decode = func(body []byte) (any, error) {
		decoded++
		return decodeJSON(body)
	}
	for range 2 {
		if index, problems := rules.First(order()); index != 2 || len(problems) > 0 {
			t.Errorf("rule %d, problems %v", index, problems)
		}
	}
	if decoded != 2 {
		t.Errorf("two messages were decoded %d times", decoded)
	}
}

func TestCompileRules_NamesAllThatDoNotCompile(t *testing.T) {
	_, err := CompileRules("spec.retryPolicies", []string{`true`, `error.status == 1`, `message.id`})
	var first *ExpressionError
	if !errors.As(err, &first) || first.Field != "spec.retryPolicies[1].when" || !strings.Contains(err.Error(), "spec.retryPolicies[2].when, 1:1: must give a bool") {
		t.Errorf("error = %v", err)
	}
}

// 256 rules of 2 kB took 4.6 s and 33 MiB to compile, each time that anybody looked at their Transport.
func TestCompiler_BoundsRulesAndKeysWithThePolicies(t *testing.T) {
	long := func(n int) string { return fmt.Sprintf(`message.id == "%03d%s"`, n, strings.Repeat("x", 2000)) }
	var whens []string
	for n := range 140 {
		whens = append(whens, long(n))
	}
	if _, err := CompileRules("rules", whens); !errors.Is(err, ErrTooMuch) || strings.Count(err.Error(), "are too large") != 1 {
		t.Errorf("rules: %v", err)
	}
	c, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompileRules("rules", whens[:100]); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompileRules("rules", whens[:100]); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	var spec v1alpha1.RetryPolicySpec
	for n := range 40 {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", n), When: long(n)})
	}
	if _, err := c.Compile("p", spec); !errors.Is(err, ErrTooMuch) {
		t.Errorf("a policy after them: %v", err)
	}
	if _, err := c.CompileKey("key", "message.id"); !errors.Is(err, ErrTooMuch) {
		t.Errorf("a key after them: %v", err)
	}
}

func TestKey_IsATextOrTellsTheProblem(t *testing.T) {
	long := strings.Repeat("ü", 200)
	tests := []struct {
		name, expr string
		want       string
		problem    string
	}{
		{"a header", `message.headers.partner`, "acme", ""},
		{"a header of bytes", `message.headers.bytes`, "ab", ""},
		{"a header that is a number", `message.headers.i32`, "-32", ""},
		{"a header that is a bool", `message.headers.yes`, "true", ""},
		{"a number in the body", `message.body.count`, "3", ""},
		{"a text that is put together", `message.queue + '/' + message.type.split('\\')[0]`, "test/App", ""},
		{"a long one is cut between two characters", `message.headers.long`, long[:254], ""},
		{"a header that is missing", `message.headers.nobody`, "", "no such key"},
		{"a header that is a table", `message.headers.table`, "", "must give a text, but gave map"},
		{"nothing", `message.headers.none`, "", "must give a text, but gave null_type"},
		{"bytes that are no text", `message.headers.broken`, "", "must give a text, but gave bytes"},
	}
	m := order()
	m.Headers["long"], m.Headers["broken"] = long, []byte{0xff}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			key, err := CompileKey("circuitBreaker.key", tt.expr)
			if err != nil {
				t.Fatal(err)
			}
			got, err := key.Of(m)
			if got != tt.want || !utf8.ValidString(got) {
				t.Errorf("key = %q, want %q", got, tt.want)
			}
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("error = %v, want %q", err, tt.problem)
			}
			var at *ExpressionError
			if err != nil && (!errors.As(err, &at) || at.Field != "circuitBreaker.key") {
				t.Errorf("error has no place: %v", err)
			}
		})
	}
}

func TestCompileKey_TellsWhatDoesNotCompile(t *testing.T) {
	tests := []struct{ expr, want string }{
		{`message.priority`, "key, 1:1: must give a string, but gives int: wrap it in string(…)"},
		{`message.headers`, "key, 1:1: must give a string, but gives map(string, dyn): wrap it in string(…)"},
		{`error.class`, "key, 1:1: there is no variable error here, only message"},
		{`message.partner`, "key, 1:8: there is no field partner: message has appId, body"},
		{``, "Syntax error"},
	}
	for _, tt := range tests {
		if _, err := CompileKey("key", tt.expr); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error = %v, want %q", tt.expr, err, tt.want)
		}
	}
}
