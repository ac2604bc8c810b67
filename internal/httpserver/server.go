// Package httpserver serves HTTP at ports that any pod may reach: what a caller may take of a process is bounded.
package httpserver

import (
	"log/slog"
	"net/http"
	"time"
)

const (
	// timeout bounds reading a request and writing its answer, and idleTimeout how long a connection may wait for the next.
	timeout     = 30 * time.Second
	idleTimeout = 90 * time.Second
	// maxHeaders bounds the headers of a request, of which a token is the longest.
	maxHeaders = 16 << 10
)

// New returns a server for the connections of Listen.
func New(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // what callers do wrong, for each of them
	}
}
