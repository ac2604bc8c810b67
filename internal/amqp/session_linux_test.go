package amqp

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Connections of single queues that stood still, since bodies waited for memory, had 106 MiB in the system's buffers for 20 queues. A buffer of
// a size that was asked for does not grow.
func TestConnect_LimitsTheReceiveBufferOfAConnection(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := new(nodes).connect(t.Context(), listener.Addr().String(), &Options{receive: receiveAlone})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	controlled := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	if controlled != nil || err != nil {
		t.Fatal(controlled, err)
	}
	if want := 2 * min(receiveAlone, most); got != want { // the system counts what it needs itself
		t.Errorf("%d bytes, want %d", got, want)
	}
}
