package handler

import "net"

// mostLeft is how much may be left behind in the system's memory when a connection is closed, in bytes.
const mostLeft = 16 << 10

// leaving is a connection that is reset when it is closed before the server has taken what was sent. The system would go on sending that, for
// minutes where the server reads nothing, and the memory that it takes is the pod's: with each attempt that ends so there would be another request.
type leaving struct{ *net.TCPConn }

// Close implements net.Conn.
func (c leaving) Close() error {
	if unsentBytes(c.TCPConn) > mostLeft {
		_ = c.SetLinger(0) // where that is not possible, it is closed as others are
	}
	return c.TCPConn.Close() //nolint:wrapcheck // a net.Conn gives the errors of its connection
}
