package broker_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"redrive.dev/redrive/internal/broker"
)

// RabbitMQ 3.10 answers so for a classic queue whose node is down.
func TestQueue_HasNoCountWhereItIsListedAndNotFound(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		page   string
		want   error
	}{
		"listed":             {http.StatusOK, `{"items":[{"name":"a.b","type":"classic","durable":true,"state":"down","messages":0}]}`, nil},
		"not listed":         {http.StatusOK, `{"items":[]}`, broker.ErrNotFound},
		"another is listed":  {http.StatusOK, `{"items":[{"name":"axb"}]}`, broker.ErrNotFound},
		"no vhost":           {http.StatusNotFound, `{"error":"Object Not Found","reason":"Not Found"}`, broker.ErrNotFound},
		"no list":            {http.StatusServiceUnavailable, ``, broker.ErrUnreachable},
		"a list of no shape": {http.StatusOK, `[]`, broker.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path == "/api/queues/v/a.b" {
					w.WriteHeader(http.StatusNotFound)
					_, _ = io.WriteString(w, `{"error":"Object Not Found","reason":"Not Found"}`)
					return
				}
				if pattern := r.URL.Query().Get("name"); r.URL.Path != "/api/queues/v" || pattern != `^a\.b$` {
					t.Errorf("it asks %s", r.URL)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.page)
			}))
			defer server.Close()
			client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "v"})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			state, err := client.Queue(t.Context(), "a.b")
			if !errors.Is(err, c.want) || err == nil && (state.Name != "a.b" || state.Messages != nil) {
				t.Errorf("%+v, %v; want %v", state, err, c.want)
			}
		})
	}
}
