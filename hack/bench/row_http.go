package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
)

// post compares with a program that posts each message with Go's client in as many goroutines, over connections that stay, as much
// prefetched as the worker has.
func post(concurrency int) func(ctx context.Context, b *bench) ([]result, error) {
	return func(ctx context.Context, b *bench) (_ []result, err error) {
		server, err := serve()
		if err != nil {
			return nil, err
		}
		defer func() { _ = server.Close() }()
		spec := v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: server.url}}
		scene := play{concurrency: int32(concurrency), handler: spec} //nolint:gosec // a handful
		return versus(ctx, b, &contest{
			name: fmt.Sprintf("http: no-op on loopback, concurrency %d", concurrency), messages: b.messages / 4,
			bare: side{play: scene, run: bare(2*concurrency, concurrency, barePost(server.url, concurrency))},
			ours: side{play: scene, run: ours(nil)},
		}, 0.85)
	}
}

// partner is the service that the messages are for.
type partner struct {
	*http.Server

	url string

	mu sync.Mutex
	// left is how many requests are expected, and done is closed when they have come.
	left int
	done chan struct{}
}

// expect has done closed after so many requests.
func (p *partner) expect(requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.done = requests, make(chan struct{})
}

func (p *partner) came() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left--; p.left == 0 {
		close(p.done)
	}
}

// serve answers every request with 204.
func serve() (*partner, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &partner{url: "http://" + listener.Addr().String() + "/"}
	p.Server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		p.came()
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = p.Serve(listener) }()
	return p, nil
}

func barePost(url string, concurrency int) func() (bareHandler, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: concurrency, MaxIdleConnsPerHost: concurrency}}
	return alike(func(d *amqp091.Delivery) error {
		response, err := client.Post(url, d.ContentType, bytes.NewReader(d.Body)) //nolint:noctx // as simple as it gets
		if err != nil {
			return fmt.Errorf("post: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode > 299 {
			return fmt.Errorf("post: %s, %w", response.Status, err)
		}
		return nil
	})
}
