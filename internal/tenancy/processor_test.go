package tenancy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/tenancy"
)

// computing is how many reconciles have begun to compute, and has each wait for its broker when it is told to.
type computing struct {
	of           *tenancy.Processors
	begun        atomic.Int64
	next, answer chan struct{}
}

func (c *computing) reconcile(t *testing.T) {
	mine, err := c.of.Acquire(t.Context(), "hostile")
	if err != nil {
		t.Error(err)
		return
	}
	defer mine.Release()
	c.begun.Add(1)
	<-c.next
	mine.Wait(t.Context(), func() { <-c.answer })
}

func (c *computing) expect(t *testing.T, want int64) {
	t.Helper()
	synctest.Wait()
	if got := c.begun.Load(); got != want {
		t.Errorf("%d reconciles have begun, want %d", got, want)
	}
}

// each is how many of a namespace compute at a time.
func each(p *tenancy.Processors) (n int) {
	var all []*tenancy.Processor
	for mine := p.TryAcquire("counted"); mine != nil; mine = p.TryAcquire("counted") {
		all = append(all, mine)
	}
	for _, mine := range all {
		mine.Release()
	}
	return len(all)
}

// The reconciles of fifty Transports of one namespace, at as many brokers, kept the processors from those of all others: a new Transport of another
// team was served after 13 s in place of 3.
func TestProcessors_ANamespaceHasHalfOfThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &computing{of: tenancy.NewProcessors(), next: make(chan struct{}), answer: make(chan struct{})}
		limit := int64(each(c.of))
		for range 50 {
			go c.reconcile(t)
		}
		c.expect(t, limit)
		other := c.of.TryAcquire("shop")
		if other == nil {
			t.Fatal("another namespace waits")
		}
		other.Release()
		for range limit { // they wait for their brokers now
			c.next <- struct{}{}
		}
		c.expect(t, 2*limit)
		close(c.answer)
		close(c.next)
		c.expect(t, 50)
		if left := each(c.of); int64(left) != limit || c.of.Namespaces() != 0 {
			t.Errorf("%d of %d are free, %d namespaces are remembered", left, limit, c.of.Namespaces())
		}
	})
}

// What was begun ends before others begin, else all hold what they have read.
func TestProcessors_WhoCameFirstGoesOnFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := tenancy.NewProcessors()
		limit := each(p)
		var first, rest []*tenancy.Processor
		first = append(first, p.TryAcquire("shop"))
		for range limit - 1 {
			rest = append(rest, p.TryAcquire("shop"))
		}
		answer, resumed := make(chan struct{}), make(chan string, 2)
		go func() {
			first[0].Wait(t.Context(), func() { <-answer })
			resumed <- "first"
		}()
		synctest.Wait()
		second, err := p.Acquire(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			third, err := p.Acquire(t.Context(), "shop")
			if err != nil {
				t.Error(err)
				return
			}
			resumed <- "third"
			third.Release()
		}()
		synctest.Wait()
		close(answer) // the first one waits behind the third now
		synctest.Wait()
		second.Release()
		if now := <-resumed; now != "first" {
			t.Errorf("the %s goes on", now)
		}
		for _, mine := range append(first, rest...) {
			mine.Release()
		}
		<-resumed
	})
}

func TestProcessors_AReconcileWhoseTimeIsOverTakesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := tenancy.NewProcessors()
		limit := each(p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		mine := p.TryAcquire("shop")
		var others []*tenancy.Processor
		mine.Wait(ctx, func() {
			for range limit {
				others = append(others, p.TryAcquire("shop"))
			}
		})
		mine.Wait(ctx, func() {}) // goes on without
		mine.Release()
		if p.TryAcquire("shop") != nil {
			t.Error("it has given back what others hold")
		}
		if _, err := p.Acquire(ctx, "shop"); err == nil {
			t.Error("a reconcile begins whose time is over")
		}
		for _, one := range others {
			one.Release()
		}
		if each(p) != limit || p.Namespaces() != 0 {
			t.Error("not all are free again")
		}
	})
}

// A reconcile asks several pods at a time, each in a goroutine that waits as well.
func TestProcessors_SeveralGoroutinesOfAReconcileWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := tenancy.NewProcessors()
		mine := p.TryAcquire("shop")
		mine.Wait(t.Context(), func() {
			done := make(chan struct{})
			go mine.Wait(t.Context(), func() { close(done) })
			<-done
		})
		mine.Release()
		if p.Namespaces() != 0 {
			t.Error("it is not free again")
		}
	})
}

// hanging is an API server that answers when it is told to.
type hanging struct{ asked, answer chan struct{} }

// RoundTrip implements http.RoundTripper.
func (h hanging) RoundTrip(*http.Request) (*http.Response, error) {
	h.asked <- struct{}{}
	<-h.answer
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
}

// A reconcile that held its processor while the API server answers kept others of its namespace waiting for nothing.
func TestShareProcessors_OthersComputeWhileTheAPIServerAnswers(t *testing.T) {
	t.Parallel()
	server := hanging{asked: make(chan struct{}), answer: make(chan struct{})}
	config := &rest.Config{Host: "http://127.0.0.1:1", Transport: server}
	tenancy.ShareProcessors(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	p := tenancy.NewProcessors()
	limit := each(p)
	mine := p.TryAcquire("shop")
	request, err := http.NewRequestWithContext(broker.WithWaiter(t.Context(), mine), http.MethodGet, config.Host, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error)
	go func() {
		response, err := client.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	<-server.asked
	for i := range limit {
		if p.TryAcquire("shop") == nil {
			t.Errorf("%d of %d are free", i, limit)
		}
	}
	close(server.answer)
	select {
	case err := <-answered:
		t.Errorf("it goes on without a processor: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
}

// Fifty servers whose certificates take a second to check had all processors, as net/http makes handshakes beside the reconciles that wait for them.
func TestProcessors_HandshakesAreComputedOnThoseOfTheirNamespace(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer server.Close()
	of := tenancy.NewProcessors()
	mine, err := of.Acquire(t.Context(), "hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Release()
	for range each(of) - 1 {
		defer of.TryAcquire("hostile").Release()
	}
	checks := 0
	config := &tls.Config{RootCAs: x509.NewCertPool(), VerifyConnection: func(tls.ConnectionState) error {
		checks++
		if more := of.TryAcquire("hostile"); more != nil {
			more.Release()
			t.Error("the handshake is computed on none of them")
		}
		return nil
	}}
	config.RootCAs.AddCert(server.Certificate())
	client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "user", Password: "x", VHost: "/", TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Ping(broker.WithWaiter(t.Context(), mine)); err != nil || checks != 1 {
		t.Errorf("%v after %d handshakes", err, checks)
	}
	if more := of.TryAcquire("hostile"); more != nil {
		t.Error("the reconcile has no processor after it")
	}
}
