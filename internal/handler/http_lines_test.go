package handler_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
)

// speakLines returns a handler for a server of HTTP/1.1 over TLS that writes an answer to each request, and the number of its connections.
func speakLines(t *testing.T, answer func(to io.Writer)) (h *handler.HTTP, connections *atomic.Int64) {
	t.Helper()
	authority := testcert.NewAuthority(t, "lines")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	connections = &atomic.Int64{}
	address := listen(t, func(c net.Conn) {
		connections.Add(1)
		conn := tls.Server(c, config)
		defer func() { _ = conn.Close() }()
		for in := bufio.NewReader(conn); ; {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			answer(conn)
		}
	})
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(authority.PEM)})
	return open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "https://" + address, TLS: &v1alpha1.HTTPTLS{}}, o), connections
}

// manyLines are headers of five bytes each.
func manyLines(n int) string {
	var all strings.Builder
	for i := range n {
		_, _ = fmt.Fprintf(&all, "%c%c%c:\n", 'a'+i/26/26%26, 'a'+i/26%26, 'a'+i%26)
	}
	return all.String()
}

// Over TLS, headers of 16 kB in short lines took 250 KiB of the worker for as long as a server held back their end: 1,000 attempts at a time had
// a worker of 256 MiB killed.
func TestHTTP_CountsLinesOfHeadersAsTheyComeOverTLS(t *testing.T) {
	t.Parallel()
	h, _ := speakLines(t, func(to io.Writer) { _, _ = io.WriteString(to, "HTTP/1.1 503 X\r\n"+manyLines(3000)) })
	if got := attempt(t, h, 30*time.Second, "body"); got == nil || got.Class != handler.ClassMalformedResponse {
		t.Errorf("got %s", show(got))
	}
}

func TestHTTP_CountsLinesOfHeadersForEachAnswer(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("\n", 5000)
	answer := fmt.Sprintf("HTTP/1.1 103 Early\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s", len(body), manyLines(400), body)
	h, connections := speakLines(t, func(to io.Writer) { _, _ = io.WriteString(to, answer) })
	for range 5 {
		if got := attempt(t, h, 30*time.Second, strings.Repeat("x", 100_000)); got != nil {
			t.Errorf("got %s", show(got))
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want one that is kept", n)
	}
}

// A connection waits for the next answer in a read that began before its request: the body of each second answer was taken for headers, and messages
// that were handled came into the failure queue.
func TestHTTP_TakesNoBodyForHeadersOnAKeptConnection(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("  \"a line\",\n", 2000)
	answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	h, connections := speakLines(t, func(to io.Writer) { _, _ = io.WriteString(to, answer) })
	for range 6 {
		if got := attempt(t, h, 30*time.Second, "x"); got != nil {
			t.Errorf("got %s", show(got))
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want one that is kept", n)
	}
}

func TestHTTP_CountsLinesOfHeadersHoweverTheyAreSent(t *testing.T) {
	t.Parallel()
	for name, head := range map[string][2]string{
		"in pieces":                     {"HTTP/1.1 503 X\r", "\n"},
		"after an informational answer": {"HTTP/1.1  103 X\r\n", "\r\nHTTP/1.1 503 X\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := atomic.Int64{}
			h, _ := speakLines(t, func(to io.Writer) {
				if answers.Add(1) == 1 { // the connection is kept
					_, _ = io.WriteString(to, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					return
				}
				_, _ = io.WriteString(to, head[0])
				_, _ = io.WriteString(to, head[1]+manyLines(3000))
			})
			if got := attempt(t, h, 30*time.Second, "body"); got != nil {
				t.Fatalf("got %s", show(got))
			}
			if got := attempt(t, h, 30*time.Second, "body"); got == nil || got.Class != handler.ClassMalformedResponse {
				t.Errorf("got %s", show(got))
			}
		})
	}
}

// Go keeps 256 KiB of a server's certificates until their end comes: of 1,000 attempts at a time more than a worker of 256 MiB has.
func TestHTTP_BoundsATLSHandshake(t *testing.T) {
	t.Parallel()
	record := func(data []byte) []byte {
		return append([]byte{22, 3, 3, byte(len(data) >> 8), byte(len(data))}, data...)
	}
	hello := append([]byte{3, 3}, make([]byte, 32)...) // of TLS 1.2, with any random
	hello = append(hello, 0, 0xc0, 0x2f, 0)            // no session, a suite of cipher, no compression
	sent := record(append([]byte{2, 0, 0, byte(len(hello))}, hello...))
	sent = append(sent, record(append([]byte{11, 3, 255, 255}, make([]byte, 10_000)...))...) // the first of 256 KiB of certificates
	for range 10 {
		sent = append(sent, record(make([]byte, 10_000))...)
	}
	h := post(t, "https://"+listen(t, func(c net.Conn) {
		_, _ = c.Write(sent)
		_, _ = io.Copy(io.Discard, c)
	}))
	got := attempt(t, h, 30*time.Second, "body")
	if got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassTLS || !strings.Contains(got.Message, "32 KiB") {
		t.Errorf("got %s", show(got))
	}
}
