package handler_test

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/handler"
)

func TestDecodeHTTPHeaders_DecodesHeadersOfAMessage(t *testing.T) {
	t.Parallel()
	header := http.Header{
		"Host": {"a"}, "Redrive-Attempt": {"1"}, "redrive-header-tenant": {"acme"}, "Redrive-Header-X-Tenant": {"10 %25"},
		"REDRIVE-HEADER-TRIES": {"7"}, "Redrive-Header-At": {"2026-05-04T12:00:00Z"}, "Redrive-Header-Half": {"0.5"},
		"Redrive-Header-Yes": {"true"}, "Redrive-Header-None": {""}, "Redrive-Header-Raw": {"a%FF"},
		"Redrive-Header-List":   {`[1,2.0,"x",null,{"$time":"2026-05-04T12:00:00Z"},{"$bytes":"/w=="},{"$text":"/w=="},{"$table":{"$x":1}},{"a":1,"$b":2}]`},
		"Redrive-Headers-Index": {"x-tenant=X-%54enant, tries;int, at;time, half;float, yes;bool, none;null, raw=RAW;bytes, list;json, gone;int"},
	}
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	want := map[string]any{
		"tenant": "acme", "X-Tenant": "10 %", "tries": int64(7), "at": noon, "half": 0.5, "yes": true, "none": nil, "RAW": []byte("a\xff"),
		"list": []any{
			int64(1), 2.0, "x", nil, noon, []byte{0xff}, "\xff", map[string]any{"$x": int64(1)}, map[string]any{"a": int64(1), "$b": int64(2)},
		},
	}
	got, err := handler.DecodeHTTPHeaders(header, handler.HTTPHeaderPrefix)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %#v\nwant %#v", err, got, want)
	}
	bare := http.Header{"Tenant": {"acme"}, "Host": {"a"}, "Redrive-Headers-Index": {"tenant"}}
	if got, err := handler.DecodeHTTPHeaders(bare, ""); err != nil || !reflect.DeepEqual(got, map[string]any{"tenant": "acme"}) {
		t.Errorf("without a prefix: %v, %v", got, err)
	}
}

func TestDecodeHTTPHeaders_RefusesHeadersThatNoWorkerWrote(t *testing.T) {
	t.Parallel()
	for value, kind := range map[string]string{
		"%": "", "%4": "", "%zz": "", "%+1": "", "x": "int", "1.5": "int", "y": "float", "maybe": "bool", "noon": "time", "{": "json", "[1] 2": "json",
		`{"$what":"x"}`: "json", `{"$time":1}`: "json", `{"$bytes":"?"}`: "json", `[99999999999999999999]`: "json", "a": "secret", `{"$table":7}`: "json",
	} {
		header := http.Header{"Redrive-Header-A": {value}, "Redrive-Headers-Index": {"a;" + kind}}
		got, err := handler.DecodeHTTPHeaders(header, handler.HTTPHeaderPrefix)
		if err == nil || !strings.Contains(err.Error(), "Redrive-Header-A") || strings.Contains(err.Error(), "99999") {
			t.Errorf("%s as %s: %v, %v", value, kind, got, err)
		}
	}
	if _, err := handler.DecodeHTTPHeaders(http.Header{"Redrive-Headers-Index": {"a=%"}}, ""); err == nil {
		t.Error("a broken index is no error")
	}
}

func TestOmittedHTTPHeaders_TellsWhatARequestOmits(t *testing.T) {
	t.Parallel()
	count, names, err := handler.OmittedHTTPHeaders(http.Header{"Redrive-Headers-Omitted": {"3; big, odd%2C%20name"}})
	if err != nil || count != 3 || !slices.Equal(names, []string{"big", "odd, name"}) {
		t.Errorf("%d, %q, %v", count, names, err)
	}
	if count, names, err := handler.OmittedHTTPHeaders(http.Header{}); err != nil || count != 0 || names != nil {
		t.Errorf("%d, %q, %v", count, names, err)
	}
	for _, text := range []string{"x", "-1", "0", "1; %"} {
		if _, _, err := handler.OmittedHTTPHeaders(http.Header{"redrive-headers-omitted": {text}}); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}
