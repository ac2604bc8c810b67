package testbroker

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
)

// Import makes a vhost as it is on another broker, with the parameters of all its cluster, as somebody does who moves or restores a broker
// by its definitions.
func (b *Broker) Import(t testing.TB, other *Broker, vhost string) {
	t.Helper()
	b.MakeVhost(t, vhost)
	var whole map[string]json.RawMessage
	read := func(path string, into any) {
		t.Helper()
		text, err := other.ask(context.Background(), http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	read("/api/definitions", &whole)
	b.must(t, http.MethodPost, "/api/definitions", map[string]json.RawMessage{"global_parameters": whole["global_parameters"]})
	var objects json.RawMessage
	path := "/api/definitions/" + url.PathEscape(vhost)
	read(path, &objects)
	b.must(t, http.MethodPost, path, objects)
}
