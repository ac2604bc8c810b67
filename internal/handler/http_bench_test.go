package handler_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

// The benchmarks compare attempts with a bare client that posts the same body: ns/op and allocs/op are those of the client
// alone, for the server does next to nothing.

// answerer is a server that looks for no more than where a request ends.
func answerer(b *testing.B) (url string) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serveBlindly(c)
		}
	}()
	return "http://" + listener.Addr().String()
}

func serveBlindly(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReaderSize(c, 64<<10)
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if value, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		}
		if len(line) > 2 {
			continue
		}
		if _, err := in.Discard(length); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// inParallel calls f as often as the benchmark wants, by a number of goroutines.
func inParallel(b *testing.B, number int, f func()) {
	b.Helper()
	b.ReportAllocs()
	left := make(chan struct{}, number)
	var calls sync.WaitGroup
	for range number {
		calls.Go(func() {
			for range left {
				f()
			}
		})
	}
	for b.Loop() {
		left <- struct{}{}
	}
	close(left)
	calls.Wait()
}

func BenchmarkAttempt(b *testing.B) {
	request := handler.Request{
		Body: []byte(`{"order":1}`), ContentType: "application/json", ID: "0197d4c5-3a4f-7b1e-9d55-0d6f6d1d2c3b",
		IdempotencyKey: "5f4dcc3b5aa765d61d8327deb882cf99", Attempt: 1, Queue: "work", Exchange: "async", RoutingKey: "order.created",
		Type: "order", Headers: map[string]any{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "type": "order"},
	}
	for _, concurrency := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(concurrency), func(b *testing.B) {
			o := options()
			o.Concurrency = concurrency
			h := open(b, handler.NewHTTP, v1alpha1.HTTPHandler{URL: answerer(b)}, o)
			inParallel(b, concurrency, func() {
				if got := h.Handle(b.Context(), request); got != nil {
					b.Error(show(got))
				}
			})
		})
	}
}

func BenchmarkBareClient(b *testing.B) {
	for _, concurrency := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(concurrency), func(b *testing.B) {
			url := answerer(b)
			transport := &http.Transport{MaxIdleConnsPerHost: concurrency}
			b.Cleanup(transport.CloseIdleConnections)
			client := &http.Client{Transport: transport}
			inParallel(b, concurrency, func() {
				response, err := client.Post(url, "application/json", strings.NewReader(`{"order":1}`))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			})
		})
	}
}
