package retry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"redrive.dev/redrive/api/v1alpha1"
)

// order is a message with every property.
func order() Message {
	return Message{
		ID: "id-1", Type: `App\Message\BarApiMessage`, Exchange: "async", RoutingKey: "order.created", Queue: "test",
		CorrelationID: "c-1", ReplyTo: "replies", AppID: "shop", UserID: "producer", Expiration: time.Minute,
		ContentType: "application/json", Priority: 5, Timestamp: start().Add(-time.Minute),
		Headers: map[string]any{
			"partner": "acme", "i8": int8(-8), "i16": int16(-16), "i32": int32(-32), "i64": int64(-64), "u8": uint8(8),
			"u16": uint16(16), "u32": uint32(32), "u64": uint64(64), "f32": float32(0.5), "f64": 0.25, "yes": true,
			"bytes": []byte("ab"), "time": start(), "none": nil,
			"table": map[string]any{"deep": []any{int16(1), map[string]any{"er": "x"}}},
			"chan":  make(chan int),
		},
		Body: []byte(`{"count": 3, "half": 0.5, "whole": 3.0, "big": 9007199254740993, "name": "x", "list": [1, {"a": null}], "on": true, "huge": 1e999}`),
	}
}

func timeout() Failure {
	return Failure{Source: SourceTimeout, Class: "about:blank", Message: "too slow", Status: 504, RetryAfter: new(90 * time.Second)}
}

// strategyWhen makes a policy of one strategy that drops what matches.
func strategyWhen(t testing.TB, when string) *Policy {
	t.Helper()
	p, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{
		{Name: "s", When: when, Action: v1alpha1.ActionDrop},
	}})
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return p
}

func TestExpressions_SeeEveryVariable(t *testing.T) {
	matching := []string{
		`message.id == 'id-1'`,
		`message.type == 'App\\Message\\BarApiMessage'`,
		`message.type == r'App\Message\BarApiMessage'`,
		`message.exchange == 'async' && message.routingKey.startsWith('order.') && message.queue == 'test'`,
		`message.contentType == 'application/json'`,
		`message.correlationId == 'c-1' && message.replyTo == 'replies' && message.appId == 'shop' && message.userId == 'producer'`,
		`message.expiration == duration('60s') && has(message.expiration) && has(message.replyTo)`,
		`message.priority == 5 && message.priority < 5.5`,
		`message.timestamp == timestamp('2026-03-01T11:59:00Z')`,
		`message.timestamp.getHours() == 11`,
		`message.size > 100 && message.size < 200.5`,
		`error.class == 'about:blank' && error.message.contains('slow') && error.source == 'Timeout'`,
		`error.status == 504 && error.status in [500, 502, 503, 504]`,
		`error.retryAfter == duration('90s') && has(error.retryAfter)`,
		`attempt == 4 && retries == 2`,
		`age == duration('1h')`,
		`now == timestamp('2026-03-01T12:00:00Z') && now - age < message.timestamp`,
		`message.headers.partner == 'acme' && message.headers['partner'].upperAscii() == 'ACME'`,
		`message.headers.i8 == -8 && message.headers.i16 == -16 && message.headers.i32 == -32 && message.headers.i64 == -64`,
		`message.headers.u8 == 8 && message.headers.u16 == 16 && message.headers.u32 == 32 && message.headers.u64 == 64`,
		`message.headers.u8 + 1 == 9 && message.headers.u16 + 1 == 17 && message.headers.u32 + 1 == 33`,
		`message.headers.f32 == 0.5 && message.headers.f64 < 1 && message.headers.yes`,
		`message.headers.yes`,
		`message.headers.bytes == b'ab'`,
		`message.headers.time == now`,
		`message.headers.none == null`,
		`message.headers.table.deep[0] == 1 && message.headers.table.deep[1].er == 'x'`,
		`'partner' in message.headers && !('nobody' in message.headers) && !has(message.headers.nobody)`,
		`message.headers.exists(k, k == 'partner')`,
		`message.body.count == 3 && type(message.body.count) == int`,
		`message.body.whole == 3 && type(message.body.whole) == double`,
		`message.body.big == 9007199254740993`,
		`message.body.half == 0.5 && message.body.half < 1`,
		`message.body.list.size() == 2 && message.body.list[0] == 1 && message.body.list[1].a == null`,
		`message.body.list.exists(x, x == 1) && message.body.on && message.body.name.matches('^x$')`,
		`has(message.body.count) && !has(message.body.nothing)`,
		`[message, message][1].id == 'id-1' && dyn(message).size == message.size && has(dyn(error).status)`,
		`type(message) == type(dyn(message)) && type(message) != type(error)`,
		`dyn(message) == dyn(message) && dyn(message) != dyn(error)`,
	}
	h := History{Attempts: 3, Retries: 2, FirstFailure: start().Add(-time.Hour)}
	for _, when := range matching {
		t.Run(when, func(t *testing.T) {
			v := strategyWhen(t, when).Decide(timeout(), order(), h, start(), edge(false))
			if v.Action != v1alpha1.ActionDrop || len(v.Problems) != 0 {
				t.Errorf("%s by %q, problems %v", v.Action, v.Strategy, v.Problems)
			}
		})
	}
}

func TestExpressions_SeeAnEmptyMessageWithoutFailing(t *testing.T) {
	matching := []string{
		`message.id + message.type + message.exchange + message.routingKey + message.queue + message.contentType == ''`,
		`message.headers.size() == 0 && message.priority == 0 && message.size == 0 && message.timestamp < now`,
		`error.class == '' && error.message == '' && error.status == 0 && error.source == ''`,
		`message.correlationId + message.replyTo + message.appId + message.userId == '' && message.expiration == duration('0s')`,
		`!has(message.correlationId) && !has(message.replyTo) && !has(message.appId) && !has(message.userId) && !has(message.expiration)`,
		`attempt == 1 && retries == 0 && age == duration('0s')`,
		`!has(error.retryAfter) && !has(error.status) && !has(error.class)`,
		`!has(message.id) && !has(message.headers) && !has(message.timestamp) && !has(message.body)`,
		`!has(dyn(message).id)`,
	}
	for _, when := range matching {
		t.Run(when, func(t *testing.T) {
			v := strategyWhen(t, when).Decide(Failure{}, Message{}, History{}, start(), edge(false))
			if v.Action != v1alpha1.ActionDrop || len(v.Problems) != 0 {
				t.Errorf("%s by %q, problems %v", v.Action, v.Strategy, v.Problems)
			}
		})
	}
}

func TestCompile_TellsWhereAnExpressionIsWrong(t *testing.T) {
	tests := []struct {
		name, expr   string
		line, column int
		text         string
	}{
		{"a typo in a field of error", `error.statsu == 429`, 1, 6, "there is no field statsu; did you mean status?"},
		{"a typo in a field of message", "attempt > 1 &&\n  message.foo == 'x'", 2, 10, "there is no field foo: message has appId, body, contentType,"},
		{"a typo in has()", `has(error.retryafter)`, 1, 4, "there is no field retryafter; did you mean retryAfter?"},
		{"an unknown variable", `failure.status == 1`, 1, 1, "there is no variable failure here, only age, attempt, error, message, now, retries; a text stands in quotes: 'failure'"},
		{"an unknown function", `message.id.shout() == 'X'`, 1, 17, "there is no function shout"},
		{"two types that cannot be compared", `error.status == '429'`, 1, 14, "== compares a number with a text: write the number without quotes"},
		{"one = in place of two", `error.status = 429 && attempt > 1`, 1, 14, "= is no operator: write == to compare"},
		{"a text without quotes", `message.type == order`, 1, 17, "there is no variable order here, only age, attempt, error, message, now, retries; a text stands in quotes: 'order'"},
		{"a result that is no bool", `error.status`, 1, 1, "must give a bool, but gives int"},
		{"a duration that is none", `age > duration('1 hour')`, 1, 16, "invalid duration argument"},
		{"a pattern that is none", `error.message.matches('(')`, 1, 23, "the pattern of matches: error parsing regexp: missing closing )"},
		{"a pattern that a message brings", `message.id.matches(message.headers.pattern)`, 1, 35, "the pattern of matches must be a text in quotes"},
		{"a pattern that grows", `matches(message.id, '(?:aaaaaaaaaa){201}')`, 1, 21, "the pattern of matches comes to 2211 steps, with what it repeats, and 2000 are allowed"},
		{
			"patterns that grow together", `message.id.matches('a{999}') || message.id.matches('b{999}c') || message.id.matches('d{900}')`, 1, 52,
			"the patterns of matches come to 3998 steps",
		},
		{"a pattern that grows beyond any number", `message.id.matches('((((a{1000}){1000}){1000}){1000})')`, 1, 20, "the pattern of matches"},
		{"an object made by hand", `1 == redrive.Error{status: 1}.status`, 1, 19, "an expression makes no objects, such as this redrive.Error{}: write a map, {'name': value}"},
		{"an end too early", `error.status ==`, 1, 16, "Syntax error: mismatched input '<EOF>'"},
		{"nothing", ``, 1, 1, "Syntax error: mismatched input '<EOF>'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: tt.expr}}})
			var e *ExpressionError
			if !errors.As(err, &e) {
				t.Fatalf("error = %v", err)
			}
			if e.Policy != "p" || e.Strategy != "s" || e.Field != "when" || e.Line != tt.line || e.Column != tt.column ||
				!strings.HasPrefix(e.Err.Error(), tt.text) {
				t.Errorf("got %d:%d %q, want %d:%d %q", e.Line, e.Column, e.Err, tt.line, tt.column, tt.text)
			}
		})
	}
}

func TestPatterns_OfReasonableSizeAreTaken(t *testing.T) {
	strategyWhen(t, `message.id.matches('^[a-z0-9-]{1,63}([.][a-z0-9-]{1,63}){1,8}$')`)
	strategyWhen(t, `message.id.matches(r'^[\pL\pN_-]{1,64}$')`)
}

// A class such as \pL has 650 ranges, which take 5 KB each time that it stands in a pattern: 150 KB of text took 250 MB, and ended the operator of all.
func TestPatterns_OfLargeClassesAreBoundedByTheirMemory(t *testing.T) {
	var spec v1alpha1.RetryPolicySpec
	for i := range 98 {
		spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{
			Name: fmt.Sprint("s", i), When: fmt.Sprintf(`message.id.matches(r"%d%s")`, i, strings.Repeat(`\pL`, 400)),
		})
	}
	compiler, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	before := liveHeap()
	if _, err := compiler.Compile("classes", spec); !errors.Is(err, ErrTooMuch) {
		t.Errorf("98 patterns of 400 large classes each are compiled: %v", err)
	}
	if grew := liveHeap() - before; grew > 16<<20 {
		t.Errorf("they took %d bytes", grew)
	}
	runtime.KeepAlive(compiler)
	_, err = Compile("one", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: `message.id.matches(r"` + strings.Repeat(`\pL`, 1000) + `")`}}})
	if err == nil || !strings.Contains(err.Error(), "take the memory of 1") || !strings.Contains(err.Error(), "50000 are allowed") {
		t.Errorf("a pattern of 1,000 large classes is compiled: %v", err)
	}
}

// liveHeap is the memory of what is reachable.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestCompile_BoundsAllExpressionsOfAPolicyTogether(t *testing.T) {
	for name, when := range map[string]string{
		"text":     `message.id == "%03d` + strings.Repeat("x", 2000) + `"`,
		"patterns": `message.id.matches("%03d(?:aa){600}")`,
	} {
		var spec v1alpha1.RetryPolicySpec
		for i := range 140 {
			spec.Strategies = append(spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", i), When: fmt.Sprintf(when, i)})
		}
		_, err := Compile("large", spec)
		if !errors.Is(err, ErrTooMuch) || strings.Count(err.Error(), "are too large") != 1 {
			t.Errorf("%s: %v", name, err)
		}
		spec.Strategies = spec.Strategies[:20]
		if _, err := Compile("small", spec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDelayFrom_MustGiveADuration(t *testing.T) {
	tests := []struct {
		name, expr, want string
	}{
		{"a number", `error.status`, "must give a duration, but gives int"},
		{"a header", `message.headers.delay`, "must give a duration, but gives dyn: wrap it in duration(…)"},
		{"null alone", `null`, "must give a duration, but gives null"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: "true", DelayFrom: &tt.expr}}})
			var e *ExpressionError
			if !errors.As(err, &e) || e.Field != "delayFrom" || e.Err.Error() != tt.want {
				t.Errorf("error = %v, want %s", err, tt.want)
			}
		})
	}
}

func TestDelayFrom_GivesTheDelayOrLeavesItToTheBackoff(t *testing.T) {
	absent := Failure{Status: 429}
	tests := []struct {
		name, expr string
		failure    Failure
		delay      time.Duration
		problem    string
	}{
		{"the handler's wish", `error.retryAfter`, timeout(), 90 * time.Second, ""},
		{"the handler's wish, doubled", `error.retryAfter + error.retryAfter`, timeout(), 3 * time.Minute, ""},
		{"absent is the backoff and no problem", `error.retryAfter`, absent, time.Second, ""},
		{"absent in a sum, too", `error.retryAfter + duration('1s')`, absent, time.Second, ""},
		{"null is the backoff and no problem", `has(error.retryAfter) ? error.retryAfter : null`, absent, time.Second, ""},
		{"a header as text", `duration(message.headers.partner == 'acme' ? '7s' : '8s')`, absent, 7 * time.Second, ""},
		{"a header that is no duration", `duration(string(message.headers.partner))`, absent, time.Second, "1:9: type conversion error"},
		{"a header that is missing", `duration(string(message.headers.nobody))`, absent, time.Second, "no such key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: "true", DelayFrom: &tt.expr}}})
			if err != nil {
				t.Fatal(err)
			}
			v := p.Decide(tt.failure, order(), History{}, start(), edge(false))
			if v.Action != v1alpha1.ActionRetry || v.Delay != tt.delay || v.Strategy != "s" {
				t.Errorf("%s in %s by %q, want %s", v.Action, v.Delay, v.Strategy, tt.delay)
			}
			checkProblem(t, v.Problems, "delayFrom", tt.problem)
		})
	}
}

// checkProblem expects one problem of the field with that text, or none where text is empty.
func checkProblem(t *testing.T, problems []error, field, text string) {
	t.Helper()
	if text == "" {
		if len(problems) != 0 {
			t.Errorf("problems = %v", problems)
		}
		return
	}
	var e *ExpressionError
	if len(problems) != 1 || !errors.As(problems[0], &e) || e.Field != field || e.Policy != "p" || e.Strategy != "s" ||
		!strings.Contains(e.Error(), text) {
		t.Errorf("problems = %v, want one of %s with %q", problems, field, text)
	}
}

func TestExpressions_DoNotMatchWhereTheyFail(t *testing.T) {
	tests := []struct {
		name, when string
		body       string
		problem    string
	}{
		{"a header that is missing", `message.headers.nobody == 'x'`, ``, "1:16: no such key"},
		{"a header of a type that CEL does not know", `message.headers.chan == 'x'`, ``, "unsupported conversion"},
		{"a header that is no bool", `message.headers.partner`, ``, "must give a bool, but gave string"},
		{"a header that has no order", `message.headers.none > 3`, ``, "no such overload"},
		{"an optional field that is absent", `error.retryAfter > duration('1s')`, ``, "error.retryAfter: it is absent: ask has() first"},
		{"a division by zero", `attempt / retries == 1`, ``, "1:9: division by zero"},
		{"a field that the body lacks", `message.body.count == 3`, `{}`, "no such key"},
		{"an empty body", `message.body.count == 3`, ``, "message.body is empty"},
		{"a body that is not JSON", `message.body.count == 3`, `<xml/>`, "message.body is not JSON: byte 1 of it"},
		{"a body cut short", `message.body.count == 3`, `{"count": 3`, "message.body is not JSON: it is cut short"},
		{"a body with something behind it", `message.body.count == 3`, `{"count": 3} x`, "message.body is not JSON: something follows the value"},
		{"a body of text where an object is expected", `message.body.count == 3`, `"text"`, "no such"},
		{"a number that fits nowhere", `message.body.huge == 1`, `{"huge": 1e999}`, "number out of range"},
		{"a body that nests too deep", `message.body.a == 3`, strings.Repeat("[", 100_000), "message.body is not JSON: byte 10001 of it"},
		{"a field that an object lacks", `dyn(error).nothing == 1`, ``, "no such"},
		{"an object as text", `string(dyn(message)) == ''`, ``, "no such overload"},
		{"a field that is no name", `dyn(message)[1] == ''`, ``, "no such"},
		{"has() of a field that an object lacks", `has(dyn(message).nothing)`, ``, "no such field"},
		{
			"work without end", `message.body.all(a, message.body.all(b, message.body.all(c, a + b + c >= 0)))`,
			"[" + strings.Repeat("1,", 999) + "1]", "more than the steps that one decision has",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := order()
			m.Body = []byte(tt.body)
			v := strategyWhen(t, tt.when).Decide(Failure{}, m, History{}, start(), edge(false))
			if v.Action != v1alpha1.ActionRetry || v.Strategy != "" || v.Delay != time.Second {
				t.Errorf("%s in %s by %q, want the policy's own retry", v.Action, v.Delay, v.Strategy)
			}
			checkProblem(t, v.Problems, "when", tt.problem)
		})
	}
}

func TestDecide_GoesOnAfterAStrategyWhoseExpressionFails(t *testing.T) {
	p := compile(t, `strategies: [{name: broken, when: message.headers.nobody == 'x'}, {name: next, when: "true", action: Fail}]`)
	v := p.Decide(Failure{}, Message{}, History{}, start(), edge(false))
	if v.Strategy != "next" || len(v.Problems) != 1 {
		t.Errorf("decided by %q with problems %v", v.Strategy, v.Problems)
	}
}

func TestExpressionError_HasABoundedText(t *testing.T) {
	_, err := CompileMatch("f", "message."+strings.Repeat("nothing", 1000))
	if err == nil {
		t.Fatal("it compiles")
	}
	text := err.Error()
	if len(text) < maxErrorText || len(text) > maxErrorText+100 || !utf8.ValidString(text) {
		t.Errorf("text = %.1000q", text)
	}
}

func TestDecide_DecodesTheBodyOnceAndOnlyWhenItIsRead(t *testing.T) {
	tests := []struct {
		name, strategies string
		want             int
	}{
		{"no strategies", `[]`, 0},
		{"no expression reads it", `[{name: a, when: message.size > 100000}, {name: b, when: has(message.body) && error.status == 1}]`, 0},
		{"an expression that would read it is not reached", `[{name: a, when: "true"}, {name: b, when: message.body.count == 3}]`, 0},
		{"an expression that would read it stops before", `[{name: a, when: error.status == 1 && message.body.count == 3}]`, 0},
		{"several read it", `[{name: a, when: message.body.count == 4 || message.body.count == 5}, {name: b, when: message.body.name == 'y'},
			{name: c, when: message.body.count == 3, delayFrom: duration(string(message.body.count) + 's')}]`, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, "strategies: "+tt.strategies)
			decoded := 0
			p.decode = func(body []byte) (any, error) {
				decoded++
				return decodeJSON(body)
			}
			v := p.Decide(Failure{}, order(), History{}, start(), edge(false))
			if decoded != tt.want || len(v.Problems) != 0 {
				t.Errorf("decoded %d times, want %d; problems %v", decoded, tt.want, v.Problems)
			}
		})
	}
}

func TestDecide_TriesAnUndecodableBodyOnce(t *testing.T) {
	p := compile(t, `strategies: [{name: a, when: message.body.x == 1}, {name: b, when: message.body.x == 2}]`)
	decoded := 0
	p.decode = func(body []byte) (any, error) {
		decoded++
		return decodeJSON(body)
	}
	if v := p.Decide(Failure{}, Message{Body: []byte("?")}, History{}, start(), edge(false)); decoded != 1 || len(v.Problems) != 2 {
		t.Errorf("decoded %d times, problems %v", decoded, v.Problems)
	}
}

func TestBodies_TooLargeFailTheExpressionThatReadsThem(t *testing.T) {
	p := compile(t, `strategies: [{name: a, when: message.body.x == 1, action: Fail}, {name: b, when: "true", action: Drop}]`)
	p.decode = func([]byte) (any, error) {
		t.Error("it was decoded")
		return nil, errAbsent
	}
	v := p.Decide(Failure{}, Message{Body: []byte(`{"x":1}`), Bodies: NewBodies(6, 2)}, History{}, start(), edge(false))
	if v.Strategy != "b" || len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Error(), "it counts as 7 bytes, and the memory limit of the worker allows for 6") {
		t.Errorf("strategy %q decided, problems %v", v.Strategy, v.Problems)
	}
	p.decode = decodeJSON
	if v := p.Decide(Failure{}, Message{Body: []byte(`{"x":1}`), Bodies: NewBodies(7, 2)}, History{}, start(), edge(false)); v.Strategy != "a" || len(v.Problems) != 0 {
		t.Errorf("of a body that is just small enough %q decided, problems %v", v.Strategy, v.Problems)
	}
}

func TestMatch_HoldsOrTellsTheProblem(t *testing.T) {
	tests := []struct {
		name, expr string
		want       bool
		problem    string
	}{
		{"a header that is there", `message.headers.partner == 'acme'`, true, ""},
		{"a header of another value", `message.headers.partner == 'other'`, false, ""},
		{"a body", `message.body.count == 3`, true, ""},
		{"a header that is missing", `message.headers.nobody == 'acme'`, false, "retryPolicies[2].when, 1:16: no such key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := CompileMatch("retryPolicies[2].when", tt.expr)
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Matches(order())
			if got != tt.want {
				t.Errorf("matches = %v", got)
			}
			if text := fmt.Sprint(err); (err != nil || tt.problem != "") && text != tt.problem {
				t.Errorf("error = %q, want %q", text, tt.problem)
			}
		})
	}
}

func TestMatch_SeesTheMessageAlone(t *testing.T) {
	for _, expr := range []string{`error.status == 1`, `attempt == 1`, `retries == 1`, `age == duration('1s')`, `now == now`} {
		_, err := CompileMatch("retryPolicies[0].when", expr)
		var e *ExpressionError
		if !errors.As(err, &e) || e.Field != "retryPolicies[0].when" || e.Line != 1 || e.Column != 1 {
			t.Errorf("%s: error = %v", expr, err)
		}
	}
}

func TestPolicy_IsSafeForConcurrentUse(t *testing.T) {
	p := compile(t, `
strategies:
- {name: a, when: message.body.count == 4 && message.headers.nobody == 1}
- {name: b, when: message.headers.nobody == 1}
- {name: c, when: message.body.count == 3, delayFrom: error.retryAfter, backoff: {type: Linear, jitter: {type: Full}}}
`)
	match, err := CompileMatch("f", `message.body.count == 3`)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 0))
			for range 50 {
				v := p.Decide(timeout(), order(), History{}, start(), rnd)
				if v.Strategy != "c" || v.Delay != 90*time.Second || len(v.Problems) != 1 {
					t.Errorf("verdict = %+v", v)
				}
				if ok, err := match.Matches(order()); !ok || err != nil {
					t.Errorf("match = %v, %v", ok, err)
				}
				p.Schedule()
				PlanLanes([]*Policy{p}, 24, false)
			}
		})
	}
	wg.Wait()
}
