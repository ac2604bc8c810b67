package httpserver

import (
	"net"
	"net/http"
	"sync"

	"golang.org/x/time/rate"
)

// maxAddresses is how many addresses are known at a time. Where there are more, all begin again.
const maxAddresses = 4096

// limits are how often addresses may do something. It is safe for concurrent use.
type limits struct {
	perSecond, burst int

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newLimits(perSecond, burst int) *limits {
	return &limits{perSecond: perSecond, burst: burst, of: map[string]*rate.Limiter{}}
}

func (l *limits) allow(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	its := l.of[address]
	if its == nil {
		if len(l.of) >= maxAddresses {
			clear(l.of)
		}
		its = rate.NewLimiter(rate.Limit(l.perSecond), l.burst)
		l.of[address] = its
	}
	return its.Allow()
}

// hostOf is an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// LimitEach answers 429 to the requests of an address that sends more than so many a second, after a burst.
func LimitEach(handler http.Handler, perSecond, burst int) http.Handler {
	each := newLimits(perSecond, burst)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !each.allow(hostOf(r.RemoteAddr)) {
			w.Header().Set("Connection", "close") // new ones are limited, too
			http.Error(w, "too many requests from this address", http.StatusTooManyRequests)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
