package ledger_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func page(t *testing.T, url string) ledger.Page {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var page ledger.Page
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	return page
}

func TestBook_KeepsShopsApartAndReadsInParts(t *testing.T) {
	server := httptest.NewServer(ledger.NewBook(func() time.Time { return noon }))
	defer server.Close()
	reporter := ledger.NewReporter(server.URL)
	written := []ledger.Entry{{Message: "a", Attempt: 1, Status: 503}, {Message: "a", Attempt: 2, Status: 200, Queue: "orders"}}
	for _, entry := range written {
		if err := reporter.Report(t.Context(), "north", entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := reporter.Report(t.Context(), "south", ledger.Entry{Message: "b", Attempt: 1, Status: 200}); err != nil {
		t.Fatal(err)
	}
	for i := range written {
		written[i].At = noon
	}
	withoutCall := func(entries []ledger.Entry) []ledger.Entry {
		for i := range entries {
			entries[i].Call = ""
		}
		return entries
	}
	cases := map[string]struct {
		path string
		want []ledger.Entry
	}{
		"all of a shop":               {"/shops/north", written},
		"from the second on":          {"/shops/north?from=1", written[1:]},
		"beyond the end":              {"/shops/north?from=7", nil},
		"a shop nobody reported from": {"/shops/west", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := withoutCall(page(t, server.URL+tc.path).Entries); !slices.Equal(got, tc.want) {
				t.Errorf("entries are %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestBook_HasAnEpochOfItsOwn(t *testing.T) {
	first, second := httptest.NewServer(ledger.NewBook(time.Now)), httptest.NewServer(ledger.NewBook(time.Now))
	defer first.Close()
	defer second.Close()
	if a, b := page(t, first.URL+"/shops/x").Epoch, page(t, second.URL+"/shops/x").Epoch; a == b || a == "" {
		t.Errorf("epochs are %q and %q, want two", a, b)
	}
}

func TestReporter_ReportsOnceToABookThatStumbles(t *testing.T) {
	book := ledger.NewBook(time.Now)
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case calls.Add(1) == 1: // not taken
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case calls.Load() == 2: // taken, and the answer is lost
			book.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		book.ServeHTTP(w, r)
	}))
	defer server.Close()
	if err := ledger.NewReporter(server.URL).Report(t.Context(), "north", ledger.Entry{Message: "a"}); err != nil {
		t.Fatal(err)
	}
	if got := page(t, server.URL+"/shops/north").Entries; len(got) != 1 {
		t.Errorf("%d entries, want 1", len(got))
	}
}
