package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProxy_TellsSnapshotsAndWritesFromOtherRequests(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.EscapedPath())
	}))
	defer server.Close()
	target, err := url.Parse(server.URL)
	must(t, err)
	p, err := startProxy(target)
	must(t, err)
	defer func() { _ = p.server.Close() }()
	requests := []string{"GET /api/queues/a%2Fb", "GET /api/queues/a/one", "PUT /api/queues/a/one", "DELETE /api/bindings/a", "GET /api/bindings/a"}
	for _, request := range requests {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, http.NoBody)
		must(t, err)
		response, err := http.DefaultClient.Do(r)
		must(t, err)
		must(t, response.Body.Close())
	}
	seen := p.seen()
	if seen[listing] != 1 || seen.writes() != 2 {
		t.Errorf("seen %v", seen)
	}
	if strings.Join(asked, ",") != strings.Join(requests, ",") {
		t.Errorf("passed on were %q", asked)
	}
	if since := p.seen().since(seen); since.total() != 0 {
		t.Errorf("nothing was asked since, but %v", since)
	}
}

func TestCluster_CountsWritesWithoutLeases(t *testing.T) {
	c := &cluster{folder: t.TempDir()}
	none, err := c.written()
	must(t, err)
	if none.total() != 0 {
		t.Errorf("there is no log, but %v", none)
	}
	log := `{"verb":"patch","objectRef":{"resource":"transports","subresource":"status"}}
{"verb":"update","objectRef":{"resource":"leases"}}
{"verb":"patch","objectRef":{"resource":"configmaps"}}
{"verb":"patch","objectRef":{"resour`
	must(t, os.WriteFile(filepath.Join(c.folder, "audit.log"), []byte(log), 0o600))
	got, err := c.written()
	must(t, err)
	if got.total() != 2 || got["patch transports/status"] != 1 || got["patch configmaps"] != 1 {
		t.Errorf("counted %v", got)
	}
}

func TestResult_HoldsUpToItsLimit(t *testing.T) {
	tests := map[string]struct {
		result result
		holds  bool
	}{
		"less than allowed":          {limited("", 10, 14, 1.5), true},
		"more than allowed":          {limited("", 10, 16, 1.5), false},
		"nothing, as it is to be":    {limited("", 0, 0, 0), true},
		"something, where none must": {limited("", 0, 1, 0), false},
		"only to be seen":            {shown("", 1, 100), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.result.holds() != tt.holds {
				t.Errorf("%+v", tt.result)
			}
		})
	}
}

func TestLoad_GivesTheFirstPolicyToAFifthOfTheTransports(t *testing.T) {
	for _, transports := range []int{5, 23, 1000} {
		l, users := &load{transports: transports, vhosts: 1, policies: 20}, 0
		for i := range transports {
			if l.policyOf(i) == policyName(0) {
				users++
			}
		}
		if users != l.users() || users < transports/usersOfFirst {
			t.Errorf("%d of %d, told are %d", users, transports, l.users())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
