// Command net-http-protocol-error posts one request to a server of HTTP/2 that reads each request whole and resets its stream, and counts how
// often the request arrives.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// patience is the time that the client gives its request.
const patience = 2 * time.Second

func main() {
	for _, code := range []http2.ErrCode{http2.ErrCodeProtocol, http2.ErrCodeRefusedStream, http2.ErrCodeInternal} {
		trusting := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the server is this program's
		for name, transport := range map[string]http.RoundTripper{
			"net/http":               &http.Transport{TLSClientConfig: trusting, ForceAttemptHTTP2: true},
			"golang.org/x/net/http2": &http2.Transport{TLSClientConfig: trusting.Clone()}, //nolint:staticcheck // it is there to compare
		} {
			if err := run(name, transport, code); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

func run(name string, transport http.RoundTripper, code http2.ErrCode) error {
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate alone
	defer borrowed.Close()
	config := &tls.Config{Certificates: borrowed.TLS.Certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = listener.Close() }()
	var requests atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(tls.Server(conn, config), code, &requests)
		}
	}()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+listener.Addr().String(), bytes.NewReader([]byte("pay 10 euros")))
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	began := time.Now()
	response, err := transport.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
	}
	_, _ = fmt.Fprintf(os.Stdout, "%-14s %-22s one POST arrived %d times in %s: %v\n",
		code, name, requests.Load(), time.Since(began).Round(time.Millisecond), err)
	return nil
}

// serve resets the stream of each request that it has read whole.
func serve(conn net.Conn, code http2.ErrCode, requests *atomic.Int64) {
	defer func() { _ = conn.Close() }()
	if _, err := io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() && framer.WriteSettingsAck() != nil {
				return
			}
		case *http2.DataFrame:
			if !f.StreamEnded() {
				continue
			}
			requests.Add(1)
			if framer.WriteRSTStream(f.StreamID, code) != nil {
				return
			}
		}
	}
}
