//go:build unix

package clients_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
)

// partner is a handler by HTTP that writes down what it gets, and answers as the name of a message begins: busy is refused once, and
// wrong always.
type partner struct {
	*httptest.Server
	mu  sync.Mutex
	all []request
}

type request struct {
	header  http.Header
	body    string
	name    string
	attempt int
}

func newPartner(t *testing.T) *partner {
	t.Helper()
	p := &partner{}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	attempt, _ := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
	name := r.Header.Get("Redrive-Message-Id")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, request{r.Header, string(body), name, attempt})
	switch {
	case len(name) > 4 && name[:4] == "busy" && attempt == 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	case len(name) > 5 && name[:5] == "wrong":
		w.Header().Set("Redrive-Advice", "fail")
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
}

func (p *partner) got() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]request(nil), p.all...)
}

// attempts at each message, in their order.
func (p *partner) attempts() map[string]string {
	var all []seen
	for _, r := range p.got() {
		all = append(all, seen{Name: r.name, Attempt: r.attempt})
	}
	return attempts(all)
}
