package handler_test

import (
	"fmt"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/manifest"
)

// What one admits and the other refuses would be a Transport without workers, or one that nobody may write.
func TestHTTP_TakesTheURLsThatTheSchemaAdmits(t *testing.T) {
	t.Parallel()
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	// A fragment is sent to nobody, and so many digits are written by nobody.
	stricter := map[string]bool{"http://h#f": true, "http://h#@": true, "http://h:00000000000080/": true}
	taken := 0
	for _, url := range []string{
		"http://h", "http://h:", "http://h:/", "http://:80", "http://[::1]", "http://[::1]:80/", "http://[]/", "http://[::1%25eth0]/", "http://[::1%eth0]",
		"http://[::1", "http://::1/", "http://1.2.3.4:80:80/", "http://h/%zz", "http://h/%41", "http://h/a b", "http://h /", "http://h?x=%zz", "http://h?",
		"http://h?a b", "http://h#f", "http://h/#f", "HTTP://H", "hTTps://h:443/", "http:///x", "http:h", "http:/h", "http:", "http://", "//h/", "/h", "*", ".",
		"http://h:0", "http://h:1", "http://h:65535", "http://h:65536", "http://h:080/", "http://h:+80", "http://h:-1/", "http://h:８０/", "http://h:1e2/",
		"http://h:00000000000080/", "http://ü/", "http://h/ü", "http://a_b/", "http://a..b/", "http://%41/", "http://h%zz/", "http://user@h", "http://@h/", "http://:@h/",
		"http://h/@", "http://h?@", "http://h#@", "http://a@b@c/", `http://h\@x/`, "http://h\t/", "http://h/\t", "http://\"h\"/", "http://h/\"", "http://h/\x7f",
		"http://h/\n", "\nhttp://h/", " http://h/", "http://h/ ", "ftp://h/", "unix:///run/h", "http://h/" + strings.Repeat("a", 2000),
	} {
		spec := fmt.Sprintf(`{apiVersion: redrive.dev/v1alpha1, kind: Transport, metadata: {name: a}, spec: {broker: {secretRef: {name: b}}, `+
			`exchange: {name: e, type: Fanout}, queues: [{name: q}], workers: [{name: w, handler: {http: {url: %q, readinessURL: %q}}}]}}`, url, url)
		_, schema := loader.Load(t.Context(), strings.NewReader(spec), manifest.Stdin)
		h, refusal := handler.NewHTTP(v1alpha1.HTTPHandler{URL: url, ReadinessURL: &url}, options())
		if refusal == nil {
			taken++
			_ = h.Close()
		}
		if takes := refusal == nil; (schema == nil) != (takes && !stricter[url]) {
			t.Errorf("%q: the schema says %v, the handler %v", url, schema, refusal)
		}
	}
	if taken < 10 {
		t.Errorf("only %d are taken at all", taken)
	}
}
