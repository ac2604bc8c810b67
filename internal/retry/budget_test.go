package retry

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"redrive.dev/redrive/api/v1alpha1"
)

// listOf is a body of n elements.
func listOf(n int, element string) []byte {
	return []byte("[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]")
}

// CEL's own counter took 0.1 to 2.9 s for these, and then failed them.
func TestBudget_AllowsForALongList(t *testing.T) {
	tests := []struct{ name, when, body string }{
		{"all numbers", `message.body.all(x, x == 0)`, string(listOf(20_000, "0"))},
		{"a field of each", `!message.body.items.exists(i, i.qty > 100)`, `{"items":` + string(listOf(10_000, `{"qty":1}`)) + `}`},
		{"texts", `message.body.all(x, x.startsWith('a') && x.contains('b'))`, string(listOf(10_000, `"abc"`))},
		{"filtered", `message.body.filter(x, x > 1).size() == 0`, string(listOf(20_000, "0"))},
		{"mapped", `message.body.map(x, x + 1)[0] == 1`, string(listOf(20_000, "0"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var budget Budget
			v := strategyWhen(t, tt.when).Decide(Failure{}, Message{Body: []byte(tt.body), Budget: &budget}, History{}, start(), edge(false))
			if v.Strategy != "s" || len(v.Problems) > 0 {
				t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
			}
			t.Logf("%d steps of %d in %s", budget.steps, DecisionSteps, budget.took)
		})
	}
}

func TestBudget_AllowsForTheHeadersOfALegalFrame(t *testing.T) {
	headers := map[string]any{}
	for i := range 8000 {
		headers[fmt.Sprintf("x-%d", i)] = "value"
	}
	v := strategyWhen(t, `!message.headers.exists(name, name.startsWith('x-legacy-'))`).
		Decide(Failure{}, Message{Headers: headers}, History{}, start(), edge(false))
	if v.Strategy != "s" || len(v.Problems) > 0 {
		t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
	}
}

// All strategies of a policy, the rules and the keys share one budget: 128 expressions over a long list took more than two minutes.
func TestBudget_IsSharedByTheExpressionsOnOneMessage(t *testing.T) {
	var spec v1alpha1.RetryPolicySpec
	for i := range 128 {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", i), When: fmt.Sprintf(`!message.body.all(x, x < %d)`, i+1)})
	}
	p, err := Compile("p", spec)
	if err != nil {
		t.Fatal(err)
	}
	body := listOf(20_000, "0")
	v := p.Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false))
	if len(v.Problems) < 110 || !strings.Contains(v.Problems[0].Error(), string(errSteps)) {
		t.Errorf("%d problems, %.300v", len(v.Problems), v.Problems)
	}
	var budget Budget
	m := Message{Body: body, Budget: &budget}
	match, err := CompileMatch("when", `message.body.all(x, x == 0)`)
	if err != nil {
		t.Fatal(err)
	}
	key, err := CompileKey("key", `message.body.filter(x, x > 0).size() == 0 ? 'a' : 'b'`)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for ; err == nil && asked < 100; asked++ {
		if asked%2 == 0 {
			_, err = match.Matches(m)
		} else {
			_, err = key.Of(m)
		}
	}
	if err == nil || asked < 3 || asked > 30 {
		t.Errorf("%d expressions were asked: %v", asked, err)
	}
}

// What is counted ends the evaluation as a whole, also inside of an or that passes over errors.
func TestBudget_AnOrDoesNotPassOverItsEnd(t *testing.T) {
	v := strategyWhen(t, `message.body.all(a, message.body.all(b, a == b)) || true`).
		Decide(Failure{}, Message{Body: listOf(20_000, "0")}, History{}, start(), edge(false))
	checkProblem(t, v.Problems, "when", string(errSteps))
}

// These took up to 1 GiB before anything was counted.
func TestBudget_RefusesALargeTextBeforeItIsMade(t *testing.T) {
	const text = `{"t": "`
	commas := text + strings.Repeat(",", 1<<20) + `"}`
	tests := []struct{ name, when, body string }{
		{"replace", `message.body.t.replace(',', '` + strings.Repeat("x", 1000) + `') == ''`, commas},
		{"split", `message.body.t.split(',').size() == 1`, commas},
		{"quote", `strings.quote(message.body.t) == ''`, commas},
		{"join", `message.body.join('` + strings.Repeat("x", 1000) + `') == ''`, string(listOf(5000, `"a"`))},
		{"format", `'%s'.format([message.body.t]) == ''`, commas},
		{"format of a list", `'%s'.format([message.body]) == ''`, string(listOf(100_000, "1.5"))},
		{"sums", strings.TrimSuffix(strings.Repeat(`message.body.t + `, 100), " + ") + ` == ''`, commas},
		{
			"replace, again and again",
			`[1, 2, 3, 4, 5, 6, 7, 8, 9].map(i, [1, 2, 3, 4, 5, 6, 7, 8, 9].map(j, message.body.t.replace(',', 'xx'))).size() == 0`,
			text + strings.Repeat(",", 500_000) + `"}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := strategyWhen(t, tt.when)
			body := []byte(tt.body)
			value, err := decodeJSON(body)
			if err != nil {
				t.Fatal(err)
			}
			p.decode = func([]byte) (any, error) { return value, nil }
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			v := p.Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false))
			runtime.ReadMemStats(&after)
			if len(v.Problems) != 1 {
				t.Errorf("problems = %v", v.Problems)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 24<<20 {
				t.Errorf("it took %d MiB: %v", took>>20, v.Problems)
			}
		})
	}
}

// CEL builds such a list when it is compared, and goes through all parts for each element: 4 GB and 12 s, before the first
// step was counted.
func TestBudget_CountsJoinedListsBeforeTheyAreBuilt(t *testing.T) {
	together := strings.TrimSuffix(strings.Repeat(`message.body + `, 100), " + ")
	body := listOf(100_000, "0")
	value, err := decodeJSON(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{together + ` == []`, `message.body in [` + together + `]`, `(` + together + `).size() == 1`} {
		p := strategyWhen(t, when)
		p.decode = func([]byte) (any, error) { return value, nil }
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v := p.Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false))
		runtime.ReadMemStats(&after)
		checkProblem(t, v.Problems, "when", string(errSteps))
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 16 {
			t.Errorf("%.40s…: it took %d MiB", when, mib)
		}
	}
}

// These went uncounted, for CEL's estimate takes them for as cheap as a sum.
func TestBudget_CountsWhatIsMadeOfALongText(t *testing.T) {
	body := []byte(`{"t": "` + strings.Repeat("1", 1<<20) + `"}`)
	for _, when := range []string{
		`int(message.body.t) == 1`, `uint(message.body.t) == 1u`, `double(message.body.t) < 1.0`, `bool(message.body.t)`, `size(message.body.t) == 1`,
		`message.body.t.size() == 1`, `duration(message.body.t) == age`, `timestamp(message.body.t) == now`,
	} {
		v := strategyWhen(t, `[1, 2, 3, 4, 5, 6, 7, 8, 9].exists(i, `+when+`)`).
			Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false))
		checkProblem(t, v.Problems, "when", string(errSteps))
	}
}

// A zone of the message is looked for in files, and counted nothing: a list of 100,000 took seconds.
func TestBudget_CountsTimeZones(t *testing.T) {
	names := listOf(100_000, `"Europe/Nowhere"`)
	long := []byte(`["` + strings.Repeat("a", 1<<20) + `"]`)
	for function := range inZone {
		for when, body := range map[string][]byte{
			`message.body.exists(z, now.` + function + `(z) == 77)`:                                                                       names,
			`message.body.all(z, now.` + function + `('Europe/Paris') < 3000)`:                                                            names,
			`[1, 2, 3, 4, 5, 6, 7, 8, 9].exists(i, now.` + function + `(message.body[0]) == 77)`:                                          long,
			`message.body.exists(z, timestamp('2026-01-01T00:00:00Z').` + function + `(z == '' ? 'UTC' : 'Europe/Paris') == 77 || false)`: names,
		} {
			v := strategyWhen(t, when).Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false))
			checkProblem(t, v.Problems, "when", string(errSteps))
		}
	}
	for when, light := range map[string]bool{
		`now.getHours('Europe/Paris') < 24`:                                             true,
		`now.getHours(message.headers.zone) < 24`:                                       false,
		`message.body.all(z, now.getHours(z) < 24)`:                                     false,
		`message.body.all(z, now.getHours('Europe/Paris') < 24)`:                        false,
		`[` + strings.Repeat("1, ", 30) + `].all(x, now.getHours('Europe/Paris') < 24)`: false,
	} {
		m := Message{Headers: map[string]any{"zone": "Europe/Paris"}, Body: listOf(500, `"+02:00"`)}
		p := strategyWhen(t, when)
		if v := p.Decide(Failure{}, m, History{}, start(), edge(false)); v.Strategy != "s" || p.strategies[0].when.light != light {
			t.Errorf("%s: %q, light %v, problems %v", when, v.Strategy, p.strategies[0].when.light, v.Problems)
		}
	}
}

func TestBudget_AllowsShortListsToBeJoined(t *testing.T) {
	const body = `{"a": [1, 2], "b": [3], "many": [[1], [2, 3], []]}`
	for _, when := range []string{
		`message.body.a + message.body.b == [1, 2, 3]`, `(message.body.a + message.body.b).all(x, x > 0)`,
		`3 in message.body.a + message.body.b`, `message.body.many.map(x, x + [0]).size() == 3`,
		`message.body.many.map(x, (x + x).size()) == [2, 4, 0]`, `(message.body.many[0] + message.body.many[1]).filter(x, x > 1) == [2, 3]`,
	} {
		if v := strategyWhen(t, when).Decide(Failure{}, Message{Body: []byte(body)}, History{}, start(), edge(false)); v.Strategy != "s" {
			t.Errorf("%s does not hold: %v", when, v.Problems)
		}
	}
}

// Empty lists counted nothing, however many were compared.
func TestBudget_CountsEmptyLists(t *testing.T) {
	for _, element := range []string{"[]", "{}"} {
		v := strategyWhen(t, `[1, 2, 3, 4, 5, 6, 7, 8, 9].exists(i, message.body != message.body)`).
			Decide(Failure{}, Message{Body: listOf(100_000, element)}, History{}, start(), edge(false))
		checkProblem(t, v.Problems, "when", string(errSteps))
	}
}

func TestBoundTexts_GiveTheUsualResults(t *testing.T) {
	for _, when := range []string{
		`'a,b,c'.replace(',', '--') == 'a--b--c'`, `'a,b,c'.replace(',', '', 1) == 'ab,c'`, `'abc'.replace('', '-') == '-a-b-c-'`,
		`'a,b,c'.split(',') == ['a', 'b', 'c']`, `'a,b,c'.split(',', 2) == ['a', 'b,c']`, `'a,b'.split(',', 0) == []`,
		`['a', 'b'].join() == 'ab'`, `['a', 'b'].join('-') == 'a-b'`, `strings.quote('a"b') == '"a\\"b"'`,
		`'%s is %d'.format(['x', 3]) == 'x is 3'`, `'%.2f'.format([1.0]) == '1.00'`,
	} {
		if v := strategyWhen(t, when).Decide(Failure{}, Message{}, History{}, start(), edge(false)); v.Strategy != "s" {
			t.Errorf("%s does not hold: %v", when, v.Problems)
		}
	}
}

// What a worker allows for bodies that are decoded goes by this. It measures the heap, so it is not parallel.
func TestDecodeJSON_TakesAtMost68TimesTheSizeOfABody(t *testing.T) {
	repeated := func(element string) []byte { return listOf((1<<20)/len(element), element) }
	nested := func(open, value, end string, depth int) []byte {
		return repeated(strings.Repeat(open, depth) + value + strings.Repeat(end, depth))
	}
	for name, body := range map[string][]byte{
		"numbers": repeated("1"), "texts": repeated(`""`), "objects": repeated(`{"":0}`), "empty objects": repeated("{}"), "empty lists": repeated("[]"),
		"lists in lists": nested("[", "1", "]", 5000), "objects in objects": nested(`{"":`, "1", "}", 5000), "both": nested(`[{"":`, "1", "}]", 2000),
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		value, err := decodeJSON(body)
		runtime.GC()
		runtime.ReadMemStats(&after)
		times := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(len(body))
		runtime.KeepAlive(value)
		runtime.KeepAlive(body)
		t.Logf("%s: %.1f times", name, times)
		if err != nil || times > 68 {
			t.Errorf("%s take %.1f times their size, %v", name, times, err)
		}
	}
}

// Bodies of ordinary size that are decoded at the same time took all the memory of a worker, though each alone did no harm.
func TestBodies_WaitForTheMemoryToBeDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, `strategies: [{name: a, when: "message.body.x == 1"}]`)
		var lock sync.Mutex
		now, most := 0, 0
		held := make(chan struct{})
		p.decode = func(body []byte) (any, error) {
			lock.Lock()
			now++
			most = max(most, now)
			lock.Unlock()
			<-held
			lock.Lock()
			now--
			lock.Unlock()
			return decodeJSON(body)
		}
		bodies := NewBodies(20, 2)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				m := Message{Body: []byte(`{"x": 1}`), Bodies: bodies}
				if v := p.Decide(Failure{}, m, History{}, start(), edge(false)); v.Strategy != "a" {
					t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
				}
			})
		}
		synctest.Wait()
		close(held)
		all.Wait()
		if most != 2 {
			t.Errorf("%d bodies of 8 bytes were decoded at a time, and 20 bytes are allowed", most)
		}
	})
}

// BenchmarkDecisionOverAList tells what one element costs.
func BenchmarkDecisionOverAList(b *testing.B) {
	const elements = 20_000
	p := compile(b, `strategies: [{name: s, when: "message.body.all(x, x == 0)"}]`)
	body := listOf(elements, "0")
	value, err := decodeJSON(body)
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name   string
		decode bodyDecoder
	}{{"decoded", func([]byte) (any, error) { return value, nil }}, {"with its decoding", decodeJSON}} {
		b.Run(bb.name, func(b *testing.B) {
			p.decode = bb.decode
			for b.Loop() {
				if v := p.Decide(Failure{}, Message{Body: body}, History{}, start(), edge(false)); v.Strategy != "s" {
					b.Fatal(v.Problems)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/elements, "ns/element")
		})
	}
}
