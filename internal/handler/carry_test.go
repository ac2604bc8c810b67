package handler_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// carries fails the test unless a failure has a class and asks to have a text back; nil is for none.
func carries(t *testing.T, got *retry.Failure, class string, want *string) {
	t.Helper()
	if got == nil || got.Class != class || (got.Carry == nil) != (want == nil) || want != nil && *got.Carry != *want {
		t.Errorf("got %+v, want the class %q", got, class)
		if want != nil && got != nil && got.Carry != nil {
			t.Errorf("it carries %.100q, want %.100q", *got.Carry, *want)
		}
	}
}

func TestHTTP_CarryOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer []string
		status int
		class  string
		want   *string
	}{
		"none leaves what was there":               {nil, 500, "", nil},
		"a text is carried":                        {[]string{`["a"]`}, 500, "", new(`["a"]`)},
		"with advice":                              {[]string{"half"}, 503, "", new("half")},
		"what no header can have, encoded":         {[]string{"%20%c3%A9%0A+100%25"}, 500, "", new(" é\n+100%")},
		"an empty text takes it back":              {[]string{""}, 500, "", new("")},
		"the first of several":                     {[]string{"a", "b"}, 500, "", new("a")},
		"the longest that is carried":              {[]string{strings.Repeat("x", 4096)}, 500, "", new(strings.Repeat("x", 4096))},
		"one that is longer when it is encoded":    {[]string{strings.Repeat("é", 1000)}, 500, "MalformedResponse", nil},
		"a longer one is no answer":                {[]string{strings.Repeat("x", 4097)}, 500, "MalformedResponse", nil},
		"neither is a percent sign of no encoding": {[]string{"100%"}, 500, "MalformedResponse", nil},
		"nor what is no UTF-8":                     {[]string{"%ff"}, 500, "MalformedResponse", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Redrive-Carry"] = c.answer
				w.WriteHeader(c.status)
			})
			carries(t, h.Handle(t.Context(), handler.Request{Attempt: 1}), c.class, c.want)
		})
	}
	success := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Redrive-Carry", "100%") })
	if got := success.Handle(t.Context(), handler.Request{Attempt: 1}); got != nil {
		t.Errorf("a success with a carry: got %+v", got)
	}
}

func TestHTTP_CarryIsGivenBackInTheRequest(t *testing.T) {
	t.Parallel()
	var got []string
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header["Redrive-Carry"] })
	for _, c := range [][2]string{
		{"", ""},
		{`["a"]`, `["a"]`},
		{" é\n+100%", "%20%C3%A9%0A+100%25"},
		{strings.Repeat("x", 4096), strings.Repeat("x", 4096)},
		{strings.Repeat("é", 2048), ""}, // too long for a header; other handlers may have asked for it
	} {
		carried, want := c[0], c[1]
		request := handler.Request{Attempt: 2, Carry: carried, Headers: map[string]any{"redrive-carry": "no"}}
		if failure := h.Handle(t.Context(), request); failure != nil {
			t.Fatalf("got %+v", failure)
		}
		if strings.Join(got, ", ") != want || (want == "") != (got == nil) {
			t.Errorf("%.20q: the header is %.100q, want %.100q", carried, got, want)
		}
	}
}

func TestExec_Carry(t *testing.T) {
	t.Parallel()
	again := execute(t, "sh", "-c", `printf '{"outcome": "failure", "class": "Half", "carry": "%s+1"}' "$REDRIVE_CARRY"`)
	carries(t, again.Handle(t.Context(), handler.Request{ID: "id", Carry: "done"}), "Half", new("done+1"))
	carries(t, shell(t, `echo '{"outcome": "failure", "carry": ""}'; exit 75`), "EX_TEMPFAIL", new(""))
	carries(t, shell(t, `echo '{"outcome": "ack", "carry": "x"}'; exit 1`), "ExitStatus", nil)
	carries(t, shell(t, `printf '{"outcome": "failure", "carry": "%04097d"}' 0`), "MalformedResponse", nil)
}

func TestInProcess_Carry(t *testing.T) {
	t.Parallel()
	var answer error
	h := inProcess(t, func(_ context.Context, m *public.Message) error {
		if m.Carry != "done" {
			t.Errorf("the last attempt carried %q", m.Carry)
		}
		return answer
	}, handler.Options{})
	for text, c := range map[string]struct {
		class string
		want  *string
	}{
		"half":                    {"", new("half")},
		"":                        {"", new("")},
		strings.Repeat("x", 4097): {"MalformedResponse", nil},
		"\xff":                    {"MalformedResponse", nil},
	} {
		answer = public.Carry(text, errors.New("no flour left"))
		carries(t, h.Handle(t.Context(), handler.Request{Carry: "done"}), c.class, c.want)
	}
	answer = errors.New("no flour left")
	carries(t, h.Handle(t.Context(), handler.Request{Carry: "done"}), "", nil)
}

func TestInProcess_CarryOfAnAttemptThatTimesOut(t *testing.T) {
	t.Parallel()
	h := inProcess(t, func(ctx context.Context, _ *public.Message) error {
		<-ctx.Done()
		return public.Carry("half", ctx.Err())
	}, handler.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	carries(t, h.Handle(ctx, handler.Request{}), "Timeout", new("half"))
}
