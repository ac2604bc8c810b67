package handler_test

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// listenShort listens on a unix socket with a backlog of so many connections, which Go's own listener does not let one choose.
func listenShort(t *testing.T, path string, backlog int) net.Listener {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	listener, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// Linux refuses a connection to a unix socket whose backlog is full at once, while TCP waits: attempts were used up in milliseconds.
func TestHTTP_WaitsForAUnixSocketWhoseBacklogIsFull(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	listener := listenShort(t, path, 1)
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			time.Sleep(20 * time.Millisecond) // it handles one after the other
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			_ = conn.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://localhost/", UnixSocket: &path}, options())
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			if failure := attempt(t, h, 10*time.Second, "body"); failure != nil {
				t.Errorf("got %s", show(failure))
			}
		})
	}
	calls.Wait()
}

// What a server on a unix socket does not read stays in memory that counts as the worker's, also after the connection is closed: a minute of attempts that
// timed out ended the worker.
func TestHTTP_LeavesABoundedAmountToAServerOnAUnixSocketThatDoesNotRead(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	listener := listenAt(t, path)
	t.Cleanup(func() { _ = listener.Close() })
	var mu sync.Mutex
	var conns []net.Conn
	accepted := func() []net.Conn {
		mu.Lock()
		defer mu.Unlock()
		return conns
	}
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	}()
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://localhost/", UnixSocket: &path}, options())
	body := make([]byte, 400<<10)
	try := func(timeout time.Duration) *retry.Failure {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return h.Handle(ctx, handler.Request{Body: body, IdempotencyKey: "key"})
	}
	const attempts = 200 // each leaves more than 100 KiB
	for range attempts {
		if failure := try(20 * time.Millisecond); failure == nil || failure.Class != handler.ClassTimeout && failure.Class != handler.ClassUnreachable {
			t.Fatalf("got %s", show(failure))
		}
	}
	if made := len(accepted()); made >= attempts {
		t.Errorf("%d connections for %d attempts, each with what the server has not read", made, attempts)
	}
	for _, conn := range accepted() { // it goes on
		go func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() }()
	}
	before := len(accepted())
	go try(10 * time.Second) // only its connection counts
	for end := time.Now().Add(10 * time.Second); len(accepted()) == before && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if len(accepted()) == before {
		t.Error("the server has read all, and no attempt reaches it")
	}
	for _, conn := range accepted()[before:] {
		_ = conn.Close()
	}
}
