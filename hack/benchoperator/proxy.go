package main

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// proxy stands before the management API and counts what is asked of it.
type proxy struct {
	url    string
	server *http.Server

	mu     sync.Mutex
	counts counts
}

// counts are requests by method and kind, such as "PUT queues".
type counts map[string]int

// listing is the kind of what a snapshot reads once: all queues of a vhost.
const listing = http.MethodGet + " queues of a vhost"

func startProxy(target *url.URL) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a local port
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy: %w", err)
	}
	p := &proxy{url: "http://" + listener.Addr().String(), counts: counts{}}
	forward := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute},
	}
	p.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.count(r)
		forward.ServeHTTP(w, r)
	})}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

func (p *proxy) count(r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/api/"), "/")
	kind := r.Method + " " + parts[0]
	if kind == "GET queues" && len(parts) == 2 {
		kind = listing
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
}

// seen are the counts so far.
func (p *proxy) seen() counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// since are the counts without those before.
func (c counts) since(before counts) counts {
	now := counts{}
	for kind, n := range c {
		if n -= before[kind]; n > 0 {
			now[kind] = n
		}
	}
	return now
}

// writes are all that is no read.
func (c counts) writes() int {
	n := 0
	for kind, count := range c {
		if !strings.HasPrefix(kind, http.MethodGet+" ") {
			n += count
		}
	}
	return n
}
