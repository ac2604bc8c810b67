package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
)

// tapPath begins no path of RabbitMQ's management API.
const tapPath = "/tap/requests"

// tap passes requests on to the management API, and keeps their methods and paths: nothing secret.
type tap struct {
	proxy *httputil.ReverseProxy

	mu       sync.Mutex
	requests []string
}

func newTap(to string) (http.Handler, error) {
	target, err := url.Parse(to)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of a management API", to)
	}
	t := &tap{proxy: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+tapPath, t.show)
	mux.HandleFunc("/", t.pass)
	return mux, nil
}

// pass notes a request before it is answered: whoever sees the answer finds it here.
func (t *tap) pass(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	t.requests = append(t.requests, r.Method+" "+r.URL.EscapedPath())
	t.mu.Unlock()
	t.proxy.ServeHTTP(w, r)
}

func (t *tap) show(w http.ResponseWriter, _ *http.Request) {
	t.mu.Lock()
	requests := slices.Clone(t.requests)
	t.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(requests) //nolint:errchkjson // a reader that went away asks again
}
