package handler_test

import (
	"bytes"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

// heapWhileAnswersStall is the heap while so many answers, with a body of so many bytes, do not come to their ends.
func heapWhileAnswersStall(t *testing.T, answers, size int) int64 {
	t.Helper()
	page := bytes.Repeat([]byte("<p>gone</p>"), size/11)
	var sent atomic.Int64
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(page)
		_ = http.NewResponseController(w).Flush()
		sent.Add(1)
		<-end
	}))
	defer server.Close()
	h, err := handler.NewHTTP(v1alpha1.HTTPHandler{URL: server.URL}, handler.Options{Concurrency: answers})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	var calls sync.WaitGroup
	for range answers {
		calls.Go(func() {
			if failure := h.Handle(t.Context(), handler.Request{ID: "m-1"}); failure == nil || failure.Status != http.StatusServiceUnavailable {
				t.Errorf("got %+v", failure)
			}
		})
	}
	eventually(t, "all answers to have begun", func() bool { return int(sent.Load()) == answers })
	time.Sleep(200 * time.Millisecond) // in which what was sent is read
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	close(end)
	calls.Wait()
	return int64(stats.HeapAlloc)
}

// Of each error page all 64 KiB that are read were kept until its end came: 512 of them took 110 MiB of a worker of 256.
func TestHTTP_TakesLittleMemoryForErrorPagesThatStall(t *testing.T) {
	const answers = 200
	small, large := heapWhileAnswersStall(t, answers, 500), heapWhileAnswersStall(t, answers, 60_000)
	if more := (large - small) / answers; more > 16<<10 {
		t.Errorf("a page of 60 kB takes %d bytes more than one of 500", more)
	}
}

// Of each answer of HTTP/2 net/http kept 4 MiB, while it was not read: 200 of 4 MB took 1,000 MiB of a worker of 256, and so did problems that wait
// for others to be read.
func TestHTTP2_LetsAServerSendLittleThatIsNotRead(t *testing.T) {
	t.Parallel()
	const held, more, size = 64, 40, 1 << 20
	var begun, sent atomic.Int64
	end := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		if begun.Add(1) <= held {
			_, _ = w.Write(make([]byte, 10_000))
			_ = http.NewResponseController(w).Flush()
			<-end
			return
		}
		for range size / 1024 {
			n, err := w.Write(make([]byte, 1024))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	o := handler.Options{Concurrency: held + more}
	o.Files = folder(t, map[string]string{"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))})
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: server.URL, TLS: &v1alpha1.HTTPTLS{}}, o)
	var calls sync.WaitGroup
	call := func() {
		calls.Go(func() {
			if failure := h.Handle(t.Context(), handler.Request{ID: "m-1"}); failure == nil || failure.Status != http.StatusServiceUnavailable {
				t.Errorf("got %+v", failure)
			}
		})
	}
	for n := range held {
		call()
		eventually(t, "an answer to have begun", func() bool { return int(begun.Load()) > n })
	}
	time.Sleep(200 * time.Millisecond) // in which these have been read as far as they were sent
	for range more {
		call()
	}
	eventually(t, "all answers to have begun", func() bool { return int(begun.Load()) == held+more })
	time.Sleep(500 * time.Millisecond)
	if each := sent.Load() / more; each > 64<<10 {
		t.Errorf("a server could send %d bytes of each answer that nobody reads", each)
	}
	close(end)
	calls.Wait()
}
