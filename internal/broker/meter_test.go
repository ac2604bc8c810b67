package broker_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/broker"
)

// Rows were counted as their text: a list of empty names takes five times that, and a byte that is no UTF-8 three times, so that the answers of a
// few brokers ended the manager.
func TestMeter_CountsWhatIsDecoded(t *testing.T) {
	const rows, many = 20, 20_000
	for name, tt := range map[string]struct {
		path, row string
		least     int
	}{
		"a list of empty names":       {"/api/queues", `{"name":"q","members":[` + strings.Repeat(`"",`, many-1) + `""]}`, 16 * many},
		"bytes that become three":     {"/api/bindings", `{"source":"s","destination":"q","routing_key":"` + strings.Repeat("\xff", many) + `"}`, 3 * many},
		"control: a text as it comes": {"/api/bindings", `{"source":"s","destination":"q","routing_key":"` + strings.Repeat("x", many) + `"}`, many},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(onPath(tt.path, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "["+strings.Repeat(tt.row+",", rows-1)+tt.row+"]")
			}))
			defer server.Close()
			client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			meter := &taken{}
			_, err = client.Observe(broker.WithMeter(t.Context(), meter))
			if meter.bytes < rows*tt.least || meter.bytes > 2*rows*tt.least+1<<20 {
				t.Errorf("the meter counts %d bytes, and what is decoded takes %d: %v", meter.bytes, rows*tt.least, err)
			}
		})
	}
}

// The text of a row that had not ended counted nowhere, so that a thousand brokers that stopped in the middle of one took what the manager has.
func TestMeter_CountsTheTextOfARowUntilItIsRead(t *testing.T) {
	const long = 60_000
	end := make(chan struct{})
	server := httptest.NewServer(onPath("/api/bindings", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `[{"source":"s","destination":"q","routing_key":"`+strings.Repeat("x", long))
		_ = http.NewResponseController(w).Flush()
		<-end
		_, _ = io.WriteString(w, `"}]`)
	}))
	defer server.Close()
	client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	meter := &row{}
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		_, _ = client.Observe(broker.WithMeter(t.Context(), meter)) // which does not like the key, when it has it
	}()
	for began := time.Now(); meter.bytes.Load() < 2*long; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d bytes are counted of a row of %d that has not ended", meter.bytes.Load(), long)
		}
	}
	close(end)
	<-observed
	if left := meter.bytes.Load(); left < long || left >= 3*long {
		t.Errorf("%d bytes are counted when the two lists with a row of %d are read", left, long)
	}
}

// row counts while others look.
type row struct{ bytes atomic.Int64 }

func (r *row) Take(_ context.Context, bytes int) error {
	r.bytes.Add(int64(bytes))
	return nil
}
