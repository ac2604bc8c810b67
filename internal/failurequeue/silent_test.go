package failurequeue

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/message"
)

// carried is a connection by way of the API server, which knows no deadlines, and of which the far end may stand still.
type carried struct {
	net.Conn

	silent *atomic.Bool
	closed chan struct{}
	once   *sync.Once
}

func (carried) SetDeadline(time.Time) error      { return nil }
func (carried) SetReadDeadline(time.Time) error  { return nil }
func (carried) SetWriteDeadline(time.Time) error { return nil }

func (c carried) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.silent.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c carried) Write(p []byte) (int, error) {
	if c.silent.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c carried) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestScan_EndsWhereNothingAnswersAnyMore(t *testing.T) {
	r := newRig(t)
	r.fill(0, 1000, 20_000)
	var silent atomic.Bool
	r.options.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return carried{conn, &silent, make(chan struct{}), new(sync.Once)}, err
	}
	if ids, err := r.scan(t.Context()); err != nil || len(ids) != 1000 {
		t.Fatalf("%d messages, %v", len(ids), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		n := 0
		_, err := Scan(ctx, r.options, func(message.Message) error {
			if n++; n == 150 {
				silent.Store(true)
				time.AfterFunc(time.Second, cancel)
			}
			return nil
		})
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("nobody is told")
		}
	case <-time.After(endWithin + 10*time.Second):
		t.Fatal("it has not ended")
	}
}
