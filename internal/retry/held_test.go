package retry

import (
	"runtime"
	"strings"
	"testing"
)

// evaluated gives the value of an expression of any type, and the steps that it took.
func evaluated(t *testing.T, text string, m Message) (any, int64) {
	t.Helper()
	env, err := forPolicies()
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.cel.Compile(text)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	compiled, err := env.plan(text, ast)
	if err != nil {
		t.Fatal(err)
	}
	run, err := compiled.counted()
	if err != nil {
		t.Fatal(err)
	}
	var budget Budget
	m.Budget = &budget
	s := env.schema.scope(decodeJSON, m)
	s.setFailure(Failure{}, History{}, 0, start())
	if _, err := s.readBody(); err != nil {
		t.Fatal(err)
	}
	defer budget.end(budget.begin())
	value, _, err := run.Eval(s)
	if err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return value, budget.steps
}

// Maps in each other took two steps for each of 350 bytes: two evaluations held 65 MiB each, and a worker with 256 MiB was killed.
// It measures the heap, so it is not parallel.
func TestBudget_BoundsWhatAnEvaluationHoldsByItsSteps(t *testing.T) {
	const ten = "[0,1,2,3,4,5,6,7,8,9]"
	loops := func(inner string) string {
		if len(inner) < 40 && !strings.Contains(inner, "body.text") { // so that the loops themselves hardly count
			inner = "[" + strings.Repeat(inner+", ", 20) + inner + "]"
		}
		return ten + ".map(a, " + ten + ".map(b, [a].map(c, " + inner + ")))"
	}
	nested := func(open, value, end string) string {
		return strings.Repeat(open, 20) + value + strings.Repeat(end, 20)
	}
	m := Message{Body: []byte(`{"list": [1, 2], "none": [], "text": "` + strings.Repeat("a,", 500) + `", "map": {"a": 1}, "number": 1.5, "other": 1234567}`)}
	for _, inner := range []string{
		"c", "c + 12345", "[c, 1]", "{c: c}", "{}", "[]", nested("{c: ", "c", "}"), nested("[", "c", "]"), nested("[{c: ", "c", "}]"),
		"{1: c, 2: c, 3: c, 4: c, 5: c, 6: c, 7: c, 8: c, 9: c}", "[" + strings.Repeat("c, ", 40) + "c]", "[c, [c, c], {c: {c: [c]}}]",
		"message.body.list + message.body.list", "message.body.none + message.body.none", nested("message.body.list + (", "[c]", ")"), nested("(", "[c]", " + [c])"),
		"[c].map(d, d)", "[c].filter(d, d > 100)", "message.body.list.map(d, d)", "message.body.map", "message.body.list", "message.headers", "message", "error", "message.body.number",
		"message.body.other", "string(c)", "string(message.body.number)", "now + duration('1h')", "age + duration('1h')", "timestamp('2026-03-01T12:00:00Z')", "duration('1h')",
		"message.body.text + 'a'", "message.body.text.upperAscii()", "message.body.text.split(',')", "message.body.text.split('')", "message.body.text.replace(',', 'xyz')",
		"message.body.text.substring(1)", "message.body.text.charAt(1)", "message.body.text.reverse()", "message.body.text.trim()", "'%s'.format([c])",
		"'%s'.format([message.body.text])", "strings.quote(message.body.text)", "['a', 'b'].join(message.body.text)", "bytes(message.body.text)", "type(c)", "dyn(c)",
		"double(c)", "uint(c)", "c == 1", "c > 1 ? {c: c} : {c: c + 1}", "{message.body.text: c}", "b'a' + b'b'", "'a' + 'b'", "message.headers.partner", "message.body.map.a",
	} {
		held, steps := heldBy(t, loops(inner), m)
		each := float64(held) / float64(steps)
		t.Logf("%.60s: %.1f bytes a step, %d steps a turn", inner, each, steps/100)
		if each > bytesOfStep {
			t.Errorf("%.60s: %.1f bytes are held for each step", inner, each)
		}
	}
}

func heldBy(t *testing.T, text string, m Message) (bytes, steps int64) {
	t.Helper()
	m.Headers = map[string]any{"partner": "acme"}
	evaluated(t, text, m) // compiled and warmed up
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	value, steps := evaluated(t, text, m)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(value)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc), steps
}
