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
	// perSecond is how many requests an address is answered in a second, after a burst, and how many connections it opens. KEDA asks for all worker groups of
	// a cluster from one: for a thousand of them that are a hundred a second.
	perSecond, burst = 128, 2 * MaxConnections
	// pause is how long a request waits for its answer. A connection that always has the next one is otherwise always the processor's next, beside hundreds
	// of others: whatever else the process does waits for all of them at each step.
	pause = 25 * time.Millisecond
)

// New returns a server for the connections of Listen. A request waits a moment, and that of an address which sends too many ends its connection.
func New(handler http.Handler) *http.Server {
	limited := LimitEach(handler, perSecond, burst)
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(pause)
			limited.ServeHTTP(w, r)
		}),
		DisableGeneralOptionsHandler: true, // it answers "OPTIONS *" without the handler
		ReadTimeout:                  timeout, WriteTimeout: timeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // what callers do wrong, for each of them
	}
}
