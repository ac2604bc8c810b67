package clusterinfo

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// Clock is the time of the API server, as its answers tell it to the second. The times in its objects are compared with it: those of a machine whose own
// clock is wrong would make what has just begun late, or what is over never old. A nil Clock is that of this machine. It is safe for concurrent use.
type Clock struct{ last atomic.Pointer[told] }

// told is the time that an answer had, and when it came.
type told struct{ time, heard time.Time }

// ClockOf has the requests of a client of the API server tell its time.
func ClockOf(config *rest.Config) *Clock {
	clock := &Clock{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockReader{next, clock} })
	return clock
}

// Now is the time of the API server; that of this machine as long as no answer has told it.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	last := c.last.Load()
	if last == nil {
		return time.Now()
	}
	return last.time.Add(time.Since(last.heard)) // Also where this machine's clock is set meanwhile: that is a monotonic one.
}

type clockReader struct {
	next  http.RoundTripper
	clock *Clock
}

// RoundTrip implements http.RoundTripper.
func (r clockReader) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil {
		if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			r.clock.last.Store(&told{at, time.Now()})
		}
	}
	return response, err //nolint:wrapcheck // as it is
}

// WrappedRoundTripper lets client-go find what is below.
func (r clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }
