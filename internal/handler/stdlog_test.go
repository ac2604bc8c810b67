package handler

import (
	"bytes"
	"errors"
	"log"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/time/rate"
)

func TestStandardLog_LeavesOutAnswersWithoutARequest(t *testing.T) {
	var out bytes.Buffer
	to := log.New(newWithoutAnswers(&out), "", 0)
	to.Printf("%s starting with %q; err=<nil>", unsolicited, "HTTP/1.1 500 Oops\r\n\r\nmarked body")
	to.Print("another line")
	if got := out.String(); strings.Contains(got, "marked") || !strings.Contains(got, "answered a request twice\n") || !strings.HasSuffix(got, "another line\n") {
		t.Errorf("logged %q", got)
	}
}

// For each frame of HTTP/2 that net/http does not know it writes a line: a server that sent such frames for 3 s had 207 MiB in the worker's log.
func TestStandardLog_IsBounded(t *testing.T) {
	var out bytes.Buffer
	guarded := newWithoutAnswers(&out)
	to := log.New(guarded, "", 0)
	for range 100_000 {
		to.Print("Transport: unhandled response frame type *http.http2UnknownFrame")
	}
	if lines := strings.Count(out.String(), "\n"); lines > 100 {
		t.Errorf("%d lines were logged", lines)
	}
	out.Reset()
	guarded.limit.SetLimit(rate.Inf)
	to.Print("another line")
	if got := out.String(); !strings.Contains(got, "lines before this one are left out\nanother line\n") {
		t.Errorf("then it has %q", got)
	}
}

func TestLost_LogsTheKindAndNothingThatAServerSays(t *testing.T) {
	for text, want := range map[string]string{
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, debug="marked body"`: "http2: server sent GOAWAY and " +
			"closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, and debug data",
		"stream error: stream ID 1; INTERNAL_ERROR; received from peer":                          "stream error: stream ID 1; INTERNAL_ERROR; received from peer",
		"stream error: stream ID 1; REFUSED_STREAM":                                              "stream error: stream ID 1; REFUSED_STREAM",
		`stream error: stream ID 1; PROTOCOL_ERROR; invalid header field name "marked; x"`:       "stream error: stream ID 1; PROTOCOL_ERROR",
		"connection error: COMPRESSION_ERROR":                                                    "connection error: COMPRESSION_ERROR",
		"http2: client connection lost":                                                          "http2: client connection lost",
		`http2: Transport: cannot retry err [stream error: stream ID 1; X; "marked"] after that`: "the connection ended, or broke HTTP/2",
	} {
		failure := lost(errors.New(text))
		if failure.Logged != want || failure.Message != text {
			t.Errorf("%+v, want %q logged", failure, want)
		}
	}
}

func TestCarrier_GivesUpOnTooManySpellingsOfOneHeader(t *testing.T) {
	c := &carrier{own: map[string]any{}, headerRules: headerRules{all: true}}
	for n := 2; n < 2*maxCarriedHeaders; n++ {
		c.own["x-"+strconv.Itoa(n)] = "v"
	}
	c.own["x"] = "v"
	if field := c.fieldOf("X"); field != "" {
		t.Errorf("the field is %q, after more tries than headers are carried", field)
	}
}
