package handler

import (
	"net"
	"strings"
	"sync"
)

// headPiece is how much is read of headers at a time, so that few more lines are read than are allowed.
const headPiece = 1 << 10

// headed is a connection of HTTP/1.1 that ends with an answer of more than maxAnswerLines. net/http has a bound for their bytes alone.
type headed struct {
	net.Conn

	mu sync.Mutex
	// reading is true from when a request is about to be sent until the headers of its answer have come, and lines is how many more may.
	reading bool
	lines   int
	// empty is true while the present line is, and status is the beginning of the first one.
	empty  bool
	status []byte
}

// lenStatus is how much of a status line tells an informational answer.
const lenStatus = len("HTTP/1.1 103")

// begin is called before a request is sent.
func (c *headed) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading, c.lines, c.empty, c.status = true, maxAnswerLines, true, c.status[:0]
}

// Read implements net.Conn.
func (c *headed) Read(p []byte) (int, error) {
	c.mu.Lock()
	reading, lines := c.reading, c.lines
	c.mu.Unlock()
	switch {
	case !reading:
		return c.Conn.Read(p) //nolint:wrapcheck // a net.Conn gives the errors of its connection
	case lines <= 0:
		return 0, errLongHeaders
	}
	n, err := c.Conn.Read(p[:min(len(p), headPiece)])
	c.count(p[:n])
	return n, err //nolint:wrapcheck // as above
}

// count counts the lines of headers in what was read.
func (c *headed) count(data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range data {
		if !c.reading {
			return
		}
		if len(c.status) < lenStatus {
			c.status = append(c.status, b)
		}
		switch {
		case b == '\n' && c.empty:
			informational := len(c.status) == lenStatus && c.status[lenStatus-3] == '1' && !strings.HasSuffix(string(c.status), "101")
			c.reading, c.status = informational, c.status[:0] // the answer comes after it
		case b == '\n':
			c.lines--
			c.empty = true
		case b != '\r':
			c.empty = false
		}
	}
}
