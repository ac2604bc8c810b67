package handler

import (
	"bytes"
	"context"
	"net"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// scriptedPeer is a connection on which the other end says what it is told and hangs up, whatever it hears.
type scriptedPeer struct {
	net.Conn

	answer *bytes.Reader
	asked  chan struct{}
}

func (p *scriptedPeer) Read(b []byte) (int, error) {
	<-p.asked
	return p.answer.Read(b)
}

func (p *scriptedPeer) Write(b []byte) (int, error) {
	select {
	case <-p.asked:
	default:
		close(p.asked)
	}
	return len(b), nil
}

func (p *scriptedPeer) Close() error                     { return nil }
func (p *scriptedPeer) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (p *scriptedPeer) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (p *scriptedPeer) SetDeadline(time.Time) error      { return nil }
func (p *scriptedPeer) SetReadDeadline(time.Time) error  { return nil }
func (p *scriptedPeer) SetWriteDeadline(time.Time) error { return nil }

func FuzzAnswers(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	f.Add([]byte("HTTP/1.1 204 No Content\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 120\r\n\r\n{\"type\": \"https://x\", \"title\": \"t\", \"detail\": \"d\"}"))
	f.Add([]byte("HTTP/1.1 429 \r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\nContent-Type: text/plain\r\n\r\n\xff\x00 slow down"))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 502 Bad\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off"))
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 999 What\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\nRetry-After: 99999999999999999999\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 400 No\r\nRedrive-Advice:  FAIL \r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 503 No\r\nRedrive-Advice: retry\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("SSH-2.0-OpenSSH\r\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, answer []byte) {
		h, err := NewHTTP(v1alpha1.HTTPHandler{URL: "http://handler.test/"}, Options{Clock: func() time.Time { return time.Unix(1_700_000_000, 0) }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		h.wire.dial = func(context.Context) (net.Conn, error) {
			return &scriptedPeer{answer: bytes.NewReader(answer), asked: make(chan struct{})}, nil
		}
		failure := h.Handle(t.Context(), Request{ID: "i", Body: []byte("body")})
		if failure == nil {
			if !bytes.Contains(answer, []byte(" 2")) {
				t.Errorf("%q is a success", answer)
			}
			return
		}
		checkFailure(t, failure)
	})
}

// checkFailure expects what a policy can decide on, within the bounds of headers and logs.
func checkFailure(t *testing.T, f *retry.Failure) {
	t.Helper()
	if !slices.Contains([]retry.Source{retry.SourceHandler, retry.SourceTimeout, retry.SourceCrash, retry.SourceConnection}, f.Source) {
		t.Errorf("source %q", f.Source)
	}
	if f.Status != 0 && (f.Status < 101 || f.Status > 599 || f.Status >= 200 && f.Status <= 299) || f.Status != 0 && f.Source != retry.SourceHandler {
		t.Errorf("status %d of %s", f.Status, f.Source)
	}
	if len(f.Class) > message.MaxClass || len(f.Message) > message.MaxText || !utf8.ValidString(f.Class) || !utf8.ValidString(f.Message) || f.Message == "" {
		t.Errorf("class %q, message %q", f.Class, f.Message)
	}
	if !slices.Contains([]retry.Advice{"", retry.AdviseFail, retry.AdviseDrop, retry.AdviseRetry, retry.AdviseRelease, retry.AdviseStop}, f.Advice) {
		t.Errorf("advice %q", f.Advice)
	}
	if f.RetryAfter != nil && (*f.RetryAfter < 0 || *f.RetryAfter > maxRetryAfter) {
		t.Errorf("retry after %s", *f.RetryAfter)
	}
}
