package testtransport_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testtransport"
)

// question makes a request, and gives the status and the answer, or the error.
func question(t *testing.T, ctx context.Context, method, address string) (status int, text string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	whole, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(whole), err
}

// manager is a management API with two queues that counts the requests it carries out, and says how many these were.
func manager(t *testing.T) (*testtransport.Management, *atomic.Int64) {
	t.Helper()
	var carried atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if n := carried.Add(1); n == 1 {
			_, _ = io.WriteString(w, `[{"name":"a"}]`)
		} else {
			_, _ = io.WriteString(w, `[{"name":"a"},{"name":"b"}]`)
		}
	}))
	t.Cleanup(server.Close)
	return testtransport.NewManagement(t, server.URL), &carried
}

func TestManagement_AnswersByItsScript(t *testing.T) {
	for name, c := range map[string]struct {
		lie testtransport.Lie
		// want is what it says after it has told the truth once; an error where it is empty.
		want string
		// carried is true where the request is carried out.
		carried bool
	}{
		"the truth":     {nil, `[{"name":"a"},{"name":"b"}]`, true},
		"an entry less": {testtransport.Without(func(row map[string]any) bool { return row["name"] == "a" }), `[{"name":"b"}]`, true},
		"an empty list": {testtransport.Empty(), `[]`, true},
		"old":           {testtransport.Old(), `[{"name":"a"}]`, false},
		"503":           {testtransport.Says(http.StatusServiceUnavailable, "text/plain", "no"), "no", false},
		"half":          {testtransport.Half(), "", true},
		"nothing":       {testtransport.Nothing(), "", true},
		"a bomb":        {testtransport.Bomb(1), "[" + strings.Repeat(" ", 1<<20) + "]", false},
	} {
		t.Run(name, func(t *testing.T) {
			m, carried := manager(t)
			if _, text, err := question(t, t.Context(), http.MethodGet, m.URL+"/api/queues/v"); err != nil || text != `[{"name":"a"}]` {
				t.Fatalf("it says %q, %v", text, err)
			}
			m.Answer(func(*http.Request) testtransport.Lie { return c.lie })
			_, text, err := question(t, t.Context(), http.MethodGet, m.URL+"/api/queues/v")
			if (c.want == "") != (err != nil) || err == nil && text != c.want {
				t.Errorf("it says %.60q, %v; want %.60q", text, err, c.want)
			}
			if got := carried.Load() > 1; got != c.carried {
				t.Errorf("the request was carried out: %v, want %v", got, c.carried)
			}
		})
	}
}

func TestHeld_CarriesARequestOutAfterItsClientGaveUp(t *testing.T) {
	m, carried := manager(t)
	release := make(chan struct{})
	m.Answer(func(r *http.Request) testtransport.Lie {
		if r.Method == http.MethodDelete {
			return testtransport.Held(release)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := question(t, ctx, http.MethodDelete, m.URL+"/api/queues/v/q"); err == nil || carried.Load() > 0 {
		t.Fatalf("want it held, got %v, carried out %d times", err, carried.Load())
	}
	close(release)
	testtransport.Eventually(t, "the request to be carried out", func() bool { return carried.Load() == 1 })
}
