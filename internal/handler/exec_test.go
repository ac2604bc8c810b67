package handler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// shell runs a script of the shell with a message.
func shell(t *testing.T, text string) *retry.Failure {
	t.Helper()
	return execute(t, "sh", "-c", text).Handle(t.Context(), handler.Request{ID: "id", Body: []byte("body")})
}

// isFailure fails the test unless a failure is the one that is wanted.
func isFailure(t *testing.T, got *retry.Failure, want retry.Failure) {
	t.Helper()
	switch {
	case got == nil:
		t.Error("got success")
		return
	case (got.RetryAfter == nil) != (want.RetryAfter == nil), got.RetryAfter != nil && *got.RetryAfter != *want.RetryAfter:
		t.Errorf("got the delay %v", got.RetryAfter)
	}
	compared := *got
	compared.RetryAfter = want.RetryAfter
	compared.Logged = want.Logged // what of the text is logged has a test of its own
	if compared != want {
		t.Errorf("got  %+v\nwant %+v", compared, want)
	}
}

func TestExec_TakesTheExitCodeForTheOutcome(t *testing.T) {
	t.Parallel()
	if got := shell(t, "exit 0"); got != nil {
		t.Errorf("got %+v", got)
	}
	fail, again, free := retry.AdviseFail, retry.AdviseRetry, retry.Advice("")
	cases := map[int]struct {
		class  string
		advice retry.Advice
	}{
		1: {"ExitStatus", free}, 2: {"ExitStatus", free}, 63: {"ExitStatus", free},
		64: {"EX_USAGE", fail}, 65: {"EX_DATAERR", fail}, 66: {"EX_NOINPUT", fail}, 67: {"EX_NOUSER", fail}, 68: {"EX_NOHOST", fail},
		69: {"EX_UNAVAILABLE", free}, 70: {"EX_SOFTWARE", free}, 71: {"EX_OSERR", free}, 72: {"EX_OSFILE", free},
		73: {"EX_CANTCREAT", free}, 74: {"EX_IOERR", free}, 75: {"EX_TEMPFAIL", again}, 76: {"EX_PROTOCOL", fail},
		80: {"EX_RELEASE", retry.AdviseRelease},
		77: {"EX_NOPERM", fail}, 78: {"EX_CONFIG", fail}, 79: {"ExitStatus", free}, 127: {"ExitStatus", free}, 255: {"ExitStatus", free},
	}
	for code, want := range cases {
		isFailure(t, shell(t, fmt.Sprintf("exit %d", code)), retry.Failure{
			Source: retry.SourceHandler, Class: want.class, Status: code, Advice: want.advice,
			Message: fmt.Sprintf("exit status %d, without a word on standard error", code),
		})
	}
}

func TestExec_TakesTheEndOfTheStandardErrorForTheMessage(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ script, want string }{
		"a line":                 {"echo no flour >&2; exit 1", "no flour"},
		"many lines":             {"seq 1000 >&2; echo the end >&2; exit 1", "1000\nthe end"},
		"a long line":            {"head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "xxx"},
		"a long line before":     {"head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; echo the end >&2; exit 1", "the end"},
		"what is not text":       {`printf 'a\377b\000c\033[1m' >&2; exit 1`, "a?bc[1m"},
		"of a child":             {"sh -c 'echo mine >&2'; exit 1", "mine"},
		"with a failing result":  {`echo words >&2; echo '{"outcome": "failure"}'`, "words"},
		"but not with a message": {`echo words >&2; echo '{"outcome": "failure", "message": "own"}'`, "own"},
		"of a crash":             {"echo words >&2; kill -SEGV $$", "words"},
	}
	for name, c := range cases {
		got := shell(t, c.script)
		if got == nil || !strings.HasSuffix(got.Message, c.want) || len(got.Message) > 500 {
			t.Errorf("%s: got %+v, want %q", name, got, c.want)
		}
	}
}

func TestExec_TakesTheLastLineForAResult(t *testing.T) {
	t.Parallel()
	second, most := 90*time.Second, 720*time.Hour
	handlers := func(f retry.Failure) *retry.Failure {
		f.Source = retry.SourceHandler
		return &f
	}
	malformed := func(text string) *retry.Failure {
		return handlers(retry.Failure{Class: handler.ClassMalformedResponse, Message: "the handler's result: " + text})
	}
	long := strings.Repeat("x", 100_000)
	cases := map[string]struct {
		output string
		code   int
		want   *retry.Failure
	}{
		"success": {output: `{"outcome": "ack"}`},
		"all there is": {
			output: `{"outcome":"failure","class":"OutOfStock","message":"no flour","status":503,"retryAfter":90,"advice":"retry","x":[1]}`,
			want:   handlers(retry.Failure{Class: "OutOfStock", Message: "no flour", Status: 503, RetryAfter: &second, Advice: retry.AdviseRetry}),
		},
		"after other lines": {output: "begin\n{\"outcome\": \"ack\"}\n{\"outcome\": \"failure\", \"message\": \"m\"}\n\n \n", want: handlers(retry.Failure{Message: "m"})},
		"behind spaces":     {output: "  {\"outcome\": \"failure\", \"message\": \"m\"}  ", want: handlers(retry.Failure{Message: "m"})},
		"behind a byte order mark": {
			output: "\ufeff{\"outcome\": \"failure\", \"message\": \"m\"}\n", want: handlers(retry.Failure{Message: "m"}),
		},
		"too long, behind a mark": {output: "\ufeff" + `{"outcome":"failure","message":"` + long + `"}`, want: malformed("it is longer than 64 KiB")},
		"before another line":     {output: "{\"outcome\": \"failure\"}\nbye"},
		"an object with none":     {output: `{"level": "info", "msg": "outcome"}`},
		"one within an object":    {output: `{"answer": {"outcome": "failure"}}`},
		"a text":                  {output: `the "outcome" is good`},
		"a list":                  {output: `[{"outcome": "failure"}]`},
		"garbage":                 {output: "\x00\xff\xfe{\x01"},
		"advice in capitals":      {output: `{"outcome":"failure","message":"m","advice":"DROP"}`, want: handlers(retry.Failure{Message: "m", Advice: retry.AdviseDrop})},
		"a delay without end":     {output: `{"outcome":"failure","message":"m","retryAfter":1e300}`, want: handlers(retry.Failure{Message: "m", RetryAfter: &most})},
		"nothing in its fields":   {output: `{"outcome":"failure","message":"m","class":null,"status":null,"retryAfter":null,"advice":null}`, want: handlers(retry.Failure{Message: "m"})},
		"another case is another name": {
			output: `{"outcome":"failure","message":"m","Outcome":"ack","ADVICE":"drop","Class":1,"STATUS":"503"}`, want: handlers(retry.Failure{Message: "m"}),
		},
		"only another case":        {output: `{"Outcome": "failure", "text": "an \"outcome\""}`},
		"a name twice":             {output: `{"outcome":"ack","message":"n","outcome":"failure","message":"m"}`, want: handlers(retry.Failure{Message: "m"})},
		"no outcome":               {output: `{"outcome": null}`, want: malformed(`outcome "" is neither "ack" nor "failure"`)},
		"another outcome":          {output: `{"outcome": "nack"}`, want: malformed(`outcome "nack" is neither "ack" nor "failure"`)},
		"a number for the outcome": {output: `{"outcome": 1}`, want: malformed("outcome cannot be a JSON number")},
		"a text for the status":    {output: `{"outcome":"failure","status":"503"}`, want: malformed("status cannot be a JSON string")},
		"half a status":            {output: `{"outcome":"failure","status":503.5}`, want: malformed("status cannot be a JSON number 503.5")},
		"a text for the delay":     {output: `{"outcome":"failure","retryAfter":"1m"}`, want: malformed("retryAfter cannot be a JSON string")},
		"a delay back in time":     {output: `{"outcome":"failure","message":"m","retryAfter":-1}`, want: handlers(retry.Failure{Message: "m", Advice: retry.AdviseStop})},
		"unknown advice":           {output: `{"outcome":"failure","advice":"pray"}`, want: malformed(`advice "pray" must be fail, drop, retry or release`)},
		"broken JSON":              {output: `{"outcome":"failure","message":"no "flour""}`, want: malformed(`invalid character 'f' after object key:value pair`)},
		"cut-off JSON":             {output: `{"outcome":"fail`, want: malformed("unexpected end of JSON input")},
		"a long class":             {output: `{"outcome":"failure","message":"m","class":"` + long[:1000] + `"}`, want: handlers(retry.Failure{Message: "m", Class: long[:100]})},
		"too long a line":          {output: `{"outcome":"failure","message":"` + long + `"}`, want: malformed("it is longer than 64 KiB")},
		"too long, another order":  {output: `{"message":"` + long + `","outcome":"failure"}`, want: malformed("it is longer than 64 KiB")},
		"too long, in its middle":  {output: `{"a":"` + long[:1000] + `","outcome":"failure","b":"` + long + `"}`, want: malformed("it is longer than 64 KiB")},
		"long, but not a result":   {output: `{"message":"` + long + `"}`},
		"before much white space":  {output: `{"outcome":"failure","message":"m"}` + strings.Repeat("\n", 70_000), want: handlers(retry.Failure{Message: "m"})},
		"behind a long line":       {output: `{"outcome":"` + long + "\n" + `{"outcome": "ack"}`},
		"success, but an exit code": {
			output: `{"outcome": "ack"}`, code: 65,
			want: handlers(retry.Failure{
				Class: "EX_DATAERR", Status: 65, Advice: retry.AdviseFail, Message: "exit status 65, without a word on standard error",
			}),
		},
		"a failure and an exit code": {
			output: `{"outcome": "failure", "class": "OutOfStock", "message": "m"}`, code: 75,
			want: handlers(retry.Failure{Class: "OutOfStock", Message: "m", Status: 75, Advice: retry.AdviseRetry}),
		},
		"a failure that knows better": {
			output: `{"outcome": "failure", "message": "m", "status": 3, "advice": "drop"}`, code: 75,
			want: handlers(retry.Failure{Class: "EX_TEMPFAIL", Message: "m", Status: 3, Advice: retry.AdviseDrop}),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, "sh", "-c", fmt.Sprintf("cat; exit %d", c.code)).Handle(t.Context(), handler.Request{Body: []byte(c.output)})
			if c.want != nil {
				isFailure(t, got, *c.want)
			} else if got != nil {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestExec_TakesASignalForACrash(t *testing.T) {
	t.Parallel()
	for name, number := range map[string]int{"SEGV": 11, "KILL": 9, "TERM": 15, "ABRT": 6} {
		got := shell(t, fmt.Sprintf(`ulimit -c 0; echo '{"outcome": "ack"}'; echo last words >&2; kill -%s $$`, name))
		isFailure(t, got, retry.Failure{
			Source: retry.SourceCrash, Class: "SIG" + name, Status: 128 + number, Message: "killed by SIG" + name + ": last words",
		})
	}
}

func TestExec_TimesOutAnAttemptThatTakesTooLong(t *testing.T) {
	t.Parallel()
	h := execute(t, "sh", "-c", `trap "" TERM INT HUP; echo at work >&2; sleep 1000; echo '{"outcome": "ack"}'`)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	got := h.Handle(ctx, handler.Request{})
	if got == nil || got.Source != retry.SourceTimeout || got.Class != handler.ClassTimeout || !strings.Contains(got.Message, "at work") {
		t.Errorf("got %+v", got)
	}
}

// TestExec_TellsItsCommandTheMessageAndNothingElse is not parallel for the sake of the environment.
func TestExec_TellsItsCommandTheMessageAndNothingElse(t *testing.T) {
	t.Setenv("REDRIVE_TYPE", "stale")
	t.Setenv("REDRIVE_QUEUE", "stale")
	t.Setenv("TRACEPARENT", "stale")
	t.Setenv("REDRIVE_KEPT", "the worker's own")
	file := filepath.Join(t.TempDir(), "environment")
	h := execute(t, "sh", "-c", `env -0 >"$0"`, file)
	seen := func(ctx context.Context, r handler.Request) map[string]string {
		t.Helper()
		if got := h.Handle(ctx, r); got != nil {
			t.Fatalf("got %+v", got)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for variable := range strings.SplitSeq(strings.TrimRight(string(text), "\x00"), "\x00") {
			name, value, _ := strings.Cut(variable, "=")
			if strings.HasPrefix(name, "REDRIVE_") || strings.HasPrefix(name, "TRACE") {
				found[name] = value
			}
		}
		return found
	}
	moment := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.FixedZone("", 3600))
	ctx, cancel := context.WithDeadline(t.Context(), time.Date(2100, 1, 2, 3, 4, 5, 600_000_000, time.UTC))
	defer cancel()
	got := seen(ctx, handler.Request{
		ID: "id", IdempotencyKey: "key", Attempt: 3, Retries: 2, Queue: "q", Exchange: "e", RoutingKey: "r", Type: `App\T`,
		CorrelationID: "c", ReplyTo: "replies", AppID: "shop", UserID: "producer", Priority: 7, Expiration: "60000", Timestamp: moment, FirstFailure: moment, ContentType: "text/plain", ContentEncoding: "gzip",
		Carry:       strings.Repeat("é", 2048),
		Traceparent: "00-a-b-01", Tracestate: "v=1", Headers: map[string]any{"PATH": "/evil", "n": int32(1), "t": map[string]any{"a": []any{true, nil}}},
	})
	want := map[string]string{
		"REDRIVE_KEPT": "the worker's own", "REDRIVE_MESSAGE_ID": "id", "REDRIVE_IDEMPOTENCY_KEY": "key", "REDRIVE_ATTEMPT": "3",
		"REDRIVE_RETRIES": "2", "REDRIVE_QUEUE": "q", "REDRIVE_EXCHANGE": "e", "REDRIVE_ROUTING_KEY": "r", "REDRIVE_TYPE": `App\T`,
		"REDRIVE_REPLY_TO": "replies", "REDRIVE_APP_ID": "shop", "REDRIVE_USER_ID": "producer", "REDRIVE_PRIORITY": "7", "REDRIVE_EXPIRATION": "60000",
		"REDRIVE_CARRY": strings.Repeat("é", 2048), "REDRIVE_CORRELATION_ID": "c", "REDRIVE_TIMESTAMP": "2026-01-02T02:04:05Z", "REDRIVE_FIRST_FAILURE": "2026-01-02T02:04:05.6Z",
		"REDRIVE_CONTENT_TYPE": "text/plain", "REDRIVE_CONTENT_ENCODING": "gzip", "REDRIVE_DEADLINE": "2100-01-02T03:04:05.600Z",
		"TRACEPARENT": "00-a-b-01", "TRACESTATE": "v=1", "REDRIVE_HEADERS": `{"PATH":"/evil","n":1,"t":{"a":[true,null]}}`,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	got = seen(t.Context(), handler.Request{ID: "a\x00b", Queue: "two\nlines = \"fine\"", Type: strings.Repeat("x", 1025), Attempt: 1})
	want = map[string]string{
		"REDRIVE_KEPT": "the worker's own", "REDRIVE_QUEUE": "two\nlines = \"fine\"", "REDRIVE_ATTEMPT": "1", "REDRIVE_RETRIES": "0",
		"REDRIVE_HEADERS": "{}",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestExec_FitsHeadersOfAnySizeIntoTheEnvironment(t *testing.T) {
	t.Parallel()
	headers := map[string]any{"long": strings.Repeat("x", 9<<10), "nul": "\x00", "bytes": []byte("\xff"), "zero": nil}
	for i := range 1000 {
		headers["h"+strconv.Itoa(1000+i)] = strings.Repeat("y", 100)
	}
	file := filepath.Join(t.TempDir(), "headers")
	h := execute(t, "sh", "-c", `printf %s "$REDRIVE_HEADERS" >"$0"`, file)
	if got := h.Handle(t.Context(), handler.Request{Headers: headers}); got != nil {
		t.Fatalf("got %+v", got)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var seen map[string]any
	if err := json.Unmarshal(text, &seen); err != nil || len(text) > 32<<10 {
		t.Fatalf("%d bytes: %v", len(text), err)
	}
	names := slices.Sorted(maps.Keys(seen))
	if len(seen) < 250 || names[0] != "bytes" || names[1] != "h1000" || seen["bytes"] != "\ufffd" {
		t.Errorf("%d headers: %v", len(seen), names)
	}
	if _, there := seen["long"]; there {
		t.Error("a header that is too long is there")
	}
}

func TestExec_TakesVeryLongBodies(t *testing.T) {
	body := make([]byte, 128<<20)
	for _, text := range []string{`[ "$(wc -c)" = 134217728 ]`, "head -c 1 >/dev/null", "exit 0", "exec <&-; exit 0"} {
		if got := execute(t, "sh", "-c", text).Handle(t.Context(), handler.Request{Body: body}); got != nil {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestExec_LogsTheStandardError(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	o := options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	h, err := handler.NewExec(v1alpha1.ExecHandler{Command: []string{"sh", "-c", "echo one >&2; echo two >&2"}}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	if got := h.Handle(t.Context(), handler.Request{ID: "id-1", Queue: "work", Attempt: 2}); got != nil {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(log.String(), `queue=work message=id-1 attempt=2 text="one\ntwo"`) {
		t.Errorf("the log is %s", &log)
	}
}
