package clusterinfo

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"redrive.dev/redrive/internal/broker"
)

// aged is an API server that says which version it is; nothing where that is empty.
type aged struct {
	says  atomic.Value
	asked atomic.Int64
}

func newAged(t *testing.T, says string) (*aged, *Question) {
	t.Helper()
	server := &aged{}
	server.says.Store(says)
	http := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		server.asked.Add(1)
		says, _ := server.says.Load().(string)
		if r.URL.Path != "/version" || says == "" {
			http.Error(rw, "not now", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(rw).Encode(version.Info{Major: "1", Minor: "0", GitVersion: says})
	}))
	t.Cleanup(http.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: http.URL})
	if err != nil {
		t.Fatal(err)
	}
	return server, KnowsSidecars(client)
}

// A node may be three minor versions older than the API server, and one of 1.28 takes a sidecar for an init container that does
// not end.
func TestKnowsSidecars_IsTrueWhereEveryNodeDoes(t *testing.T) {
	for says, want := range map[string]bool{
		"v1.28.9": false, "v1.29.0": false, "v1.31.14-eks-113cf36": false, "v1.32.0-alpha.1": true, "v1.32.4+k3s1": true, "v1.37.0": true, "v2.0.0": true,
		"1.33": true,
	} {
		_, s := newAged(t, says)
		if got, err := s.Answer(t.Context(), time.Now()); got != want || err != nil {
			t.Errorf("%s: native %v, %v, want %v", says, got, err, want)
		}
	}
}

func TestKnowsSidecars_AsksAgainUntilItIsTrue(t *testing.T) {
	server, s := newAged(t, "v1.31.0")
	start := time.Now()
	native := func(after time.Duration) bool {
		t.Helper()
		native, err := s.Answer(t.Context(), start.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return native
	}
	if native(0) || native(versionAge-time.Second) || server.asked.Load() != 1 {
		t.Errorf("asked %d times", server.asked.Load())
	}
	server.says.Store("") // the API server is away for a moment
	if native(versionAge) || native(2*versionAge-time.Second) || server.asked.Load() != 2 {
		t.Errorf("asked %d times", server.asked.Load())
	}
	server.says.Store("v1.32.0")
	if !native(2 * versionAge) {
		t.Error("the new version is not seen")
	}
	// Another of its API servers is not up to date yet.
	server.says.Store("v1.31.0")
	if !native(10*versionAge) || server.asked.Load() != 3 {
		t.Errorf("asked %d times", server.asked.Load())
	}
}

// oneProcessor is the waiter of reconciles that share a processor: who waits for a request gives it to another one.
type oneProcessor chan struct{}

func (p oneProcessor) Wait(_ context.Context, wait func()) {
	p <- struct{}{}
	wait()
	<-p
}

func (p oneProcessor) Another(context.Context) (broker.Waiter, func(), error) {
	return p, func() {}, nil
}

// Two reconciles of a namespace that asked at the same moment waited for each other, until their time was over after two minutes: one asked, and waited for
// the processor, which the other one had that waited to ask. All other reconciles that came to ask waited with them.
func TestAnswer_WhoWaitsToAskHoldsUpNobodyWhoAsks(t *testing.T) {
	t.Parallel()
	processor, begun := make(oneProcessor, 1), make(chan struct{})
	processor <- struct{}{}
	ctx := broker.WithWaiter(t.Context(), processor)
	asked := atomic.Int64{}
	q := newQuestion("anything", time.Hour, false, func(ctx context.Context) (bool, error) {
		asked.Add(1)
		broker.Await(ctx, func() { // as each request does
			close(begun)
			time.Sleep(50 * time.Millisecond)
		})
		return true, nil
	})
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if i > 0 {
				<-begun
			}
			<-processor
			defer func() { processor <- struct{}{} }()
			if yes, err := q.Answer(ctx, time.Now()); !yes || err != nil {
				t.Errorf("%t, %v", yes, err)
			}
		})
	}
	all.Wait()
	if asked.Load() != 1 {
		t.Errorf("it is asked %d times", asked.Load())
	}
}

// The request was that of the first who asked: until the processor of its namespace was free again, the reconciles of all namespaces waited.
func TestAnswer_ANamespaceThatComputesKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	busy, other, taken := make(oneProcessor, 1), make(oneProcessor, 1), make(chan struct{})
	q := newQuestion("anything", time.Hour, false, func(ctx context.Context) (bool, error) {
		broker.Await(ctx, func() { <-taken }) // as each request does
		return true, nil
	})
	go func() {
		<-busy // another one of the namespace computes as soon as the first waits
		close(taken)
	}()
	var first sync.WaitGroup
	first.Go(func() { _, _ = q.Answer(broker.WithWaiter(t.Context(), busy), time.Now()) })
	<-taken

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if yes, err := q.Answer(broker.WithWaiter(ctx, other), time.Now()); !yes || err != nil {
		t.Errorf("%t, %v", yes, err)
	}
	busy <- struct{}{}
	first.Wait()
}
