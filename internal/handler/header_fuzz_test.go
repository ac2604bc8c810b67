package handler

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"redrive.dev/redrive/api/v1alpha1"
)

// FuzzHeadersOfMessages expects a valid request that says of the message what Redrive knows, whatever is in the message.
func FuzzHeadersOfMessages(f *testing.F) {
	f.Add("Partner", "acme", "cloudEvents:type", "order", "id-1", "async")
	f.Add("X_Api_Key", "forged", "ce-id", "forged", "a\r\nb", "a/b c%")
	f.Add("cloudEvents_id", "é \"%\x00", "cloudEvents:id", "\xff", "", "")
	f.Add("Redrive_Queue", "forged", "content-LENGTH", "7", "é", "ex")
	f.Add("Authorization", "forged", "a b", "\n", "i", "e")
	f.Fuzz(func(t *testing.T, name, value, attribute, text, id, exchange string) {
		secret, err := newSecretHeaders(map[string]string{"X-Api-Key": "s3cret"}, true)
		if err != nil {
			t.Fatal(err)
		}
		format := v1alpha1.HTTPFormatCloudEvents
		h, err := NewHTTP(v1alpha1.HTTPHandler{URL: "http://handler.test/", Format: &format}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		request := Request{
			ID: id, Exchange: exchange, Queue: "work", Attempt: 1, IdempotencyKey: "key",
			Headers: map[string]any{name: value, attribute: text},
		}
		c := &wireConn{}
		c.compose(h, &link{headers: secret}, request)
		first := string(c.out)
		c.compose(h, &link{headers: secret}, request)
		if first != string(c.out) {
			t.Error("the headers are other ones the second time")
		}
		got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(first)))
		if err != nil || got.Method != http.MethodPost || got.Host != "handler.test" || got.ContentLength != 0 {
			t.Fatalf("%q: %v", first, err)
		}
		var fields fields
		h.describe(&fields, request, secret)
		header := fields.header()
		if len(header) != len(fields.list) || len(got.Header) != len(header)+1 { // Content-Length
			t.Errorf("got %v, want %v", got.Header, fields.list)
		}
		for name, values := range header {
			if !httpguts.ValidHeaderFieldName(name) || len(values) != 1 || !httpguts.ValidHeaderFieldValue(values[0]) {
				t.Errorf("%q: %q", name, values)
			}
			if plain := plainName(name); plain == "x-api-key" && values[0] != "s3cret" || plain == "authorization" || plain == "content-length" {
				t.Errorf("%q: %q", name, values)
			}
		}
		if header.Get("Redrive-Queue") != "work" || header.Get("Redrive-Attempt") != "1" || header.Get("Redrive-Idempotency-Key") != "key" {
			t.Errorf("got %v", header)
		}
		checkEvent(t, header, name, attribute)
	})
}

// checkEvent expects the attributes that each event needs, in an encoding that can be undone.
func checkEvent(t *testing.T, header http.Header, names ...string) {
	t.Helper()
	own := map[string]bool{}
	for _, name := range names {
		if attribute, ok := attributeOf(name); ok {
			own[attribute] = true
		}
	}
	for name, values := range header {
		if !strings.HasPrefix(name, "Ce-") {
			continue
		}
		if text, err := url.PathUnescape(values[0]); err != nil || eventText(text) != values[0] {
			t.Errorf("%s: %q is not encoded well: %v", name, values[0], err)
		}
		if strings.ContainsAny(values[0], " \"") || values[0] == "" {
			t.Errorf("%s: %q", name, values[0])
		}
	}
	for _, name := range []string{"Ce-Specversion", "Ce-Source", "Ce-Type"} {
		if header[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	if !own["Ce-Specversion"] && header["Ce-Specversion"][0] != "1.0" {
		t.Errorf("specversion %q", header["Ce-Specversion"])
	}
}
