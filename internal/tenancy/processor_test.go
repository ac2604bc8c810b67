package tenancy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
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
		time.Sleep(time.Second)
		for range limit { // they wait for their brokers now
			c.next <- struct{}{}
		}
		c.expect(t, 2*limit)
		other := c.of.TryAcquire("shop")
		if other == nil {
			t.Fatal("another namespace waits")
		}
		other.Release()
		close(c.answer)
		close(c.next)
		c.expect(t, 50)
		if left := each(c.of); int64(left) != limit || c.of.Namespaces() != 0 {
			t.Errorf("%d of %d are free, %d namespaces are remembered", left, limit, c.of.Namespaces())
		}
	})
}

// Costly policies that changed in twelve namespaces kept all processors, and a new Transport of another team was served after half a minute.
func TestProcessors_ALightNamespaceWaitsForNoneOfManyThatComputeWithoutAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const turn, namespaces = 200 * time.Millisecond, 12
		p := tenancy.NewProcessors()
		ctx, cancel := context.WithCancel(t.Context())
		var running, most atomic.Int64
		var turns [namespaces]atomic.Int64
		compute := func(n int) {
			for ctx.Err() == nil {
				mine, err := p.Acquire(ctx, fmt.Sprint("hostile-", n))
				if err != nil {
					return
				}
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(turn)
				running.Add(-1)
				turns[n].Add(1)
				mine.Release()
			}
		}
		for n := range namespaces {
			go compute(n)
		}
		time.Sleep(time.Minute)
		begun := time.Now()
		for range 100 { // steps of a reconcile that waits for its broker in between
			mine, err := p.Acquire(ctx, "shop")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			mine.Release()
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a reconcile of a light namespace took %v", took)
		}
		if all := int64(max(1, runtime.GOMAXPROCS(0)-1)); most.Load() > all {
			t.Errorf("%d have computed at a time, of %d", most.Load(), all)
		}
		least, greatest := turns[0].Load(), turns[0].Load()
		for n := range turns {
			least, greatest = min(least, turns[n].Load()), max(greatest, turns[n].Load())
		}
		if greatest-least > 2 {
			t.Errorf("one has had %d turns and another %d", least, greatest)
		}
		cancel()
		time.Sleep(5 * time.Minute)
		if mine := p.TryAcquire("shop"); mine == nil || p.Namespaces() != 1 {
			t.Error("not all are free again")
		}
	})
}

// One that computes as much as it gets has its turn like the others, also where it came first and has computed for a while.
func TestProcessors_ANamespaceThatIsBusyAllTheTimeHasItsTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := tenancy.NewProcessors()
		ctx, cancel := context.WithCancel(t.Context())
		turns := func(namespace string, had *atomic.Int64) {
			for ctx.Err() == nil {
				mine, err := p.Acquire(ctx, namespace)
				if err != nil {
					return
				}
				had.Add(1)
				time.Sleep(100 * time.Millisecond)
				mine.Release()
			}
		}
		var its, others atomic.Int64
		go turns("shop", &its)
		time.Sleep(time.Minute)
		for n := range 12 {
			go turns(fmt.Sprint("hostile-", n), &others)
		}
		for range 3 {
			before := its.Load()
			time.Sleep(20 * time.Second)
			if its.Load() == before {
				t.Errorf("it has no turn within 20 seconds; the others had %d", others.Load())
			}
		}
		cancel()
		time.Sleep(time.Minute)
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

// A pod that does not answer had the time of its request run out, and the reconcile go on without a processor to its end: fifty computed at a time.
func TestProcessors_AReconcileWhoseRequestRunsOutOfTimeWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := tenancy.NewProcessors()
		limit := each(p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var running, most atomic.Int64
		var reconciles sync.WaitGroup
		for range 20 {
			reconciles.Go(func() {
				mine, err := p.Acquire(ctx, "hostile")
				if err != nil {
					t.Error(err)
					return
				}
				defer mine.Release()
				ctx := broker.WithWaiter(ctx, mine)
				request, done := context.WithTimeout(ctx, 2*time.Second)
				defer done()
				broker.Await(request, func() { <-request.Done() })
				for range 10 {
					most.Store(max(most.Load(), running.Add(1)))
					time.Sleep(time.Second)
					running.Add(-1)
					broker.Await(ctx, func() { time.Sleep(time.Millisecond) })
				}
			})
		}
		reconciles.Wait()
		if got := most.Load(); got > int64(limit) {
			t.Errorf("%d reconciles of a namespace compute at a time, of %d", got, limit)
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
