package broker_test

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// What an answer makes the operator take is bounded by what is on the wire and by its rows, not by what an API says they unpack to.
func TestObserve_TakesLittleMemoryForAnAnswerThatGrows(t *testing.T) {
	const most = 64 << 20
	rows := strings.Repeat("{},", 1<<15)
	answers := map[string]http.HandlerFunc{
		"packed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			_, _ = io.WriteString(packed, "[")
			for range 64 << 20 / len(rows) {
				_, _ = io.WriteString(packed, rows)
			}
			_, _ = io.WriteString(packed, "{}]")
			_ = packed.Close()
		},
		"plain": repeated("[", "{},"),
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(onPath("/api/exchanges", answer))
			defer server.Close()
			client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = client.Observe(t.Context())
			runtime.ReadMemStats(&after)
			if !errors.Is(err, broker.ErrGarbled) {
				t.Errorf("want it refused, got %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("it took %d MB in all", took>>20)
			}
		})
	}
}
