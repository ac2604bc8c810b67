package handler_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// secret stands for what a handler repeats of a message.
const secret = "4111-1111-1111-1111"

func TestFailure_LogsTheHandlersWordsAndQuotesNothing(t *testing.T) {
	t.Parallel()
	answer := func(contentType, body string) func(*testing.T) *retry.Failure {
		return func(t *testing.T) *retry.Failure {
			return attempt(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", contentType)
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(body))
			}), time.Minute, secret)
		}
	}
	script := func(text string) func(*testing.T) *retry.Failure {
		return func(t *testing.T) *retry.Failure { return shell(t, text) }
	}
	call := func(program public.Func) func(*testing.T) *retry.Failure {
		return func(t *testing.T) *retry.Failure {
			return inProcess(t, program, handler.Options{Concurrency: 1}).Handle(t.Context(), handler.Request{})
		}
	}
	frames := func(answer func(framed)) func(*testing.T) *retry.Failure {
		return func(t *testing.T) *retry.Failure {
			h, _ := speakHTTP2(t, handler.NewHTTP, answer)
			return attempt(t, h, time.Minute, secret)
		}
	}
	cases := map[string]struct {
		failed func(*testing.T) *retry.Failure
		logged string
	}{
		"an answer's body": {answer("text/plain", "bad card "+secret), "HTTP 503 Service Unavailable"},
		"a problem": {
			answer("application/problem+json", `{"title": "Out of stock", "detail": "no flour", "card": "`+secret+`"}`), "Out of stock: no flour",
		},
		"an answer that is not HTTP": {func(t *testing.T) *retry.Failure {
			return attempt(t, speak(t, func(c net.Conn) { _, _ = c.Write([]byte(secret + "\r\n\r\n")) }), time.Minute, "")
		}, "not an HTTP answer"},
		"a header of HTTP/2 with a name that is none": {
			frames(func(f framed) { _ = f.headers(true, ":status", "503", "Card "+secret, "v") }), "stream error: stream ID 1; PROTOCOL_ERROR",
		},
		"a trailer with such a name": {frames(func(f framed) {
			_ = f.headers(false, ":status", "200")
			_ = f.headers(true, "Card "+secret, "v")
		}), "stream error: stream ID 1; PROTOCOL_ERROR"},
		"a pseudo-header that nobody knows": {
			frames(func(f framed) { _ = f.headers(true, ":status", "503", ":"+secret, "v") }), "stream error: stream ID 1; PROTOCOL_ERROR",
		},
		"a script's standard error":    {script("echo " + secret + " >&2; exit 3"), "exit status 3"},
		"a script that is killed":      {script("echo " + secret + " >&2; kill -9 $$"), "killed by SIGKILL"},
		"a script's result":            {script(`echo '{"outcome": "failure", "message": "no flour"}'`), "no flour"},
		"a result that makes no sense": {script(`echo '{"outcome": "` + secret + `"}'`), "the handler's result cannot be used"},
		"an error in Go":               {call(func(context.Context, *public.Message) error { return errors.New("no flour") }), "no flour"},
		"a panic":                      {call(func(context.Context, *public.Message) error { panic(secret) }), "panic, at "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failure := c.failed(t)
			if failure == nil {
				t.Fatal("got success")
			}
			if !strings.HasPrefix(failure.Logged, c.logged) || strings.Contains(failure.Logged, secret) {
				t.Errorf("logged %q, want %q", failure.Logged, c.logged)
			}
		})
	}
}
