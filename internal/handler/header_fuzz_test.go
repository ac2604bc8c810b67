package handler

import (
	"bufio"
	"maps"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
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

// FuzzEncodedHeaders expects that whatever a request carries of a message's headers is decoded as it was, and that the rest is counted.
func FuzzEncodedHeaders(f *testing.F) {
	f.Add("X-Tenant", "x-tenant", "acme", int64(7), 0.5, []byte("\xff"))
	f.Add("", "-", " 100% é\r\n\x00", int64(math.MinInt64), math.Inf(-1), []byte{})
	f.Add("root_id", "root-id", "\xff\xfe", int64(math.MaxInt64), math.Copysign(0, -1), []byte("plain"))
	f.Add("a-2", "A", "$time", int64(-62135596800), 1e300, []byte("{}"))
	f.Add(`a=b;c,d"e`, "é", strings.Repeat("long", 3000), int64(253402300800), 2.0, []byte("\x80"))
	f.Fuzz(func(t *testing.T, name, other, text string, number int64, float float64, data []byte) {
		headers := map[string]any{
			name: text, other: number, strings.ToUpper(name): float, other + name: data, "at": time.Unix(number, 0), "null": nil, "yes": number%2 == 0,
			name + "_t": map[string]any{text: float, "$" + name: []any{text, number, data, nil, true, time.Unix(number, 0), map[string]any{"$text": text}}},
			"one":       map[string]any{text: number},
		}
		for _, prefix := range []string{public.HTTPHeaderPrefix, "X-Shop-", ""} {
			var list fields
			c := carrier{fields: &list, headerRules: headerRules{prefix: prefix, all: true}, own: headers}
			c.carryAll()
			if len(list.list) > maxCarriedHeaders+2 {
				t.Errorf("%d headers", len(list.list))
			}
			got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(requestOf(list))))
			if err != nil {
				t.Fatalf("%q: %v", list.list, err)
			}
			if len(got.Header) != len(list.list) {
				t.Errorf("sent %q, arrived %q", list.list, got.Header)
			}
			lower := map[string][]string{} // as Node has them
			for name, values := range got.Header {
				lower[strings.ToLower(name)] = values
			}
			decoded, err := public.DecodeHTTPHeaders(lower, prefix)
			if err != nil {
				t.Fatalf("%q: %v", list.list, err)
			}
			omitted, _, err := public.OmittedHTTPHeaders(lower)
			if err != nil || len(decoded)+omitted != len(headers) {
				t.Errorf("%d decoded and %d omitted of %d, %v", len(decoded), omitted, len(headers), err)
			}
			for name, value := range decoded {
				if want := headers[name]; !equalHeaders(value, want) {
					t.Errorf("%q: got %#v, want %#v", name, value, want)
				}
			}
		}
	})
}

func requestOf(list fields) string {
	var text strings.Builder
	text.WriteString("POST / HTTP/1.1\r\nHost: handler.test\r\n")
	for _, f := range list.list {
		text.WriteString(f.name + ": " + f.value + "\r\n")
	}
	text.WriteString("\r\n")
	return text.String()
}

// equalHeaders compares values, of which a number may be none, and a time is a moment.
func equalHeaders(got, want any) bool {
	switch want := want.(type) {
	case float64:
		got, ok := got.(float64)
		return ok && math.Float64bits(got) == math.Float64bits(want) || ok && math.IsNaN(got) && math.IsNaN(want)
	case time.Time:
		got, ok := got.(time.Time)
		return ok && got.Equal(want)
	case []any:
		got, ok := got.([]any)
		return ok && slices.EqualFunc(got, want, equalHeaders)
	case map[string]any:
		got, ok := got.(map[string]any)
		return ok && maps.EqualFunc(got, want, equalHeaders)
	}
	return reflect.DeepEqual(got, want)
}
