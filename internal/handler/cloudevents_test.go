package handler_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

// sentEvent returns the attributes of an event as the server sees them, and all headers.
func sentEvent(t *testing.T, request handler.Request) (attributes map[string]string, header http.Header) {
	t.Helper()
	url, last := observed(t)
	format := v1alpha1.HTTPFormatCloudEvents
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: url, Format: &format}, options())
	if got := h.Handle(t.Context(), request); got != nil {
		t.Fatal(show(got))
	}
	header = *last.Load()
	attributes = map[string]string{}
	for name, values := range header {
		if attribute, ok := strings.CutPrefix(strings.ToLower(name), "ce-"); ok {
			attributes[attribute] = strings.Join(values, "|")
		}
	}
	return attributes, header
}

func TestCloudEvents_MakeAMessageAnEventInBinaryMode(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	cases := map[string]struct {
		request handler.Request
		want    map[string]string
	}{
		"all that is known about a message": {
			handler.Request{ID: "id-1", Exchange: "async", RoutingKey: "order.created", Type: "order", Queue: "work", Timestamp: noon},
			map[string]string{
				"specversion": "1.0", "id": "id-1", "source": "/exchanges/async", "type": "order", "subject": "order.created", "time": "2026-05-04T12:00:00Z",
			},
		},
		"a message without a type has that of its routing key": {
			handler.Request{ID: "id-1", Exchange: "async", RoutingKey: "order.created", Queue: "work"},
			map[string]string{"specversion": "1.0", "id": "id-1", "source": "/exchanges/async", "type": "order.created", "subject": "order.created"},
		},
		"one without a routing key that of its queue": {
			handler.Request{ID: "id-1", Exchange: "a/b c", Queue: "work"},
			map[string]string{"specversion": "1.0", "id": "id-1", "source": "/exchanges/a%252Fb%2520c", "type": "work"},
		},
		"the default exchange is told by the queue": {
			handler.Request{ID: "id-1", RoutingKey: "wörk", Queue: "wörk", Type: `App\Message\"Order" 100%`},
			map[string]string{
				"specversion": "1.0", "id": "id-1", "source": "/queues/w%25C3%25B6rk", "type": `App\Message\%22Order%22%20100%25`, "subject": "w%C3%B6rk",
			},
		},
		"the message's own attributes win and others go with them": {
			handler.Request{ID: "id-1", Exchange: "async", RoutingKey: "k", Type: "order", Queue: "work", Timestamp: noon, Headers: map[string]any{
				"cloudEvents:id": "own", "cloudEvents:source": "https://shop.example/orders", "cloudEvents_type": "com.example.order",
				"cloudEvents_subject": "€ 5", "cloudEvents:time": noon.AddDate(0, 0, 1), "cloudEvents:specversion": "1.0",
				"cloudEvents:sequence": int32(7), "cloudEvents_final": true, "cloudEvents:sha": []byte{0xff, 0x00},
			}},
			map[string]string{
				"specversion": "1.0", "id": "own", "source": "https://shop.example/orders", "type": "com.example.order", "subject": "%E2%82%AC%205",
				"time": "2026-05-05T12:00:00Z", "sequence": "7", "final": "true", "sha": "/wA=",
			},
		},
		"of two spellings the one with the colon counts": {
			handler.Request{ID: "id-1", Queue: "work", Headers: map[string]any{"cloudEvents_type": "underscore", "cloudEvents:type": "colon"}},
			map[string]string{"specversion": "1.0", "id": "id-1", "source": "/queues/work", "type": "colon"},
		},
		"what is no attribute stays behind, and what is empty or too long": {
			handler.Request{ID: "id-1", Queue: "work", Headers: map[string]any{
				"cloudEvents:Upper": "x", "cloudEvents_a-b": "x", "cloudEvents:": "x", "cloudEvents:data": "x", "cloudEvents:list": []any{"x"},
				"cloudEvents:type": "", "cloudEvents:id": long, "ce-source": "forged", "ce_type": "forged", "CE-EXTRA": "forged",
			}},
			map[string]string{"specversion": "1.0", "id": "id-1", "source": "/queues/work", "type": "work"},
		},
		"control characters and broken text are encoded": {
			handler.Request{ID: "a\r\nb\x00\xff\x7f", Queue: "work"},
			map[string]string{"specversion": "1.0", "id": "a%0D%0Ab%00%EF%BF%BD%7F", "source": "/queues/work", "type": "work"},
		},
		"an event in structured mode needs none": {
			handler.Request{ID: "id-1", Queue: "work", ContentType: " Application/CloudEvents+json; charset=utf-8", Headers: map[string]any{
				"cloudEvents_a": "x", "cloudEvents:type": "forged", "ce-id": "forged",
			}},
			map[string]string{},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.request.Attempt = 2
			for range 3 { // maps have no order, events have
				got, header := sentEvent(t, c.request)
				if !reflect.DeepEqual(got, c.want) {
					t.Errorf("got  %v\nwant %v", got, c.want)
				}
				if header.Get("Redrive-Attempt") != "2" || header.Get("Redrive-Queue") == "" {
					t.Errorf("Redrive's own headers: %v", header)
				}
				for name, values := range header {
					if attribute := strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Cloudevents"); attribute && strings.Contains(values[0], "forged") {
						t.Errorf("%s: %q is carried over", name, values)
					}
				}
			}
		})
	}
}

func TestCloudEvents_TellTheTypeOfDataAsContentType(t *testing.T) {
	t.Parallel()
	own := map[string]any{"cloudEvents:datacontenttype": "text/xml"}
	for name, c := range map[string]struct {
		request handler.Request
		want    string
	}{
		"the property":               {handler.Request{ContentType: "application/json", Headers: own}, "application/json"},
		"the attribute, without one": {handler.Request{Headers: own}, "text/xml"},
		"neither":                    {handler.Request{}, "application/octet-stream"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.request.ID, c.request.Queue = "id", "work"
			attributes, header := sentEvent(t, c.request)
			if got := header.Get("Content-Type"); got != c.want || attributes["datacontenttype"] != "" {
				t.Errorf("got %q, attributes %v", got, attributes)
			}
		})
	}
}

func TestHTTP_KeepsAttributesOfARawMessageAsTheyAre(t *testing.T) {
	t.Parallel()
	got := sent(t, handler.Request{Headers: map[string]any{"ce-type": "a b", "cloudEvents_id": "1", "cloudEvents:id": "2"}})
	if got.Get("Redrive-Header-Ce-Type") != "a b" || got.Get("Redrive-Header-Cloudevents-Id") != "2" || got.Get("Ce-Id") != "" {
		t.Errorf("got %v", got)
	}
}

func TestCloudEvents_KeepTheBodyAsItIs(t *testing.T) {
	t.Parallel()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) }))
	t.Cleanup(server.Close)
	format := v1alpha1.HTTPFormatCloudEvents
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: server.URL, Format: &format}, options())
	if got := attempt(t, h, 10*time.Second, `{"order": 1}`); got != nil || string(body) != `{"order": 1}` {
		t.Errorf("got %s and %q", show(got), body)
	}
}
