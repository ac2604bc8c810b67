package retry

import (
	"encoding/json"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/common/operators"
	"golang.org/x/sys/unix"
)

// loop evaluates an expression a hundred times, which names what does so i.
func loop(expression string) string {
	return "[0,1,2,3,4,5,6,7,8,9].exists(j, [0,1,2,3,4,5,6,7,8,9].exists(i, " + expression + "))"
}

// each goes through a thousand short texts or numbers.
func each(of, expression string) string {
	return "message.body." + of + ".exists(x, " + expression + ")"
}

// costly are calls of each function that take as long as any for what they are given. Functions that take the same time for all are in quick.
var costly = map[string][]string{
	operators.Equals: {
		`message.body.a == message.body.b`, `message.body.numbers == message.body.digits`, each("digits", `x == 1.5`), `message.body == message.body`,
		loop(`message.body.short == message.body.other`),
	},
	operators.NotEquals: {`message.body.a != message.body.b`}, operators.Less: {`message.body.a < message.body.b`}, operators.LessEquals: {each("digits", `x <= -1.5`)},
	operators.Greater: {`message.body.a > message.body.b`}, operators.GreaterEquals: {`message.body.a >= message.body.b`},
	operators.In: {
		`message.body.long in message.body.numbers`, `1.5 in message.body.digits`, loop(`message.body.long in {'a': 1, 'b': i}`), loop(`message.body.long in message.body`),
		`message.body.numbers in [message.body.digits, message.body.numbers]`, each("texts", `x in message.body.texts`),
	},
	operators.Index: {loop(`message.body[message.body.long] == 1`), loop(`{'a': i}[message.body.long] == 1`), loop(`{message.body.long: i}.size() == 2`)},
	operators.Add:   {`message.body.long + message.body.long == ''`, `(message.body.numbers + message.body.numbers).size() == 0`, each("texts", `x + x == 'a'`)},
	"size":          {`message.body.long.size() == 0`, loop(`size(message.body.wide) == 0`)},
	"contains":      {`message.body.half.contains(message.body.needle)`, `message.body.a.contains(message.body.needle)`, each("texts", `x.contains('ab')`)},
	"startsWith":    {`message.body.a.startsWith(message.body.b)`}, "endsWith": {`message.body.a.endsWith(message.body.b)`},
	"matches": {
		`message.body.long.matches('^(a?){200}b')`, each("texts", `x.matches('^(a?){200}(b?){200}$')`), each("empty", `x.matches('^(a?){200}(b?){200}z$')`),
		each("empty", `x.matches('a')`),
	},
	"indexOf": {
		`message.body.half.indexOf(message.body.needle) == 0`, `message.body.a.indexOf(message.body.needle) == 0`, loop(`message.body.wide.indexOf('é', 1000) == 0`),
		`message.body.a.indexOf(message.body.needle, 3) == 0`, each("texts", `x.indexOf('ab') == 1`),
	},
	"lastIndexOf": {
		`message.body.half.lastIndexOf(message.body.needle) == 0`, `message.body.a.lastIndexOf(message.body.eldeen) == 0`,
		`message.body.a.lastIndexOf(message.body.eldeen, 300000) == 0`, loop(`message.body.wide.lastIndexOf('x', 1000) == 0`),
	},
	"charAt": {loop(`message.body.wide.charAt(1) == ''`)}, "substring": {loop(`message.body.wide.substring(1, 2) == ''`)}, "trim": {`message.body.blank.trim() == 'a'`},
	"lowerAscii": {`message.body.long.lowerAscii() == ''`}, "upperAscii": {`message.body.wide.upperAscii() == ''`}, "reverse": {`message.body.wide.reverse() == ''`},
	functionReplace: {
		`message.body.half.replace(message.body.needle, 'x') == ''`, `message.body.a.replace(message.body.needle, '', 3) == ''`, loop(`message.body.short.replace('', 'x') == ''`),
	},
	functionSplit: {`message.body.half.split(message.body.needle).size() == 0`, `message.body.a.split(message.body.needle, 3).size() == 0`, loop(`message.body.short.split('').size() == 0`)},
	functionQuote: {loop(`strings.quote(message.body.short) == ''`)},
	functionJoin:  {`message.body.texts.join(message.body.short) == ''`, `message.body.texts.join('') == ''`},
	functionFormat: {
		each("floats", `'%.99f'.format([x]) == '2'`), each("floats", `'%s'.format([x]) == '2'`), each("floats", `'%.99e%.99e%.99e%.99e%.99e%.99e'.format([x,x,x,x,x,x]) == '2'`),
		each("texts", `'%x'.format([x]) == '2'`), each("texts", `'%s'.format([now]) == '2'`), each("texts", `'%s'.format([age]) == '2'`), each("numbers", `'%b%X'.format([x,x]) == '2'`),
		`'%s'.format([message.body.numbers]) == ''`, `'%s'.format([message.body.map]) == ''`,
	},
	"string":       {each("floats", `string(x) == '2'`), each("texts", `string(now) == x`), each("texts", `string(age) == x`), `string(bytes(message.body.long)) == ''`},
	"bytes":        {`bytes(message.body.long) == b''`},
	"int":          {each("texts", `int('-9223372036854775807') == 2`), `int(message.body.long) == 1`, each("floats", `int(x / 1e300) == 5`)},
	"uint":         {each("texts", `uint('18446744073709551615') == 2u`)},
	"double":       {loop(`double(message.body.digitsText) == 1.0`), each("texts", `double('1.7976931348623157e308') == 2.0`)},
	"bool":         {each("texts", `bool('TRUE') == false`)},
	"duration":     {each("texts", `duration('1h2m3.456789s') == age`), loop(`duration(message.body.hours) == age`)},
	"timestamp":    {each("texts", `timestamp('2026-03-01T12:00:00.123456789+02:00') == now + age + age`), each("stamps", `timestamp(x) == now + age + age`)},
	"getHours":     {each("texts", `now.getHours('Europe/Paris') == 77`), each("texts", `now.getHours() == 77`)},
	"getDayOfYear": {each("texts", `now.getDayOfYear('America/Lima') == 777`)},
}

// quick are the functions that take the same time for all values.
var quick = strings.Fields(`in _in_ !_ -_ _-_ _*_ _/_ _%_ _&&_ _||_ _?_:_ @not_strictly_false __not_strictly_false__ _[?_] _?._ dyn type
	getFullYear getMonth getDate getDayOfMonth getDayOfWeek getMinutes getSeconds getMilliseconds`)

// costlyBody is what they are given.
func costlyBody(t *testing.T) any {
	t.Helper()
	body := map[string]any{}
	const n = 400_000
	body["a"], body["b"] = strings.Repeat("a", n), strings.Repeat("a", n)+"b"
	body["needle"], body["eldeen"] = strings.Repeat("a", n/2)+"b", "b"+strings.Repeat("a", n/2)
	body["half"] = strings.Repeat("x", n) + strings.Repeat("a", n)
	body["long"], body["wide"], body["blank"] = strings.Repeat("ab", n), strings.Repeat("é", 10_000), strings.Repeat(" ", n)
	body["short"], body["other"] = strings.Repeat("a\n", 500), strings.Repeat("a\n", 499)+"aa"
	// Halfway between two doubles, as far as the last digit.
	half := "0." + strings.Repeat("0", 300) + "2470328229206232720882843964341106861825299013071623822127928412503377536351043759326499181808179930"
	body["digitsText"], body["hours"] = half+strings.Repeat("1", 600), strings.Repeat("1h", 500)
	body["texts"], body["empty"], body["numbers"], body["digits"], body["floats"], body["stamps"] = fill("ab"), fill(""), fill(json.Number("12345678901")),
		fill(json.Number(half+strings.Repeat("1", 600))), fill(json.Number("1.2345678901234567e300")), fill("2026-03-01T12:00:00.123456789+02:00")
	many := map[string]any{}
	for i := range 1000 {
		many[strconv.Itoa(i*7919%1000)] = json.Number("1")
	}
	body["map"] = many
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	value, err := decodeJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func fill(value any) []any {
	all := make([]any, 1000)
	for i := range all {
		all[i] = value
	}
	return all
}

// indexOf went through its second text at each place of the first: four messages of 900 kB held all turns of a worker for minutes. Each function that an expression
// may call is here, so that a new one is not left out.
func TestBudget_BoundsTheTimeOfACallByItsSteps(t *testing.T) {
	env, err := forPolicies()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range quick {
		costly[name] = append(costly[name], "")
	}
	for name := range env.cel.Functions() {
		if len(costly[name]) == 0 {
			t.Errorf("nothing is known of the function %s", name)
		}
	}
	body := costlyBody(t)
	for name, calls := range costly {
		for _, call := range calls {
			if call == "" {
				continue
			}
			took, steps := fastest(t, call, body)
			if each := took / time.Duration(steps+200); each > 3*time.Microsecond { // an evaluation takes a little of its own
				t.Errorf("%s: %s takes %s for %d steps, %s for each", name, call, took, steps, each)
			} else {
				t.Logf("%s: %s: %s, %d steps, %s each", name, call, took, steps, each)
			}
		}
	}
}

// fastest gives the shortest time of a few that an expression takes of the processor, however busy that is, and its steps.
func fastest(t *testing.T, call string, body any) (time.Duration, int64) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := strategyWhen(t, call)
	p.decode = func([]byte) (any, error) { return body, nil }
	best, steps := time.Hour, int64(1)
	for range 5 {
		var budget Budget
		began := processorTime(t)
		_ = p.Decide(Failure{}, Message{Body: []byte("{}"), Budget: &budget}, History{}, start(), edge(false))
		best, steps = min(best, processorTime(t)-began), max(1, budget.steps)
		if best < time.Duration(steps)*500*time.Nanosecond {
			break
		}
	}
	return best, steps
}

// processorTime is what the thread has had of a processor.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		t.Fatal(err)
	}
	return time.Duration(spent.Nano())
}
