package handler

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// headPiece is how much is read at a time, so that few more lines of headers are read than are allowed.
const headPiece = 1 << 10

// headed is a connection of HTTP/1.1 that ends with an answer of more than maxAnswerLines. net/http has a bound for their bytes alone.
type headed struct {
	net.Conn

	mu sync.Mutex
	// reading is the request of which net/http reads the answer's headers, by its number; zero where it reads a body, or waits for the next request.
	reading, requests int
	// lines is how many more may be read of them.
	lines int
	got   received // since the last request began
}

// begin is called before a request is sent, and what it returns when net/http has parsed the headers of the answer: it alone knows where they end. By
// then the connection may already serve the next request.
func (c *headed) begin() (parsed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	number := c.requests
	c.reading, c.lines, c.got = number, maxAnswerLines, received{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.reading == number {
			c.reading = 0
		}
	}
}

// Read implements net.Conn. What net/http waits for while a connection is idle is the beginning of the next answer: whether lines are counted is asked
// when they are there.
func (c *headed) Read(p []byte) (int, error) {
	if c.exceeded() {
		return 0, errLongHeaders
	}
	n, err := c.Conn.Read(p[:min(len(p), headPiece)])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading != 0 {
		c.lines -= bytes.Count(p[:n], []byte("\n"))
	}
	c.got.add(p[:n], err)
	if n > 0 { // TLS returns the end together with the last bytes, and again after them
		return n, nil
	}
	return 0, err //nolint:wrapcheck // a net.Conn gives the errors of its connection
}

// Write implements net.Conn. Where a server has answered before it has read all, and closed, net/http must not learn that the rest was not taken
// before it has read the answer: it would give that up.
func (c *headed) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		time.Sleep(sentWithin)
	}
	return n, err //nolint:wrapcheck // a net.Conn gives the errors of its connection
}

// isTorn reports whether the connection ended before an answer was whole.
func (c *headed) isTorn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got.isTorn()
}

func (c *headed) exceeded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading != 0 && c.lines <= 0
}
