package clusterinfo

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestClock_IsThatOfTheAPIServer(t *testing.T) {
	t.Parallel()
	var ahead time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/odd" {
			w.Header().Set("Date", "today")
			return
		}
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	clock := ClockOf(config)
	reader, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := reader.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	tells := func(what string, clock *Clock, want time.Duration) {
		t.Helper()
		if got := time.Until(clock.Now()); (got - want).Abs() > time.Minute {
			t.Errorf("%s: it is ahead by %s, want %s", what, got, want)
		}
	}
	tells("no clock", nil, 0)
	tells("nothing was asked", clock, 0)
	ahead = 3 * time.Hour
	ask("/")
	tells("this machine is behind", clock, ahead)
	ask("/odd")
	tells("an answer tells no time", clock, ahead)
	ahead = -15 * time.Minute
	ask("/")
	tells("this machine is ahead", clock, ahead)
}
