package broker_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// taken is a Meter that is never full.
type taken struct{ bytes int }

func (m *taken) Take(_ context.Context, bytes int) error { m.bytes += bytes; return nil }

// liar answers for a vhost in which each of some exchanges has a certain table of arguments.
func liar(t *testing.T, rows int, arguments string) *broker.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/exchanges"):
			_, _ = io.WriteString(w, `[{"name":"amq.direct","type":"direct"}`)
			for i := range rows {
				_, _ = io.WriteString(w, `,{"name":"`+strings.Repeat("x", i+1)+`","arguments":`+arguments+`}`)
			}
			_, _ = io.WriteString(w, `]`)
		case r.URL.Path == "/api/cluster-name":
			_, _ = io.WriteString(w, `{"name":"rabbit@liar"}`)
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}))
	t.Cleanup(server.Close)
	client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// They were counted as their text, and took sixty times as much: the answers of one broker ended the manager.
func TestMeter_CountsWhatNestedTablesTake(t *testing.T) {
	for name, table := range map[string]string{
		"lists in lists":   `{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"b":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		"tables in tables": `{"a":` + strings.Repeat(`{"":`, 9000) + "1" + strings.Repeat("}", 9000) + `}`,
		"many tables":      `{"a":[` + strings.Repeat(`{},`, 20000) + `{}]}`,
		"short tables":     `{` + strings.Repeat(`"`+"a"+`":[[[[[[[[]]]]]]]],`, 1000) + `"b":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			client := liar(t, 70, table) // a few MB of text
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			meter := &taken{}
			observed, err := client.Observe(broker.WithMeter(t.Context(), meter))
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			took := int(after.HeapAlloc) - int(before.HeapAlloc)
			runtime.KeepAlive(observed)
			if took > 2*meter.bytes+1<<20 { // the client and its connection besides
				t.Errorf("%d MB are kept where the meter counts %d MB", took>>20, meter.bytes>>20)
			}
		})
	}
}

// What others have bound is made anew elsewhere with the arguments that it has.
func TestNested_KeepsTablesAsTheyAre(t *testing.T) {
	observed, err := liar(t, 1, `{"b":{"z":1,"a":[1.0,{"y":null}]},"a":12345678901234567,"c":["`+strings.Repeat("x", 2000)+`"]}`).Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(observed.Exchanges["x"].Arguments)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"a":12345678901234567,"b":{"a":[1.0,{"y":null}],"z":1},"c":["` + strings.Repeat("x", 2000) + `"]}`; string(text) != want {
		t.Errorf("got %.100s…, want %.100s…", text, want)
	}
}
