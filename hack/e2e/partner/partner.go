package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
)

// Headers by which a message says what becomes of it. Workers pass a message's headers on.
const (
	// answerHeader holds the answer to each attempt, separated by commas; the last one repeats. An answer is a status, or
	// "eat": take memory until the kernel ends the process.
	answerHeader = "E2e-Answer"
	// pauseHeader is how long each answer takes.
	pauseHeader = "E2e-Pause"

	eat = "eat"
	// mouthful is what is eaten at a time.
	mouthful = 4 << 20
)

// partner handles the messages of any number of shops: POST /SHOP. Every answer stands in the ledger before it is given.
type partner struct {
	ledger *ledger.Reporter

	mu    sync.Mutex
	eaten [][]byte
}

func newPartner(to *ledger.Reporter) http.Handler {
	p := &partner{ledger: to}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{shop}", p.handle)
	return mux
}

func (p *partner) handle(w http.ResponseWriter, r *http.Request) {
	// To the end, so that the server notices a caller that goes away.
	_, _ = io.Copy(io.Discard, r.Body)
	attempt, err := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
	if err != nil {
		http.Error(w, "no number in Redrive-Attempt", http.StatusBadRequest)
		return
	}
	answer, pause, err := rules(r.Header, attempt)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(pause):
	case <-r.Context().Done():
		return // nobody waits for the answer, so the message was not handled
	}
	if answer == eat {
		p.eat()
	}
	status, err := strconv.Atoi(answer)
	if err != nil {
		http.Error(w, fmt.Sprintf("%q is no answer", answer), http.StatusBadRequest)
		return
	}
	entry := ledger.Entry{Message: r.Header.Get("Redrive-Message-Id"), Attempt: attempt, Status: status, Queue: r.Header.Get("Redrive-Queue")}
	if err := p.ledger.Report(r.Context(), r.PathValue("shop"), entry); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
}

// rules of a message for one of its attempts.
func rules(header http.Header, attempt int) (answer string, pause time.Duration, err error) {
	answer = strconv.Itoa(http.StatusOK)
	if script := header.Get(answerHeader); script != "" {
		answers := strings.Split(script, ",")
		answer = answers[min(max(attempt, 1), len(answers))-1]
	}
	if text := header.Get(pauseHeader); text != "" {
		if pause, err = time.ParseDuration(text); err != nil {
			return "", 0, fmt.Errorf("header %s: %w", pauseHeader, err)
		}
	}
	return answer, pause, nil
}

// eat does not return: the kernel ends the process at its container's limit.
func (p *partner) eat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		food := make([]byte, mouthful)
		for i := range food {
			food[i] = byte(i) // memory that is never written to takes none
		}
		p.eaten = append(p.eaten, food)
	}
}
