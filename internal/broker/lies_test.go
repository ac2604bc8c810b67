package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// sane answers as the management API of a vhost with one queue does.
func sane(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPut || r.Method == http.MethodPost:
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case strings.HasPrefix(r.URL.Path, "/api/cluster-name"):
		_, _ = io.WriteString(w, `{"name":"rabbit@shop"}`)
	case strings.HasPrefix(r.URL.Path, "/api/exchanges/"):
		_, _ = io.WriteString(w, `[{"name":"","type":"direct"},{"name":"amq.direct","type":"direct","durable":true}]`)
	case strings.HasPrefix(r.URL.Path, "/api/bindings/"):
		_, _ = io.WriteString(w, `[{"source":"","destination":"q","destination_type":"queue","routing_key":"q"}]`)
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		_, _ = io.WriteString(w, `[{"name":"q","type":"quorum","durable":true}]`)
	default:
		_, _ = io.WriteString(w, `[]`)
	}
}

// body answers with a text in place of one path, and sanely elsewhere.
func body(path, contentType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, path) {
			sane(w, r)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text)
	}
}

func status(code int, contentType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Location", "https://u:"+password+"@login.example/?token="+password)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

// cut ends the connection in the middle of an answer.
func cut(reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"name\":\"rab")
		_ = buffer.Flush()
		if reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		_ = conn.Close()
	}
}

// repeated answers with a beginning, and then with the same for ever.
func repeated(begins, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, begins)
		for block := strings.Repeat(text, 1<<17/len(text)); err == nil; {
			_, err = io.WriteString(w, block)
		}
	}
}

func endless(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	block := []byte(strings.Repeat(`{"name":"`+password+`"},`, 1<<15))
	_, _ = io.WriteString(w, "[")
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

const page = `<html><body>Sign in, ` + password + `</body></html>`

func TestObserve_DoesNotBelieveAManagementAPIThatLies(t *testing.T) {
	cases := map[string]struct {
		answer http.HandlerFunc
		want   error
		text   string
	}{
		"an error":                     {status(500, "text/plain", password), broker.ErrUnreachable, "(500)"},
		"a refused login":              {status(401, "text/html", page), broker.ErrUnauthorized, "(401)"},
		"a page":                       {status(200, "text/html; charset=utf-8", page), broker.ErrGarbled, `(200): it is "text/html" and not JSON`},
		"a page that is not found":     {status(404, "text/html", page), broker.ErrGarbled, `(404): it is "text/html", and the management API says in JSON`},
		"a redirect to another host":   {status(302, "text/html", page), broker.ErrGarbled, `(302): it redirects to "login.example", and redirects are not followed: key management_uri`},
		"a permanent redirect":         {status(308, "text/html", page), broker.ErrGarbled, "(308)"},
		"another success":              {status(203, "application/json", "{}"), broker.ErrGarbled, "(203)"},
		"nothing":                      {status(200, "application/json", ""), broker.ErrGarbled, "it ends too early"},
		"half of an object":            {body("/api/cluster", "application/json", `{"name":"rab`), broker.ErrGarbled, "it ends too early"},
		"half of a list":               {body("/api/queues", "application/json", `[{"name":"q"},`), broker.ErrGarbled, "it ends too early"},
		"an answer that is cut off":    {cut(false), broker.ErrGarbled, "it ends too early"},
		"a connection that is reset":   {cut(true), broker.ErrUnreachable, "reset"},
		"an endless answer":            {endless, broker.ErrGarbled, "of another shape"},
		"an endless list":              {onPath("/api/queues", endless), broker.ErrGarbled, "more than 50000 rows"},
		"an endless row":               {onPath("/api/queues", repeated(`[{"name":"`, "aaaaaaaa")), broker.ErrGarbled, "a row of it is larger than 65536 bytes"},
		"endless space":                {onPath("/api/queues", repeated(`[`, "        ")), broker.ErrGarbled, "a row of it is larger than 65536 bytes"},
		"endless values":               {onPath("/api/queues", repeated(`[`, `{"name":"q","arguments":{"a":[`+strings.Repeat("1,", 300)+`1]}},`)), broker.ErrGarbled, "more than 50000 rows, or 1500000 values"},
		"a list in place of an object": {body("/api/cluster", "application/json", `[]`), broker.ErrGarbled, "of another shape"},
		"an object in place of a list": {body("/api/queues", "application/json", `{}`), broker.ErrGarbled, "of another shape"},
		"null in place of a list":      {body("/api/queues", "application/json", ` null`), broker.ErrGarbled, "of another shape"},
		"a name that is a number":      {body("/api/queues", "application/json", `[{"name":7}]`), broker.ErrGarbled, "of another shape"},
		"queues without a name":        {body("/api/queues", "application/json", `[{}]`), broker.ErrGarbled, "of another shape"},
		"queues that are null":         {body("/api/queues", "application/json", `[null]`), broker.ErrGarbled, "of another shape"},
		"policies without a name":      {body("/api/policies", "application/json", `[{}]`), broker.ErrGarbled, "of another shape"},
		"bindings without an end":      {body("/api/bindings", "application/json", `[{}]`), broker.ErrGarbled, "of another shape"},
		"two answers in one":           {body("/api/queues", "application/json", `[{"name":"q","durable":true}] []`), broker.ErrGarbled, "something follows its end"},
		"a queue with a long name":     {body("/api/queues", "application/json", `[{"name":"`+strings.Repeat("q", 256)+`","durable":true}]`), broker.ErrGarbled, "a name of more than 255 bytes"},
		"a cluster with a long name":   {body("/api/cluster", "application/json", `{"name":"`+strings.Repeat("c", 256)+`"}`), broker.ErrGarbled, "a name of more than 255 bytes"},
		"a cluster without a name":     {body("/api/cluster", "application/json", `{}`), broker.ErrGarbled, "no name"},
		"a vhost without exchanges":    {body("/api/exchanges", "application/json", `[]`), broker.ErrGarbled, "lacks the exchange amq.direct"},
		"bindings to queues, but no queues": {
			body("/api/queues", "application/json", `[]`), broker.ErrGarbled, "it names 0 queues, and the list of bindings names 1",
		},
		"a binding of Redrive's to a queue that is not listed": {
			body("/api/bindings", "application/json", `[{"source":"","destination":"q","destination_type":"queue"},`+
				`{"source":"e","destination":"gone","destination_type":"queue","arguments":{"redrive-owner":"c/n/t"}}]`),
			broker.ErrGarbled, "it lacks queue gone, to which exchange e is bound",
		},
		"a binding of a lane that is not listed": {
			body("/api/bindings", "application/json", `[{"source":"","destination":"q","destination_type":"queue"},`+
				`{"source":"e","destination":"lane","destination_type":"queue","arguments":{"x-match":"all","redrive-lane":"1s"}}]`),
			broker.ErrGarbled, "it lacks queue lane, to which exchange e is bound",
		},
		"an exchange with a policy, but no policies": {
			body("/api/exchanges", "application/json", `[{"name":"amq.direct","type":"direct"},{"name":"e","type":"direct","policy":"p"}]`),
			broker.ErrGarbled, "it is empty, and exchange e has a policy",
		},
		"queues, but nothing bound": {
			body("/api/bindings", "application/json", `[]`), broker.ErrGarbled, "it names 1 queues, and the list of bindings names 0",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			client, _ := against(t, "", c.answer)
			_, err := client.Observe(context.Background())
			text := fmt.Sprint(err)
			if !errors.Is(err, c.want) || !strings.Contains(text, c.text) || !strings.HasPrefix(text, "read the ") {
				t.Errorf("want %v with %q, got %v", c.want, c.text, err)
			}
			if errors.Is(err, broker.ErrGarbled) && !errors.Is(err, broker.ErrUnreachable) {
				t.Error("what is garbled must count as unreachable")
			}
			if strings.Contains(text, password) || len(text) > 1000 {
				t.Errorf("it shows too much: %s", text)
			}
		})
	}
}

// onPath gives one path to a handler and answers sanely elsewhere.
func onPath(path string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, path) {
			answer(w, r)
			return
		}
		sane(w, r)
	}
}

func TestObserve_BelievesASaneManagementAPI(t *testing.T) {
	client, _ := against(t, "", sane)
	observed, err := client.Observe(context.Background())
	if err != nil || len(observed.Queues) != 1 || observed.Cluster != "rabbit@shop" {
		t.Errorf("got %+v, %v", observed, err)
	}
}

func TestObserve_AcceptsTheFirstQueueOfAVHost(t *testing.T) {
	lists := 0
	client, _ := against(t, "", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/bindings/") {
			if lists++; lists == 1 { // before the queue was made
				_, _ = io.WriteString(w, "[]")
				return
			}
		}
		sane(w, r)
	})
	if observed, err := client.Observe(context.Background()); err != nil || len(observed.Queues) != 1 || lists != 2 {
		t.Errorf("got %+v, %v after %d lists", observed, err, lists)
	}
}

func TestObserve_AcceptsThatTheLastPolicyGoesMeanwhile(t *testing.T) {
	reads := 0
	client, _ := against(t, "", func(w http.ResponseWriter, r *http.Request) {
		if reads++; reads == 2 { // the exchanges, before the policy was deleted
			_, _ = io.WriteString(w, `[{"name":"amq.direct","type":"direct"},{"name":"e","type":"direct","policy":"p"}]`)
			return
		}
		sane(w, r)
	})
	if observed, err := client.Observe(context.Background()); err != nil || len(observed.Policies) != 0 || observed.Exchanges["e"].Policy != "" {
		t.Errorf("got %+v, %v", observed, err)
	}
}

func TestObserve_AcceptsABindingToAQueueThatHasJustGone(t *testing.T) {
	client, _ := against(t, "", body("/api/bindings", "application/json", `[{"source":"","destination":"q","destination_type":"queue"},`+
		`{"source":"e","destination":"amq.gen-1","destination_type":"queue"}]`))
	if observed, err := client.Observe(context.Background()); err != nil || len(observed.Bindings) != 1 {
		t.Errorf("got %+v, %v", observed, err)
	}
}

func TestClient_CountsAWriteOnlyByTheManagementAPIsAnswer(t *testing.T) {
	queue := topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{Name: "q", Type: "quorum"}}
	binding := topology.Step{Action: topology.ActionDelete, Binding: &topology.Binding{Source: "e", Destination: "q", PropertiesKey: "k"}}
	writes := map[string]func(*broker.Client) error{
		"a queue is made":      func(c *broker.Client) error { _, err := c.Apply(context.Background(), queue); return err },
		"a binding is deleted": func(c *broker.Client) error { _, err := c.Apply(context.Background(), binding); return err },
		"a queue is deleted":   func(c *broker.Client) error { return c.DeleteQueue(context.Background(), "q", false, false) },
	}
	for _, answer := range []http.HandlerFunc{
		status(200, "text/html", page), status(302, "text/html", page), status(404, "text/html", page), status(202, "application/json", "{}"),
	} {
		for name, write := range writes {
			client, _ := against(t, "", answer)
			if err := write(client); !errors.Is(err, broker.ErrGarbled) || strings.Contains(fmt.Sprint(err), password) {
				t.Errorf("%s: want ErrGarbled, got %v", name, err)
			}
		}
	}
	for name, write := range writes {
		client, _ := against(t, "", sane)
		if err := write(client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClient_FollowsNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	client, _ := against(t, "", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	_, err := client.Observe(context.Background())
	_, stepErr := client.Apply(context.Background(), topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{Name: "q"}})
	if !errors.Is(err, broker.ErrGarbled) || !errors.Is(stepErr, broker.ErrGarbled) {
		t.Errorf("got %v and %v", err, stepErr)
	}
}

func TestClient_WaitsForASlowAnswerAsItsContextAllows(t *testing.T) {
	client, _ := against(t, "", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(200 * time.Millisecond):
			sane(w, r)
		case <-r.Context().Done():
		}
	})
	if _, err := client.Observe(context.Background()); err != nil {
		t.Errorf("a broker that is slow: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := client.Observe(ctx)
	if !errors.Is(err, broker.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("a broker that is too slow: %v", err)
	}
}
