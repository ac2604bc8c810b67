package handler

import "strings"

// protocol is how each answer of HTTP/1 begins.
const protocol = "HTTP/"

// received is what a connection of HTTP/1 remembers of what came on it for one request. net/http parses a line that the end of the connection cuts off
// as if it were whole, and then has an error of syntax: "HTTP/1.1 20" is no status to it, rather than the beginning of one.
type received struct {
	start [len(protocol)]byte
	bytes int  // how many of start came
	ended bool // by a Read that failed, which the parser called because it needed more
}

// add notes what a Read returned.
func (r *received) add(p []byte, err error) {
	r.bytes += copy(r.start[r.bytes:], p)
	r.ended = r.ended || len(p) == 0 && err != nil
}

// isTorn reports whether the connection ended before what began as an answer of HTTP was whole. What speaks another protocol is none, wherever it ends.
func (r *received) isTorn() bool {
	return r.ended && strings.HasPrefix(protocol, string(r.start[:r.bytes]))
}
