package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
)

func TestRules_SayAnswerAndPauseOfAnAttempt(t *testing.T) {
	cases := map[string]struct {
		script, pause string
		attempt       int
		answer        string
		wait          time.Duration
		broken        bool
	}{
		"nothing said: success":             {attempt: 1, answer: "200"},
		"one answer for all attempts":       {script: "422", attempt: 9, answer: "422"},
		"an answer for each attempt":        {script: "503,503,200", attempt: 2, answer: "503"},
		"the last one repeats":              {script: "503,503,200", attempt: 5, answer: "200"},
		"an attempt that cannot be":         {script: "503,200", attempt: 0, answer: "503"},
		"memory":                            {script: "eat,200", attempt: 1, answer: "eat"},
		"a pause":                           {pause: "50ms", attempt: 1, answer: "200", wait: 50 * time.Millisecond},
		"a pause that is none is a mistake": {pause: "soon", attempt: 1, broken: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			header := http.Header{}
			header.Set(answerHeader, tc.script)
			header.Set(pauseHeader, tc.pause)
			answer, wait, err := rules(header, tc.attempt)
			if answer != tc.answer || wait != tc.wait || (err != nil) != tc.broken {
				t.Errorf("rules are %q, %s, %v", answer, wait, err)
			}
		})
	}
}

func TestPartner_ReportsAnAnswerBeforeItIsGiven(t *testing.T) {
	book := httptest.NewServer(ledger.NewBook(time.Now))
	defer book.Close()
	server := httptest.NewServer(newPartner(ledger.NewReporter(book.URL)))
	defer server.Close()
	for attempt, want := range []int{503, 200} {
		request, err := http.NewRequest(http.MethodPost, server.URL+"/north", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Redrive-Message-Id", "a")
		request.Header.Set("Redrive-Attempt", []string{"1", "2"}[attempt])
		request.Header.Set("Redrive-Header-"+answerHeader, "503,200")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("attempt %d is answered with %d, want %d", attempt+1, response.StatusCode, want)
		}
	}
	var page ledger.Page
	get(t, book.URL+"/shops/north", &page)
	statuses := make([]int, 0, len(page.Entries))
	for _, entry := range page.Entries {
		statuses = append(statuses, entry.Status)
	}
	if !slices.Equal(statuses, []int{503, 200}) {
		t.Errorf("the ledger has %v", statuses)
	}
}

func TestTap_PassesRequestsOnAndNotesThem(t *testing.T) {
	var seen []string
	broker := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		seen = append(seen, user+" "+r.Method+" "+r.URL.EscapedPath())
	}))
	defer broker.Close()
	handler, err := newTap(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		request, err := http.NewRequest(method, server.URL+"/api/queues/a%2Fb/orders", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.SetBasicAuth("shop", "secret")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if want := []string{"shop GET /api/queues/a%2Fb/orders", "shop PUT /api/queues/a%2Fb/orders"}; !slices.Equal(seen, want) {
		t.Errorf("the broker saw %q, want %q", seen, want)
	}
	var noted []string
	get(t, server.URL+tapPath, &noted)
	if want := []string{"GET /api/queues/a%2Fb/orders", "PUT /api/queues/a%2Fb/orders"}; !slices.Equal(noted, want) {
		t.Errorf("noted are %q, want %q", noted, want)
	}
}

func get(t *testing.T, url string, into any) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}
