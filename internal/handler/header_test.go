package handler_test

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
)

// sent returns the headers that a server sees of a request.
func sent(t *testing.T, request handler.Request) http.Header {
	t.Helper()
	var header http.Header
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		header = r.Header.Clone()
	})
	if got := h.Handle(t.Context(), request); got != nil {
		t.Fatal(show(got))
	}
	return header
}

func TestARequestTellsAllAboutTheMessage(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{
		Body: []byte("{}"), ContentType: "application/json", ContentEncoding: "gzip", ID: "id", IdempotencyKey: "key",
		Attempt: 4, Retries: 2, Queue: "wörk", Exchange: "async", RoutingKey: "order.created", Type: `App\Message\Bar`,
		CorrelationID: "c", Timestamp: noon, FirstFailure: noon.Add(-1500 * time.Millisecond),
		Headers: map[string]any{"traceparent": "00-a-b-01"},
	})
	want := http.Header{
		"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "Content-Length": {"2"},
		"User-Agent": {"redrive-worker/1.2.3"}, "Idempotency-Key": {"key"}, "Traceparent": {"00-a-b-01"},
		"Redrive-Message-Id": {"id"}, "Redrive-Idempotency-Key": {"key"}, "Redrive-Attempt": {"4"}, "Redrive-Retries": {"2"},
		"Redrive-Queue": {"wörk"}, "Redrive-Exchange": {"async"}, "Redrive-Routing-Key": {"order.created"},
		"Redrive-Type": {`App\Message\Bar`}, "Redrive-Correlation-Id": {"c"}, "Redrive-Timestamp": {"2026-05-04T12:00:00Z"},
		"Redrive-First-Failure": {"2026-05-04T11:59:58.5Z"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestAMessageThatSaysNothingIsSentWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{Attempt: 1})
	want := http.Header{
		"Content-Type": {"application/octet-stream"}, "Content-Length": {"0"}, "User-Agent": {"redrive-worker/1.2.3"},
		"Redrive-Attempt": {"1"}, "Redrive-Retries": {"0"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestHeadersOfAMessageAreCarriedOverWhereThatIsValidAndHarmless(t *testing.T) {
	t.Parallel()
	const absent = "\x00"
	cases := map[string]struct {
		name  string
		value any
		want  string
	}{
		"a text":                          {"Partner", "acme", "acme"},
		"bytes":                           {"partner", []byte("acme"), "acme"},
		"a byte":                          {"n", uint8(7), "7"},
		"an integer":                      {"n", int32(-7), "-7"},
		"a Go integer":                    {"n", 7, "7"},
		"a small integer":                 {"n", int8(-7), "-7"},
		"a short":                         {"n", int16(-7), "-7"},
		"an unsigned short":               {"n", uint16(7), "7"},
		"an unsigned integer":             {"n", uint32(1 << 31), "2147483648"},
		"a float":                         {"n", float32(0.1), "0.1"},
		"a long":                          {"n", int64(1 << 60), "1152921504606846976"},
		"a double":                        {"n", 1.5, "1.5"},
		"a boolean":                       {"b", true, "true"},
		"a time":                          {"at", noon, "2026-05-04T12:00:00Z"},
		"a line break becomes a space":    {"a", "b\r\nEvil: c", "b  Evil: c"},
		"text that is not ASCII stays":    {"a", "é", "é"},
		"a table stays behind":            {"a", map[string]any{"b": "c"}, absent},
		"an array stays behind":           {"a", []any{"b"}, absent},
		"nothing stays behind":            {"a", nil, absent},
		"a long value stays behind":       {"a", strings.Repeat("x", 8<<10+1), absent},
		"an invalid name stays behind":    {"a b", "c", absent},
		"an empty name stays behind":      {"", "c", absent},
		"no message logs in":              {"Authorization", "Basic x", absent},
		"nor with a cookie":               {"cookie", "x=y", absent},
		"nor by CGI's spelling":           {"proxy_authorization", "x", absent},
		"nor does it choose a proxy":      {"Proxy", "http://evil", absent},
		"nor where it comes from":         {"X-Forwarded-For", "127.0.0.1", absent},
		"nor another method":              {"X-HTTP-Method-Override", "DELETE", absent},
		"nor another path":                {"X-Original-URL", "/admin", absent},
		"nor one of another server's":     {"X_Rewrite_Url", "/admin", absent},
		"nor whose client it is":          {"True-Client-IP", "127.0.0.1", absent},
		"nor does it speak for Redrive":   {"redrive-shadow", "99", absent},
		"nor with an underscore":          {"Redrive_Attempt", "99", absent},
		"nor does it frame the request":   {"Trailer", "a", absent},
		"nor wait for leave to send":      {"expect", "100-continue", absent},
		"nor change what the answer is":   {"Accept-Encoding", "gzip", absent},
		"nor does it bring its own key":   {"x-idempotency-key", "k", absent},
		"nor upgrade the connection":      {"Upgrade", "h2c", absent},
		"nor say how it goes over TE":     {"TE", "trailers", absent},
		"nor settle HTTP/2 before it is":  {"HTTP2-Settings", "AAA", absent},
		"nor say where it came from":      {"Forwarded", "for=1.1.1.1", absent},
		"nor keep the connection for all": {"Keep-Alive", "300", absent},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := sent(t, handler.Request{Headers: map[string]any{c.name: c.value}})
			got, there := header[http.CanonicalHeaderKey(c.name)]
			switch {
			case c.want == absent && there:
				t.Errorf("got %q", got)
			case c.want != absent && (len(got) != 1 || got[0] != c.want):
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAMessageCannotOverrideWhatTheRequestIs(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{
		Body: []byte("body"), ContentType: "text/plain\r\nEvil: a", ID: "a\nb", Attempt: 1, Queue: strings.Repeat("q", 2000),
		ContentEncoding: "utf-8", // Celery's
		Headers: map[string]any{
			"Host": "evil", "content-length": "0", "Transfer-Encoding": "chunked", "Connection": "close", "User-Agent": "evil",
			"Content-Type": "evil", "Content-Encoding": "evil", "Redrive-Attempt": "99",
		},
	})
	want := http.Header{
		"Content-Type": {"text/plain  Evil: a"}, "Content-Length": {"4"}, "User-Agent": {"redrive-worker/1.2.3"},
		"Redrive-Message-Id": {"a b"}, "Redrive-Attempt": {"1"}, "Redrive-Retries": {"0"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestALotOfHeadersIsCarriedOverUpToABound(t *testing.T) {
	t.Parallel()
	headers := map[string]any{}
	for name := range strings.SplitSeq("abcdefghijklmnop", "") {
		headers["H-"+name] = strings.Repeat("x", 4000)
		headers["h-"+name] = strings.Repeat("y", 4000) // the same name to HTTP
	}
	got := sent(t, handler.Request{Headers: headers})
	for name, want := range map[string]bool{"H-A": true, "H-H": true, "H-P": false} {
		if _, there := got[name]; there != want {
			t.Errorf("%s is there: %t", name, there)
		}
	}
}
