package httpserver

import (
	"bytes"
	"log"
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
