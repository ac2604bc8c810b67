package handler_test

import (
	"io"
	"net"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// It counted as handled: the answer was there, and nobody asked whether there had been a request.
func TestHTTP_TakesNoAnswerBeforeAByteIsSent(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a success": "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "a failure": "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
	} {
		for size, body := range map[string]string{"small": "x", "large": string(make([]byte, 1<<20))} {
			gone := make(chan struct{}, 1)
			address := listen(t, func(c net.Conn) {
				_, _ = io.WriteString(c, answer)
				time.Sleep(20 * time.Millisecond) // it arrives before the end
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
				gone <- struct{}{}
			})
			h, err := handler.NewIdleHTTP(v1alpha1.HTTPHandler{URL: "http://" + address}, handler.Options{})
			if err != nil {
				t.Fatal(err)
			}
			h.AfterDial(func() {
				<-gone
				time.Sleep(20 * time.Millisecond)
			})
			failure := attempt(t, h, 10*time.Second, body)
			if failure == nil || failure.Source != retry.SourceConnection || failure.Class != handler.ClassUnreachable {
				t.Errorf("%s before a %s body: %+v", name, size, failure)
			}
			_ = h.Close()
		}
	}
}
