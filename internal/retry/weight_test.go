package retry

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestWeigh_CountsTheNodesForTheChecker(t *testing.T) {
	env, err := forPolicies()
	if err != nil {
		t.Fatal(err)
	}
	repeat := strings.Repeat
	tests := []struct {
		name, text  string
		least, most int
	}{
		{"a comparison", `retries == 1`, 3, 3},
		{"a field is one beside what it is of", `error.message == ""`, 4, 4},
		{"a list", `1 in [1, 2, 3]`, 7, 8},
		{"a macro is all that it becomes", `[1].all(x, x > 0)`, 12, 20},
		{"a longer text is no more", `error.message == "` + repeat("x", 2000) + `"`, 4, 4},
		{"spaces and comments are none", repeat(" ", 1000) + "true" + repeat("//", 500), 1, 1},
		{"ordinary 2 kB", ordinary(0), 300, 500},
		{"many macros", `true` + repeat("&&[].all(x,x)", 130), 1500, 4000},
		{"tables whose types are open grow with the square", `[` + repeat("{},", 680) + `{}].size() == 1`, 9000, 20000},
		{"so do lists that a function is tried on", `retries == 0` + repeat("+size([])", 220), 7000, 40000},
		{"lists in each other grow with the cube", repeat("[", 100) + repeat("]", 100) + "==[]", 10000, 60000},
		{"and more of them", repeat("[", 200) + repeat("]", 200) + "==[]", maxNodes, 10 * maxNodes},
		{"as often as one is used", "[" + repeat("[", 50) + repeat("]", 50) + "].all(x, true" + repeat("&&x==x", 100) + ")", 20000, 100000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parsed, issues := env.cel.Parse(tt.text)
			if issues.Err() != nil {
				t.Fatal(issues.Err())
			}
			if _, nodes := env.weigh(parsed); nodes < tt.least || nodes > tt.most {
				t.Errorf("it has %d nodes, want %d to %d", nodes, tt.least, tt.most)
			}
		})
	}
}

// ordinary is a long expression such as people write, of nearly 2,048 characters.
func ordinary(n int) string {
	text := fmt.Sprintf(`error.class == "App\\Exception\\PartnerTimeout%03d" && error.status in [429, 503]`, n)
	const part = ` || message.headers["x-partner"] == "acme" && error.message.contains("timeout")`
	return text + strings.Repeat(part, (2048-len(text))/len(part))
}

func policyOf(strategies int, when func(int) string) v1alpha1.RetryPolicySpec {
	var spec v1alpha1.RetryPolicySpec
	for n := range strategies {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", n), When: when(n)})
	}
	return spec
}

// 128 of them took up to half a minute, and 150 MiB, beside the messages.
func TestCompiler_RefusesALargeExpressionWithItsPlace(t *testing.T) {
	for name, when := range map[string]string{
		"macros": "retries == %d" + strings.Repeat("&&[].all(x,x)", 130),
		"tables": "retries == %d && [" + strings.Repeat("{},", 600) + "{}].size() == 1",
		"lists":  "retries == %d" + strings.Repeat("+size([])", 200),
		"nests":  "retries == %d && " + strings.Repeat("[", 120) + strings.Repeat("]", 120) + "==[]",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := NewCompiler()
			if err != nil {
				t.Fatal(err)
			}
			spec := policyOf(2, func(n int) string { return fmt.Sprintf(when, n) })
			parsed, issues := c.policies.cel.Parse(spec.Strategies[0].When)
			if issues.Err() != nil {
				t.Fatal(issues.Err())
			}
			_, weight := c.policies.weigh(parsed)
			if 128*weight < maxNodes {
				t.Errorf("128 of them weigh %d nodes, and %d are allowed", 128*weight, maxNodes)
			}
			c.room = 2*weight - 1
			_, err = c.Compile("large", spec)
			wrong, ok := errors.AsType[*ExpressionError](err)
			if !ok || !errors.Is(err, ErrTooMuch) || wrong.Policy != "large" || wrong.Strategy != "s1" || wrong.Field != "when" ||
				!strings.Contains(err.Error(), fmt.Sprint(maxNodes, " nodes")) {
				t.Errorf("error = %v", err)
			}
		})
	}
	deep := strings.Repeat("[", 220) + strings.Repeat("]", 220) + "==[]"
	if _, err := CompileMatch("retryPolicies[2].when", deep); !errors.Is(err, ErrTooMuch) || !strings.HasPrefix(err.Error(), "retryPolicies[2].when: ") {
		t.Errorf("a rule: %v", err)
	}
}

func TestCompiler_AddsUpTheNodesOfPoliciesRulesAndKeys(t *testing.T) {
	c, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compile("ordinary", policyOf(128, ordinary)); err != nil {
		t.Fatal(err)
	}
	room := c.room
	if _, err := c.Compile("the same once more", policyOf(128, ordinary)); err != nil || c.room != room {
		t.Errorf("the same once more: %v, takes %d nodes", err, room-c.room)
	}
	if room < maxNodes/3 {
		t.Errorf("a large ordinary policy leaves room for %d nodes", room)
	}
	wrong := fmt.Sprintf("nobody == 1%s", strings.Repeat("&&[].all(x,x)", 130))
	if _, err := c.CompileMatch("rules[0].when", wrong); err == nil || errors.Is(err, ErrTooMuch) || c.room >= room {
		t.Errorf("what does not compile takes none of it: %v", err)
	}
	c.room = 3
	if _, err := c.CompileKey("key", `message.id + ""`); !errors.Is(err, ErrTooMuch) || !strings.HasPrefix(err.Error(), "key: ") {
		t.Errorf("a key: %v", err)
	}
	if _, err := c.CompileKey("next", `"a"`); !errors.Is(err, ErrTooMuch) {
		t.Errorf("what follows: %v", err)
	}
}

// Else a look at a Transport would cost as much as its policies are large, each time.
func TestPrograms_AreCompiledOnceAndKeptForAWhile(t *testing.T) {
	env, err := newEnvironment(policyVariables())
	if err != nil {
		t.Fatal(err)
	}
	compile := func(text string) *program {
		t.Helper()
		room := maxNodes
		compiled, err := env.compile(origin{}, text, resultBool, &room)
		if err != nil || room == maxNodes {
			t.Fatal(err, room)
		}
		return compiled.program
	}
	first := compile(`message.id == "kept"`)
	if compile(`message.id == "kept"`) != first {
		t.Error("it was compiled again")
	}
	var used []*program
	for n := range 2 * maxPrograms / first.size() {
		if made := compile(fmt.Sprintf("retries == %d", n)); n < 100 {
			used = append(used, made)
		}
	}
	kept := 0
	for _, p := range env.programs.latest {
		kept += p.size()
	}
	if kept != env.programs.size || kept > maxPrograms || kept < maxPrograms/2 {
		t.Errorf("%d programs of %d bytes are kept, and count as %d", len(env.programs.latest), kept, env.programs.size)
	}
	runtime.GC()
	for n, p := range used {
		if compile(fmt.Sprintf("retries == %d", n)) != p {
			t.Fatalf("a program in use was compiled again: %q", p.text)
		}
	}
	for len(env.programs.latest)+len(used) < known(env.programs) {
		runtime.GC() // what was forgotten is told of soon after
	}
	runtime.KeepAlive(used)
	runtime.KeepAlive(first)
}

// known is how many there are, but one.
func known(p *programs) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all) - 1
}

// The policy is larger than all that is kept where nobody uses it.
func TestPrograms_OfAPolicyInUseAreNotCompiledAgain(t *testing.T) {
	spec := policyOf(70, ordinary)
	before, err := Compile("large", spec)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for i := range before.strategies {
		size += before.strategies[i].when.size()
	}
	spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: "new", When: `error.class == "new"`})
	after, err := Compile("large", spec)
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	for i := range before.strategies {
		if before.strategies[i].when.program != after.strategies[i].when.program {
			again++
		}
	}
	if again > 0 || size < maxPrograms {
		t.Errorf("%d of %d expressions were compiled again; they take %d bytes, and %d are kept", again, len(before.strategies), size, maxPrograms)
	}
}
