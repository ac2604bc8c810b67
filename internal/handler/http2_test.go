package handler_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
)

// framed is a connection of HTTP/2 on which the server has read a request whole.
type framed struct {
	*http2.Framer

	conn   net.Conn
	stream uint32
	// number of the request on this server, from 1.
	number int64
}

// headers sends some. "end" as the last of the fields ends the stream.
func (f framed) headers(end bool, fields ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
}

// speakHTTP2 returns a handler for a server of HTTP/2 that does what it likes with each request. Without leave to send, a
// client waits for it after 64 KiB.
func speakHTTP2(t *testing.T, newHandler maker, answer func(framed)) (h *handler.HTTP, requests *atomic.Int64) {
	t.Helper()
	authority := testcert.NewAuthority(t, "http2")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	requests = &atomic.Int64{}
	address := listen(t, func(c net.Conn) {
		conn := tls.Server(c, config)
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
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = framer.WriteSettingsAck()
				}
			case *http2.PingFrame:
				_ = framer.WritePing(true, frame.Data)
			case *http2.DataFrame:
				if frame.StreamEnded() {
					answer(framed{framer, conn, frame.StreamID, requests.Add(1)})
				}
			}
		}
	})
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(authority.PEM)})
	return open(t, newHandler, v1alpha1.HTTPHandler{URL: "https://" + address, TLS: &v1alpha1.HTTPTLS{}}, o), requests
}

// What is no HTTP/2 ends the connection, whoever ends it.
func TestHTTP2_TellsFailuresApart(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Second
	cases := map[string]struct {
		answer   func(framed)
		body     string
		timeout  time.Duration
		source   retry.Source // empty for success
		class    string
		status   int
		requests int64
	}{
		"a stream that is reset": {
			func(f framed) { _ = f.WriteRSTStream(f.stream, http2.ErrCodeInternal) },
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a stream that is reset for good, which says nothing of whether it was handled": {
			func(f framed) { _ = f.WriteRSTStream(f.stream, http2.ErrCodeNo) },
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a stream that is reset within a success": {
			func(f framed) {
				_ = f.headers(false, ":status", "200")
				_ = f.WriteData(f.stream, false, []byte("abc"))
				_ = f.WriteRSTStream(f.stream, http2.ErrCodeInternal)
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a stream that is reset after an informational answer": {
			func(f framed) {
				_ = f.headers(false, ":status", "103")
				_ = f.WriteRSTStream(f.stream, http2.ErrCodeInternal)
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a connection that ends after an informational answer": {
			func(f framed) {
				_ = f.headers(false, ":status", "103")
				_ = f.WriteGoAway(f.stream, http2.ErrCodeNo, nil)
				_ = f.conn.Close()
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a farewell for a mistake after an informational answer": {
			func(f framed) {
				_ = f.headers(false, ":status", "103")
				_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, nil)
				_ = f.conn.Close()
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a status that is none after an informational answer": {
			func(f framed) {
				_ = f.headers(false, ":status", "103")
				_ = f.headers(true, ":status", "abc")
			},
			"", long, retry.SourceHandler, handler.ClassMalformedResponse, 0, 1,
		},
		"a connection that ends": {
			func(f framed) { _ = f.conn.Close() }, "", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a connection that ends within a success": {
			func(f framed) {
				_ = f.headers(false, ":status", "200", "content-length", "9")
				_ = f.WriteData(f.stream, false, []byte("abc"))
				_ = f.conn.Close()
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a connection that ends after it said that it had the request": {
			func(f framed) {
				_ = f.WriteGoAway(f.stream, http2.ErrCodeNo, nil)
				_ = f.conn.Close()
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"a farewell with an answer after it": {
			func(f framed) {
				_ = f.WriteGoAway(f.stream, http2.ErrCodeNo, nil)
				_ = f.headers(true, ":status", "204")
			},
			"", long, "", "", 0, 1,
		},
		"a farewell that says that the request was not looked at": {
			func(f framed) {
				if f.number == 1 {
					_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
					_ = f.conn.Close()
					return
				}
				_ = f.headers(true, ":status", "204")
			},
			"", long, "", "", 0, 2,
		},
		"a stream that was refused unread": {
			func(f framed) {
				if f.number == 1 {
					_ = f.WriteRSTStream(f.stream, http2.ErrCodeRefusedStream)
					return
				}
				_ = f.headers(true, ":status", "204")
			},
			"", long, "", "", 0, 2,
		},
		"a status that is none": {
			func(f framed) { _ = f.headers(true, ":status", "abc") },
			"", long, retry.SourceHandler, handler.ClassMalformedResponse, 0, 1,
		},
		"no status": {
			func(f framed) { _ = f.headers(true, "a", "b") }, "", long, retry.SourceHandler, handler.ClassMalformedResponse, 0, 1,
		},
		"headers of 16 kB": {
			func(f framed) {
				_ = f.headers(true, ":status", "200", "a", strings.Repeat("b", 8000), "b", strings.Repeat("c", 8000))
			},
			"", long, "", "", 0, 1,
		},
		"headers without end": {
			func(f framed) {
				var block bytes.Buffer
				_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block.Bytes()})
				for err == nil {
					block.Reset()
					_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "a", Value: strings.Repeat("b", 8000)})
					err = f.WriteContinuation(f.stream, false, block.Bytes())
				}
			},
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"headers that never end": {
			func(f framed) {
				var block bytes.Buffer
				_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block.Bytes()})
			},
			"", 2 * time.Second, retry.SourceTimeout, handler.ClassTimeout, 0, 1,
		},
		"informational answers without end": {
			func(f framed) {
				var err error
				for err == nil {
					err = f.headers(false, ":status", "103", "a", strings.Repeat("b", 1000))
				}
			},
			"", long, retry.SourceHandler, handler.ClassMalformedResponse, 0, 1,
		},
		"garbage": {
			func(f framed) { _, _ = io.WriteString(f.conn, strings.Repeat("garbage ", 10_000)) },
			"", long, retry.SourceCrash, handler.ClassConnectionReset, 0, 1,
		},
		"no leave to send the body": {
			func(framed) {}, strings.Repeat("x", 1<<20), 100 * time.Millisecond, retry.SourceTimeout, handler.ClassTimeout, 0, 0,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, requests := speakHTTP2(t, handler.NewHTTP, c.answer)
			if c.body == "" {
				c.body = "body"
			}
			got := attempt(t, h, c.timeout, c.body)
			if got == nil {
				got = &retry.Failure{}
			}
			if got.Source != c.source || got.Class != c.class || got.Status != c.status || requests.Load() != c.requests {
				t.Errorf("got %+v after %d requests", got, requests.Load())
			}
			if len(got.Message) > 500 || (c.source != "" && got.Message == "") {
				t.Errorf("got the message %q", got.Message)
			}
		})
	}
}

func TestHTTP2_LosesNoAttemptToAGoAwayAfterEachAnswer(t *testing.T) {
	t.Parallel()
	h, _ := speakHTTP2(t, handler.NewHTTP, func(f framed) {
		_ = f.headers(true, ":status", "204")
		_ = f.WriteGoAway(f.stream, http2.ErrCodeNo, nil)
	})
	for range 20 {
		if got := attempt(t, h, 10*time.Second, "body"); got != nil {
			t.Fatal(show(got))
		}
	}
}

// What is at the end of a connection may vanish without a word. The attempts after that must not all go there.
func TestHTTP2_GivesUpASilentConnection(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	t.Cleanup(func() { close(gone) })
	h, _ := speakHTTP2(t, handler.NewBriskHTTP, func(f framed) {
		if f.number == 1 {
			<-gone // and no frame is read from now on
		}
		_ = f.headers(true, ":status", "204")
	})
	if got := attempt(t, h, 30*time.Second, "body"); got == nil || got.Source != retry.SourceCrash {
		t.Errorf("got %s", show(got))
	}
	if got := attempt(t, h, 30*time.Second, "body"); got != nil {
		t.Errorf("then: %s", show(got))
	}
}

// net/http sends a request again, on a new connection each time and without limit, where its stream is reset with PROTOCOL_ERROR: 3,772
// calls for one message. A stream that is refused was not seen, so that one more request is safe; nobody can tell here which it was.
func TestHTTP2_SendsAResetRequestAtMostTwice(t *testing.T) {
	t.Parallel()
	for _, code := range []http2.ErrCode{http2.ErrCodeProtocol, http2.ErrCodeRefusedStream} {
		h, requests := speakHTTP2(t, handler.NewHTTP, func(f framed) { _ = f.WriteRSTStream(f.stream, code) })
		got := attempt(t, h, 30*time.Second, "body")
		if got == nil || got.Source != retry.SourceCrash || got.Class != handler.ClassConnectionReset || requests.Load() > 2 {
			t.Errorf("%v: %d requests, got %s", code, requests.Load(), show(got))
		}
	}
}

// All requests of HTTP/2 shared a connection, and what a server may be sent before it has read it: one body of 3 MiB that was read late held up all
// messages of all queues for its whole timeout.
func TestHTTP2_ALargeBodyThatIsReadLateHoldsUpNoSmallOne(t *testing.T) {
	t.Parallel()
	begun, read := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("it speaks %s", r.Proto)
		}
		if r.ContentLength > 1<<20 {
			close(begun)
			<-read
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))})
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: server.URL, TLS: &v1alpha1.HTTPTLS{}}, o)
	large := make(chan *retry.Failure)
	go func() { large <- attempt(t, h, time.Minute, strings.Repeat("x", 3<<20)) }()
	<-begun
	for range 3 {
		if got := attempt(t, h, 10*time.Second, strings.Repeat("x", 10_000)); got != nil {
			t.Errorf("a small one beside it: %s", show(got))
		}
	}
	close(read)
	if got := <-large; got != nil {
		t.Errorf("the large one: %s", show(got))
	}
}
