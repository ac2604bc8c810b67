package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/hack/e2e/ledger"
)

// Headers by which a message says what becomes of it. Workers pass a message's headers on.
const (
	// answerHeader holds the answer to each attempt, separated by commas; the last one repeats. An answer is a status, or
	// "eat": take memory until the kernel ends the process, or "die": end it at once.
	answerHeader = "E2e-Answer"
	// pauseHeader is how long each answer takes.
	pauseHeader = "E2e-Pause"

	eat = "eat"
	die = "die"
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
	mux.HandleFunc("POST /{shop}", p.serve)
	return mux
}

func (p *partner) serve(w http.ResponseWriter, r *http.Request) {
	// To the end, so that the server notices a caller that goes away.
	_, _ = io.Copy(io.Discard, r.Body)
	attempt, err := strconv.Atoi(r.Header.Get("Redrive-Attempt"))
	if err != nil {
		http.Error(w, "no number in Redrive-Attempt", http.StatusBadRequest)
		return
	}
	entry := ledger.Entry{Message: r.Header.Get("Redrive-Message-Id"), Attempt: attempt, Queue: r.Header.Get("Redrive-Queue")}
	status, err := p.answer(r.Context(), r.PathValue("shop"), r.Header, entry)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
}

// answer makes an attempt by the rules of its message, and returns the status that stands in the ledger then.
func (p *partner) answer(ctx context.Context, shop string, header http.Header, entry ledger.Entry) (status int, err error) {
	answer, pause, err := rules(header, entry.Attempt)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return 0, fmt.Errorf("nobody waits for the answer: %w", ctx.Err()) // so the message was not handled
	}
	switch answer {
	case eat:
		p.eat()
	case die:
		kill()
	}
	if entry.Status, err = strconv.Atoi(answer); err != nil {
		return 0, fmt.Errorf("%q is no answer", answer)
	}
	return entry.Status, p.ledger.Report(ctx, shop, entry)
}

// rules of a message for one of its attempts.
func rules(header http.Header, attempt int) (answer string, pause time.Duration, err error) {
	answer = strconv.Itoa(http.StatusOK)
	if script := ofMessage(header, answerHeader); script != "" {
		answers := strings.Split(script, ",")
		answer = answers[min(max(attempt, 1), len(answers))-1]
	}
	if text := ofMessage(header, pauseHeader); text != "" {
		if pause, err = time.ParseDuration(text); err != nil {
			return "", 0, fmt.Errorf("header %s: %w", pauseHeader, err)
		}
	}
	return answer, pause, nil
}

// ofMessage returns a header of the message; a worker from before an upgrade passes it on without a prefix.
func ofMessage(header http.Header, name string) string {
	return cmp.Or(header.Get("Redrive-Header-"+name), header.Get(name))
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

// killed is the exit code of what the kernel killed, in a shell.
const killed = 137

// kill ends this process as the kernel does.
func kill() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	os.Exit(killed) // the first process of a container cannot kill itself
}
