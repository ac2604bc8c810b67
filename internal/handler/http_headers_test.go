package handler_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
)

// carried returns the headers that a server sees of a request for a message with headers.
func carried(t *testing.T, spec *v1alpha1.HTTPHeaders, headers map[string]any) http.Header {
	t.Helper()
	url, last := observed(t)
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: url, Headers: spec}, options())
	if got := h.Handle(t.Context(), handler.Request{Attempt: 1, Headers: headers}); got != nil {
		t.Fatal(show(got))
	}
	return *last.Load()
}

// ofMessage are those of a request's headers that stand for headers of the message.
func ofMessage(header http.Header) map[string]string {
	found := map[string]string{}
	for name, values := range header {
		if rest, ok := strings.CutPrefix(name, "Redrive-Header"); ok {
			found[rest] = strings.Join(values, "|")
		}
	}
	return found
}

func TestHTTP_CarriesHeadersOverUnderAPrefix(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		headers map[string]any
		want    map[string]string
	}{
		"a text":                       {map[string]any{"x-tenant": "acme"}, map[string]string{"-X-Tenant": "acme"}},
		"a name with capitals":         {map[string]any{"X-Tenant": "acme"}, map[string]string{"-X-Tenant": "acme", "s-Index": "x-tenant=X-Tenant"}},
		"a name with an underscore":    {map[string]any{"root_id": "1"}, map[string]string{"-Root-Id": "1", "s-Index": "root-id=root_id"}},
		"a name of another world":      {map[string]any{`X-Größe, 100%=\ `: "1"}, map[string]string{"-X-Gr-E-100-": "1", "s-Index": `x-gr-e-100-=X-Gr%C3%B6%C3%9Fe%2C%20100%25%3D\%20`}},
		"an empty name":                {map[string]any{"": "1"}, map[string]string{"--": "1", "s-Index": "-="}},
		"two dashes":                   {map[string]any{"a--b": "1"}, map[string]string{"-A-B": "1", "s-Index": "a-b=a--b"}},
		"names that differ in case":    {map[string]any{"x-tenant": "a", "X-Tenant": "b", "X_TENANT": "c"}, map[string]string{"-X-Tenant": "a", "-X-Tenant-2": "b", "-X-Tenant-3": "c", "s-Index": "x-tenant-2=X-Tenant, x-tenant-3=X_TENANT"}},
		"a name that looks numbered":   {map[string]any{"a": "1", "A": "2", "a-2": "3"}, map[string]string{"-A": "1", "-A-3": "2", "-A-2": "3", "s-Index": "a-3=A"}},
		"a name of the index":          {map[string]any{"s-index": "1", "headers-index": "2"}, map[string]string{"-S-Index": "1", "-Headers-Index": "2"}},
		"an integer":                   {map[string]any{"n": int32(-7)}, map[string]string{"-N": "-7", "s-Index": "n;int"}},
		"a byte":                       {map[string]any{"n": uint8(7)}, map[string]string{"-N": "7", "s-Index": "n;int"}},
		"a float":                      {map[string]any{"n": float32(0.1)}, map[string]string{"-N": "0.1", "s-Index": "n;float"}},
		"a double":                     {map[string]any{"Half": 1.5}, map[string]string{"-Half": "1.5", "s-Index": "half=Half;float"}},
		"a boolean":                    {map[string]any{"b": true}, map[string]string{"-B": "true", "s-Index": "b;bool"}},
		"nothing":                      {map[string]any{"b": nil}, map[string]string{"-B": "", "s-Index": "b;null"}},
		"an empty text":                {map[string]any{"b": ""}, map[string]string{"-B": ""}},
		"a time":                       {map[string]any{"at": noon}, map[string]string{"-At": "2026-05-04T12:00:00Z", "s-Index": "at;time"}},
		"bytes":                        {map[string]any{"b": []byte("a\xff")}, map[string]string{"-B": "a%FF", "s-Index": "b;bytes"}},
		"text that is not ASCII":       {map[string]any{"a": "é"}, map[string]string{"-A": "%C3%A9"}},
		"text that breaks lines":       {map[string]any{"a": "b\r\nEvil: c"}, map[string]string{"-A": "b%0D%0AEvil: c"}},
		"text with spaces at its ends": {map[string]any{"a": " b c "}, map[string]string{"-A": "%20b c%20"}},
		"text with a percent sign":     {map[string]any{"a": "100%"}, map[string]string{"-A": "100%25"}},
		"a list":                       {map[string]any{"timelimit": []any{nil, int32(1), 2.0}}, map[string]string{"-Timelimit": "[null,1,2.0]", "s-Index": "timelimit;json"}},
		"a table": {
			map[string]any{"t": map[string]any{"é%": "\"é😀", "at": noon, "b": []byte{0xff}, "nan": nan(), "x": "\xff", "in": map[string]any{"$time": "x"}}},
			map[string]string{
				"-T": `{"at":{"$time":"2026-05-04T12:00:00Z"},"b":{"$bytes":"/w=="},"in":{"$table":{"$time":"x"}},"nan":{"$float":"NaN"},` +
					`"x":{"$text":"/w=="},"\u00E9\u0025":"\"\u00E9\uD83D\uDE00"}`, "s-Index": "t;json",
			},
		},
		"what no value says": {
			map[string]any{"ok": "1", "late": time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), "broken": map[string]any{"\xff": "x"}, "odd, name": struct{}{}},
			map[string]string{"-Ok": "1", "s-Omitted": "3; broken, late, odd%2C%20name"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := carried(t, nil, c.headers)
			if got := ofMessage(header); !maps.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			decoded, err := public.DecodeHTTPHeaders(header, public.HTTPHeaderPrefix)
			if omitted, _, _ := public.OmittedHTTPHeaders(header); err != nil || len(decoded)+omitted != len(c.headers) {
				t.Errorf("decoded as %v, %v", decoded, err)
			}
		})
	}
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

func TestHTTP_CarriesHeadersOverUpToItsBounds(t *testing.T) {
	t.Parallel()
	many, large := map[string]any{}, map[string]any{"small": "x"}
	for i := range 100 {
		many[fmt.Sprintf("h-%03d", i)] = "x"
	}
	for i := range 17 {
		large[fmt.Sprintf("Large_%02d", i)] = strings.Repeat("x", 1000)
	}
	for name, c := range map[string]struct {
		headers map[string]any
		carried int
		names   []string
	}{
		"a hundred":             {many, 64, []string{"h-064", "h-065"}},
		"17 KB":                 {large, 8, []string{"Large_07", "Large_08"}},
		"one that is too large": {map[string]any{"a": strings.Repeat("x", 9000), "b": "x"}, 1, []string{"a"}},
		"a name that is no use": {map[string]any{strings.Repeat("%", 255): "x", strings.Repeat("&", 9000): "x"}, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := carried(t, nil, c.headers)
			size := 0
			for name, value := range ofMessage(first) {
				if name != "s-Omitted" {
					size += len("Redrive-Header") + len(name) + len(value)
				}
			}
			if size > 8<<10 {
				t.Errorf("%d bytes", size)
			}
			got, err := public.DecodeHTTPHeaders(first, public.HTTPHeaderPrefix)
			if err != nil || len(got) != c.carried {
				t.Errorf("%d headers, %v; want %d", len(got), err, c.carried)
			}
			omitted, names, err := public.OmittedHTTPHeaders(first)
			if err != nil || omitted != len(c.headers)-c.carried || len(names) < len(c.names) || !slices.Equal(names[:len(c.names)], c.names) {
				t.Errorf("omitted %d, %.200q, %v", omitted, names, err)
			}
			if again := carried(t, nil, c.headers); !maps.EqualFunc(first, again, slices.Equal) {
				t.Error("another attempt has other headers")
			}
		})
	}
}

func TestHTTP_CarriesTheHeadersThatTheTransportNames(t *testing.T) {
	t.Parallel()
	headers := map[string]any{"x-tenant": "acme", "X-Tenant": "Acme", "app-a": "1", "app-b": int32(2), "origin": "gen1@host", "spare": "x"}
	cases := map[string]struct {
		spec v1alpha1.HTTPHeaders
		want map[string]string
	}{
		"by name, case included": {v1alpha1.HTTPHeaders{Allow: []string{"X-Tenant"}}, map[string]string{
			"Redrive-Header-X-Tenant": "Acme", "Redrive-Headers-Index": "x-tenant=X-Tenant",
		}},
		"by how they begin": {v1alpha1.HTTPHeaders{Allow: []string{"app-*", "nobody"}}, map[string]string{
			"Redrive-Header-App-A": "1", "Redrive-Header-App-B": "2", "Redrive-Headers-Index": "app-b;int",
		}},
		"with another prefix": {v1alpha1.HTTPHeaders{Allow: []string{"x-tenant", "origin"}, Prefix: new("msg-")}, map[string]string{
			"Msg-X-Tenant": "acme", "Msg-Origin": "gen1@host",
		}},
		"without a prefix": {v1alpha1.HTTPHeaders{Allow: []string{"x-tenant", "app-b", "origin"}, Prefix: new("None")}, map[string]string{
			"X-Tenant": "acme", "App-B": "2", "Redrive-Headers-Index": "app-b;int, x-tenant", "Redrive-Headers-Omitted": "1; origin",
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := carried(t, &c.spec, headers)
			got := map[string]string{}
			for name, values := range header {
				if !slices.Contains([]string{"Content-Length", "Content-Type", "User-Agent", "Redrive-Attempt", "Redrive-Retries"}, name) {
					got[name] = strings.Join(values, "|")
				}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			prefix := "Redrive-Header-"
			if c.spec.Prefix != nil {
				prefix = strings.TrimSuffix(*c.spec.Prefix, "None")
			}
			decoded, err := public.DecodeHTTPHeaders(header, prefix)
			for name, value := range decoded {
				if fmt.Sprint(value) != fmt.Sprint(headers[name]) {
					t.Errorf("%s is decoded as %v", name, value)
				}
			}
			if err != nil || len(decoded) == 0 {
				t.Errorf("decoded as %v, %v", decoded, err)
			}
		})
	}
}

// TestHTTP_CarriesNoHeaderAboutTheRequest leaves names without a prefix, or with one that makes such a name of another.
func TestHTTP_CarriesNoHeaderAboutTheRequest(t *testing.T) {
	t.Parallel()
	names := []string{
		"Authorization", "cookie", "proxy_authorization", "Proxy", "X-Forwarded-For", "x.forwarded.for", "X-HTTP-Method-Override", "X-Original-URL", "X_Rewrite_Url",
		"True-Client-IP", "redrive-shadow", "Redrive_Attempt", "Redrive-Header-X", "Redrive-Headers-Index", "Trailer", "expect", "Accept-Encoding", "accept",
		"x-idempotency-key", "idempotency_key", "Upgrade", "TE", "HTTP2-Settings", "Forwarded", "Keep-Alive", "Connection", "Host", "content-length",
		"Transfer-Encoding", "Origin", "Date", "Range", "If-Match", "if-none-match", "Via", "Referer", "Sec-Fetch-Site", "User-Agent", "X-Requested-With",
		"content-type", "Content-Encoding", "Content-Range", "Access-Control-Request-Method", "X-Real-IP", "cache-control",
	}
	headers := map[string]any{"fine": "x"}
	for _, name := range names {
		headers[name] = "evil"
	}
	for prefix, spec := range map[string]v1alpha1.HTTPHeaders{
		"None": {Allow: []string{"*"}, Prefix: new("None")},
		"X-":   {Allow: []string{"forwarded-for", "real-ip", "fine"}, Prefix: new("X-")},
	} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			own := maps.Clone(headers)
			own["forwarded-for"], own["real-ip"] = "evil", "evil"
			for name, values := range carried(t, &spec, own) {
				if evil := strings.Contains(strings.Join(values, ""), "evil"); evil && name != "Forwarded-For" && name != "Real-Ip" {
					t.Errorf("%s: %q", name, values)
				}
			}
		})
	}
}

func TestNewHTTP_RefusesABadPrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "a b-", "x", "é-", "none"} {
		if _, err := handler.NewHTTP(v1alpha1.HTTPHandler{URL: "http://a/", Headers: &v1alpha1.HTTPHeaders{Prefix: &prefix}}, options()); err == nil {
			t.Errorf("%q is taken", prefix)
		}
	}
}
