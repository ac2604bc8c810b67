package worker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// mark stands in each value of the message of TestReportExpressions_LogsNoValueOfAMessage.
const mark = "hunter2"

// failing are expressions, each of which fails on marked values in a way of its own: all kinds of errors that CEL has for values, and
// that a typed expression can come to.
func failing() []string {
	return []string{
		`{'gold': 1}[message.body.text] == 1`, `{'gold': 1}[message.headers.mark] == 1`, `message.headers[message.body.text] == 'x'`,
		`message.body[message.body.text] == 1`, `message.body.list[message.body.text] == 1`, `message.body.list[99] == 1`,
		`message.body.list[message.body.half] == 1`, `message.body.text > 3`, `message.body.object > 3`, `message.body.text`, `message.body.object`,
		`message.body.text + 1 == 2`, `message.body.huge > 1`, `message.body.text.nothing == 1`, `message.body.object.nothing == 1`,
		`int(message.body.text) == 1`, `uint(message.body.text) == 1u`, `double(message.body.text) == 1.0`, `bool(message.body.text)`,
		`duration(message.body.text) > duration('1s')`, `timestamp(message.body.text) > now`, `int(message.body.large) == 1`,
		`string(message.body.object) == ''`, `bytes(message.body.object) == b''`,
		`now.getHours(message.body.text) == 1`, `now.getFullYear(message.headers.mark) == 1`, `message.body.text.matches('hunter') && message.body.text`,
		`message.body.text.substring(99) == ''`, `message.body.text.substring(2, 1) == ''`, `message.body.text.charAt(99) == ''`,
		`message.body.text.indexOf('a', -1) == 1`, `message.body.text.lastIndexOf('a', -1) == 1`,
		`'%d'.format([message.body.text]) == ''`, `'%f'.format([message.body.text]) == ''`, `'%x'.format([message.body.list]) == ''`,
		`'%e'.format([message.body.object]) == ''`, `'%b'.format([message.body.text]) == ''`, `message.body.format.format([1]) == ''`,
		`message.body.mixed.join(',') == ''`,
		`message.body.text.all(x, x)`, `message.body.list.all(x, x > 3)`, `message.body.list.exists_one(x, x)`, `message.body.list.map(x, x.y) == []`,
		`message.body.one / (message.body.one - 1) == 1`, `message.body.one % (message.body.one - 1) == 1`,
		`message.body.most * message.body.most == 1`, `-message.body.text == 1`, `!message.body.text`, `message.body.text ? true : false`,
		`size(message.body.one) == 1`, `message.body.one in message.body.text`, `message.body.text in message.body.one`,
		`dyn(message)[message.body.text] == ''`, `dyn(error)[message.body.text] == ''`,
		`message.body.text.contains(message.body.one)`, `message.body.one.startsWith(message.body.text)`, `[1][message.body.one + 5] == 1`,
		`duration(message.body.text + 's') > age`, `message.body.list.all(a, message.body.list.all(b, message.body.text[a] == b))`,
	}
}

// markedBody has the mark in each of its texts.
const markedBody = `{"text": "hunter2-text", "list": ["hunter2-a", "hunter2-b"], "mixed": ["hunter2", 3], "object": {"hunter2": "hunter2"},
	"half": 0.5, "one": 1, "most": 9223372036854775807, "large": 1e300, "huge": 1e4001234, "format": "%hunter2 %q"}`

func TestReportExpressions_LogsNoValueOfAMessage(t *testing.T) {
	var logged bytes.Buffer
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	log := slog.New(slog.NewTextHandler(&logged, nil))
	metrics := NewMetrics(prometheus.NewRegistry())
	message := retry.Message{Body: []byte(markedBody), Headers: map[string]any{"mark": "hunter2-header"}}
	broken := message
	broken.Body = []byte(`hunter2`)
	for _, when := range failing() {
		w := &Worker{options: Options{Log: log, Metrics: metrics}, problems: newSampled(log, func() time.Time { now = now.Add(time.Hour); return now })}
		policy, err := retry.Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: when}}})
		if err != nil {
			t.Errorf("%s: %v", when, err)
			continue
		}
		verdict := policy.Decide(retry.Failure{}, message, retry.History{}, now, nil)
		if len(verdict.Problems) != 1 {
			t.Errorf("%s does not fail: %+v", when, verdict)
		}
		broke := policy.Decide(retry.Failure{}, broken, retry.History{}, now, nil)
		w.reportExpressions("p", append(verdict.Problems, broke.Problems...))
		if text := verdict.Explanation + broke.Explanation; strings.Contains(text, mark) {
			t.Errorf("%s: the verdict says %s", when, text)
		}
		if key, err := retry.CompileKey("key", when); err == nil {
			_, err = key.Of(message)
			w.reportExpressions("(keys)", []error{err})
		}
	}
	if text := logged.String(); strings.Contains(text, mark) || !strings.Contains(text, "no such key") {
		for line := range strings.Lines(text) {
			if strings.Contains(line, mark) {
				t.Error(line)
			}
		}
		t.Errorf("the log holds %d bytes", len(text))
	}
}
