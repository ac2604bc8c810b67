package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

const password = "s3cr3t-p4ss"

// against returns a client of a server that answers in place of a broker.
func against(t *testing.T, path string, answer http.HandlerFunc) (*broker.Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	client, err := broker.New(broker.Config{ManagementURL: server.URL + path, Username: "u", Password: password, VHost: "a/b c"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, server
}

func TestError_HasTheKindAndReasonOfAnAnswer(t *testing.T) {
	cases := []struct {
		name   string
		status int
		body   string
		want   error
		text   string
	}{
		{"a wrong password", 401, `{"error":"not_authorized","reason":"Login failed"}`, broker.ErrUnauthorized, "Login failed"},
		{"a login without the tag", 401, `{"error":"not_authorised","reason":"Not management user"}`, broker.ErrForbidden, "Not management user; the command for it: rabbitmqctl set_user_tags u policymaker"},
		{
			"a vhost without rights", 401, `{"error":"not_authorised","reason":"User not authorised to access virtual host"}`,
			broker.ErrForbidden, "virtual host; the command for it: rabbitmqctl set_permissions -p 'a/b c' u '.*' '.*' '.*'",
		},
		{"a right that is missing", 403, `{"error":"not_authorised","reason":"ACCESS_REFUSED"}`, broker.ErrForbidden, "ACCESS_REFUSED"},
		{"what is not there", 404, `{"error":"Object Not Found","reason":"Not Found"}`, broker.ErrNotFound, "Not Found"},
		{
			"other arguments", 400, `{"error":"bad_request","reason":"inequivalent arg 'x-dead-letter-exchange' for queue"}`,
			broker.ErrConflict, "inequivalent arg 'x-dead-letter-exchange'",
		},
		{"a limit of the broker", 400, `{"error":"bad_request","reason":"queue limit is reached"}`, broker.ErrRefused, "queue limit is reached"},
		{"a broker without quorum", 500, `{"error":"internal_server_error","reason":"timeout"}`, broker.ErrUnreachable, "timeout"},
		{"a redirect", 302, ``, broker.ErrGarbled, "it redirects to another path"},
		{"a proxy's page", 502, "<html>" + strings.Repeat("bad gateway ", 10000), broker.ErrUnreachable, "(502)"},
		{"a reason over several lines", 400, `{"error":"bad_request","reason":"Validation failed\n\nnot a limit\n"}`, broker.ErrRefused, "Validation failed not a limit"},
		{"something else than JSON", 200, "hello", broker.ErrUnreachable, "not what the management API gives"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			client, _ := against(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			_, err := client.Queue(context.Background(), "test")
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("want %v with %q, got %v", c.want, c.text, err)
			}
			if text := fmt.Sprint(err); !strings.HasPrefix(text, "read queue test: ") || len(text) > 1000 {
				t.Errorf("want what was done, and a bounded text; got %q", text)
			}
		})
	}
}

func TestError_HasOneTextForACutConnection(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0) // closes with a reset
		_ = conn.Close()
	}))
	t.Cleanup(server.Close)
	texts := map[string]bool{}
	for range 3 {
		client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "u", Password: password, VHost: "/"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Observe(context.Background())
		if !errors.Is(err, broker.ErrUnreachable) {
			t.Fatalf("want ErrUnreachable, got %v", err)
		}
		texts[err.Error()] = true
	}
	if len(texts) != 1 {
		t.Errorf("want one text, got %v", texts)
	}
}

func TestError_HoldsNoURLAndNoPassword(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + listener.Addr().String()
	_ = listener.Close()
	var texts []string
	for _, url := range []string{
		"http://u:" + password + "@127.0.0.1:1", "http://u:" + password + "@[::1", "ftp://" + password, closed, closed + "/" + password,
	} {
		client, err := broker.New(broker.Config{ManagementURL: url, Username: "u", Password: password, VHost: "/"})
		if err == nil {
			_, err = client.Observe(context.Background())
			if !errors.Is(err, broker.ErrUnreachable) {
				t.Errorf("want ErrUnreachable, got %v", err)
			}
			_, stepErr := client.Apply(context.Background(), topology.Step{
				Action: topology.ActionCreate, Queue: &topology.Queue{Name: "q", Type: "quorum"},
			})
			texts = append(texts, stepErr.Error())
		}
		texts = append(texts, err.Error())
	}
	config := broker.Config{Password: password}
	texts = append(texts, fmt.Sprintf("%v %+v %#v %s %d", config, config, config, config, config))
	asJSON, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	texts = append(texts, string(asJSON), config.LogValue().String())
	for _, text := range texts {
		if strings.Contains(text, password) || strings.Contains(text, "://") {
			t.Errorf("it shows too much: %s", text)
		}
	}
}

func TestClient_KeepsThePathOfItsURLAndEscapesNames(t *testing.T) {
	var paths []string
	client, _ := against(t, "/rabbit/", func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.Method+" "+r.URL.EscapedPath())
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, "[]")
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	ctx := context.Background()
	_ = client.DeleteQueue(ctx, "x/y %2F", true, true)
	_ = client.DeleteExchange(ctx, "é/e")
	want := []string{
		"DELETE /rabbit/api/queues/a%2Fb%20c/x%2Fy%20%252F",
		"GET /rabbit/api/exchanges/a%2Fb%20c/%C3%A9%2Fe/bindings/source",
		"GET /rabbit/api/exchanges/a%2Fb%20c/%C3%A9%2Fe/bindings/destination", "DELETE /rabbit/api/exchanges/a%2Fb%20c/%C3%A9%2Fe",
	}
	if strings.Join(paths, "\n") != strings.Join(want, "\n") {
		t.Errorf("want %q, got %q", want, paths)
	}
}

// A URL with nothing behind its "?" had each path of the management API in its query: the operator asked for a path that somebody else had chosen.
func TestNew_RefusesAManagementURLWithAQuery(t *testing.T) {
	for _, url := range []string{"http://h/a?", "http://h/?b=c", "http://h#d"} {
		if _, err := broker.New(broker.Config{ManagementURL: url, Username: "u", Password: password, VHost: "v"}); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
}

func TestClient_KeepsItsConnection(t *testing.T) {
	connections := map[string]bool{}
	client, _ := against(t, "", func(w http.ResponseWriter, r *http.Request) {
		connections[r.RemoteAddr] = true
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"name":"q"}`)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	for range 5 {
		if _, err := client.Queue(context.Background(), "q"); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Apply(context.Background(), topology.Step{
			Action: topology.ActionCreate, Queue: &topology.Queue{Name: "q", Type: "quorum"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(connections) != 1 {
		t.Errorf("want one connection for all requests, got %d", len(connections))
	}
}

func TestClient_EndsARequestWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	release := make(chan struct{})
	client, _ := against(t, "", func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	_, err := client.Apply(ctx, topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{Name: "q", Type: "quorum"}})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, broker.ErrUnreachable) {
		t.Errorf("want a cancelled request, got %v", err)
	}
}

func TestClient_CutsOffAnEndlessAnswer(t *testing.T) {
	client, _ := against(t, "", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"name":"`)
		block := []byte(strings.Repeat("x", 1<<20))
		for range 100 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	if _, err := client.Queue(context.Background(), "q"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("want a bounded answer, got %.200v", err)
	}
}

func TestQueue_UnderstandsWhatErlangWritesForNothing(t *testing.T) {
	client, _ := against(t, "", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"name":"q","arguments":[],"effective_policy_definition":null,"policy":null,"auto_delete":"undefined","message_stats":[]}`)
	})
	state, err := client.Queue(context.Background(), "q")
	if err != nil {
		t.Fatal(err)
	}
	if state.Messages != nil || len(state.Arguments) != 0 || state.Policy != "" || state.AutoDelete {
		t.Errorf("want a queue that is not counted yet, got %+v", state)
	}
}

func TestApply_RefusesToDeleteQueuesAndExchanges(t *testing.T) {
	client, _ := against(t, "", func(http.ResponseWriter, *http.Request) { t.Error("a request was made") })
	for _, step := range []topology.Step{
		{Action: topology.ActionDelete, Queue: &topology.Queue{Name: "q"}},
		{Action: topology.ActionDelete, Exchange: &topology.Exchange{Name: "e"}},
		{Action: topology.ActionDelete, Binding: &topology.Binding{Source: "e", Destination: "q"}},
		{Action: topology.ActionCreate},
	} {
		if _, err := client.Apply(context.Background(), step); err == nil {
			t.Errorf("%s: want a refusal", step)
		}
	}
}

func TestPing_AsksWithoutALogin(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		up     bool
	}{
		"a refusal is an answer":         {http.StatusUnauthorized, true},
		"so is anything but a failure":   {http.StatusNotFound, true},
		"a proxy before nothing is none": {http.StatusBadGateway, false},
		"nobody is none":                 {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, _, has := r.BasicAuth(); has {
					t.Error("it shows the login")
				}
				w.WriteHeader(c.status)
			}))
			defer server.Close()
			if c.status == 0 {
				server.Close()
			}
			client, err := broker.New(broker.Config{ManagementURL: server.URL, Username: "user", Password: "secret", VHost: "v"})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := client.Ping(t.Context()); (err == nil) != c.up || err != nil && !errors.Is(err, broker.ErrUnreachable) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// What may not be deleted may be somebody else's: nobody is to be told to grant rights on all names of the vhost.
func TestError_AdvisesNoRightsOnAllNamesWhereADeletionIsRefused(t *testing.T) {
	client, _ := against(t, "", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"not_authorised","reason":"Access refused."}`)
	})
	err := client.DeleteQueue(context.Background(), "theirs", false, false)
	if !errors.Is(err, broker.ErrForbidden) || strings.Contains(fmt.Sprint(err), "set_permissions") {
		t.Error(err)
	}
}
