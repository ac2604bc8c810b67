package handler_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
)

// realServer is a server of another language, as teams have them.
type realServer struct {
	handler  handler.Handler
	requests *bufio.Scanner
}

func startServer(t *testing.T, command ...string) *realServer {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("%s is not there: hack/languages.sh installs it, or says how; go test -short does without", command[0])
	}
	program := exec.CommandContext(t.Context(), command[0], command[1:]...)
	program.Stderr = os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	s := &realServer{requests: bufio.NewScanner(out)}
	s.requests.Buffer(nil, 1<<20)
	if !s.requests.Scan() {
		t.Fatalf("%v does not start: %v", command, s.requests.Err())
	}
	s.handler = post(t, s.requests.Text())
	return s
}

// send posts a message, and returns the headers of the request as the server had them.
func (s *realServer) send(t *testing.T, headers map[string]any) map[string][]string {
	t.Helper()
	if got := s.handler.Handle(t.Context(), handler.Request{ID: "id", Attempt: 1, Queue: "work", Headers: headers, Body: []byte("{}")}); got != nil {
		t.Fatal(show(got))
	}
	if !s.requests.Scan() {
		t.Fatal(s.requests.Err())
	}
	var seen map[string]string
	if err := json.Unmarshal(s.requests.Bytes(), &seen); err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string, len(seen))
	for name, value := range seen {
		all[name] = []string{value}
	}
	return all
}

// celery are the headers of a task that Celery 5 publishes.
func celery() map[string]any {
	return map[string]any{
		"lang": "py", "task": "shop.confirm", "id": "8e9c1b0e-6d0b-4f57-9a6e-0d6f6d1d2c3b", "shadow": nil, "eta": nil, "expires": nil, "group": nil,
		"group_index": nil, "retries": int64(0), "timelimit": []any{nil, nil}, "root_id": "8e9c1b0e-6d0b-4f57-9a6e-0d6f6d1d2c3b", "parent_id": nil,
		"argsrepr": "('é', 1)", "kwargsrepr": "{}", "origin": "gen4711@shop-5d9c", "ignore_result": false, "replaced_task_nesting": int64(0),
		"stamped_headers": nil, "stamps": map[string]any{},
	}
}

func TestHTTP_SendsHeadersThatOtherLanguagesTake(t *testing.T) {
	if testing.Short() {
		return // test-unit needs nothing but Go
	}
	many, large := map[string]any{}, map[string]any{"small": "x"}
	for i := range 100 {
		many[fmt.Sprintf("header-%03d", i)] = "x"
	}
	for i := range 17 {
		large[fmt.Sprintf("large-%02d", i)] = strings.Repeat("x", 1000)
	}
	odd := map[string]any{"X-Tenant": "acme", "x-tenant": "other", "größe": "10 %", "half": 0.5, "bytes": "\xff", "": []any{map[string]any{"a": true}}}
	for name, command := range map[string][]string{
		"Node":   {"node", "testdata/servers/server.mjs"},
		"Python": {"python3", "testdata/servers/server.py"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, command...)
			for name, headers := range map[string]map[string]any{"a hundred": many, "17 KB": large, "Celery's": celery(), "odd ones": odd} {
				seen := server.send(t, headers)
				decoded, err := public.DecodeHTTPHeaders(seen, public.HTTPHeaderPrefix)
				if err != nil {
					t.Fatal(err)
				}
				omitted, _, err := public.OmittedHTTPHeaders(seen)
				if err != nil || len(decoded)+omitted != len(headers) || (omitted > 0) != (len(headers) > 50 || name == "17 KB") {
					t.Errorf("%s: %d of %d arrive, %d are told to be omitted, %v", name, len(decoded), len(headers), omitted, err)
				}
				for name, value := range decoded {
					if !reflect.DeepEqual(value, headers[name]) {
						t.Errorf("%s arrives as %#v, want %#v", name, value, headers[name])
					}
				}
			}
		})
	}
}
