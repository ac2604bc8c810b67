package broker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// Go takes 10 MB of headers, from each server, and nothing else counts them.
func TestClient_BoundsHeadersOfAnAnswer(t *testing.T) {
	t.Parallel()
	for size, answers := range map[int]bool{4 << 10: true, 16 << 10: false} {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X-Long", strings.Repeat("x", size))
		}))
		defer server.Close()
		client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "guest", Password: "guest", VHost: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Ping(t.Context()); (err == nil) != answers {
			t.Errorf("%d bytes of headers: %v", size, err)
		}
	}
}
