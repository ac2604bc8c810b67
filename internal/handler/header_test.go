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

func TestHTTP_TellsAllAboutTheMessage(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{
		Body: []byte("{}"), ContentType: "application/json", ContentEncoding: "gzip", ID: "id", IdempotencyKey: "key",
		Attempt: 4, Retries: 2, Queue: "wörk", Exchange: "async", RoutingKey: "order.created", Type: `App\Message\Bar`,
		CorrelationID: "c", ReplyTo: "replies", AppID: "shop", UserID: "producer", Priority: 7, Expiration: "60000", Timestamp: noon, FirstFailure: noon.Add(-1500 * time.Millisecond),
		Headers: map[string]any{"traceparent": "00-a-b-01"},
	})
	want := http.Header{
		"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "Content-Length": {"2"},
		"User-Agent": {"redrive-worker/1.2.3"}, "Idempotency-Key": {"key"}, "Redrive-Header-Traceparent": {"00-a-b-01"},
		"Redrive-Message-Id": {"id"}, "Redrive-Idempotency-Key": {"key"}, "Redrive-Attempt": {"4"}, "Redrive-Retries": {"2"},
		"Redrive-Queue": {"wörk"}, "Redrive-Exchange": {"async"}, "Redrive-Routing-Key": {"order.created"},
		"Redrive-Type": {`App\Message\Bar`}, "Redrive-Correlation-Id": {"c"},
		"Redrive-Reply-To": {"replies"}, "Redrive-App-Id": {"shop"}, "Redrive-User-Id": {"producer"}, "Redrive-Priority": {"7"}, "Redrive-Expiration": {"60000"}, "Redrive-Timestamp": {"2026-05-04T12:00:00Z"},
		"Redrive-First-Failure": {"2026-05-04T11:59:58.5Z"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestHTTP_SendsOnlyKnownFieldsOfAMessage(t *testing.T) {
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

func TestHTTP_LetsNoMessageOverrideTheRequest(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{
		Body: []byte("body"), ContentType: "text/plain\r\nEvil: a", ID: "a\nb", Attempt: 1, Queue: strings.Repeat("q", 2000),
		ContentEncoding: "utf-8", // Celery's
		Headers: map[string]any{
			"Host": "evil", "content-length": "0", "Transfer-Encoding": "chunked", "Connection": "close", "User-Agent": "evil",
			"Content-Type": "evil", "Content-Encoding": "evil", "Redrive-Attempt": "99", "origin": "gen1@host", "Cookie": "a=b",
		},
	})
	index := got.Get("Redrive-Headers-Index")
	got.Del("Redrive-Headers-Index")
	want := http.Header{
		"Content-Type": {"text/plain  Evil: a"}, "Content-Length": {"4"}, "User-Agent": {"redrive-worker/1.2.3"},
		"Redrive-Message-Id": {"a b"}, "Redrive-Attempt": {"1"}, "Redrive-Retries": {"0"},
		"Redrive-Header-Host": {"evil"}, "Redrive-Header-Content-Length": {"0"}, "Redrive-Header-Transfer-Encoding": {"chunked"},
		"Redrive-Header-Connection": {"close"}, "Redrive-Header-User-Agent": {"evil"}, "Redrive-Header-Content-Type": {"evil"},
		"Redrive-Header-Content-Encoding": {"evil"}, "Redrive-Header-Redrive-Attempt": {"99"}, "Redrive-Header-Origin": {"gen1@host"},
		"Redrive-Header-Cookie": {"a=b"},
	}
	if want := "connection=Connection, content-encoding=Content-Encoding"; !strings.HasPrefix(index, want) {
		t.Errorf("index %q", index)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
