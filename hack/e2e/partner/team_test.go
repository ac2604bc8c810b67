package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
	"redrive.dev/redrive/handler"
)

func TestTeam_AnswersAsTheMessageSays(t *testing.T) {
	book := httptest.NewServer(ledger.NewBook(time.Now))
	defer book.Close()
	t.Setenv(ledgerVariable, book.URL)
	t.Setenv(shopVariable, "north")
	h := newTeam()
	for attempt, want := range map[int64]handler.Failure{
		1: {Class: "Refusal", Status: http.StatusServiceUnavailable, Message: "answered with 503"},
		2: {},
	} {
		m := &handler.Message{ID: "a", Attempt: attempt, Headers: map[string]any{"e2e-answer": "503,200", "weight": 3}}
		if got := handler.FailureOf(h.Handle(t.Context(), m)); got != want {
			t.Errorf("attempt %d gives %+v, want %+v", attempt, got, want)
		}
	}
	var page ledger.Page
	get(t, book.URL+"/shops/north", &page)
	if len(page.Entries) != 2 {
		t.Errorf("the ledger has %+v", page.Entries)
	}
}

func TestGuarded_AnswersOnlyItsToken(t *testing.T) {
	t.Setenv(authorizationVariable, "Bearer of this")
	server := httptest.NewServer(guarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer of that": http.StatusUnauthorized, "Bearer of this": http.StatusOK} {
		request, err := http.NewRequest(http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", authorization)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("with %q the answer is %d, want %d", authorization, response.StatusCode, want)
		}
	}
}
