// Package ledger counts what partners of the end-to-end suite were asked and what they answered. It is the outside view:
// the operator and the workers take no part in it.
package ledger

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Entry is one attempt at one message, written before it is answered.
type Entry struct {
	// Call tells one request to a partner from another; an entry that is reported twice counts once.
	Call string `json:"call"`
	// Message is the id of the message.
	Message string `json:"message"`
	// Attempt is its number as the worker counts, 1 for the first.
	Attempt int `json:"attempt"`
	// Status that is answered.
	Status int `json:"status"`
	// Queue that the message came from.
	Queue string `json:"queue,omitempty"`
	// At is when the ledger took the entry: one clock for all partners.
	At time.Time `json:"at,omitzero"`
}

// Page is what a ledger holds about one shop.
type Page struct {
	// Epoch is another one after each start of the ledger: what it held before is gone then.
	Epoch string `json:"epoch"`
	// Entries in the order in which they came, from the one that was asked for.
	Entries []Entry `json:"entries"`
}

// Book is a ledger in memory. It serves POST /shops/NAME with an Entry and GET /shops/NAME?from=N with a Page.
type Book struct {
	epoch string
	now   func() time.Time
	mux   *http.ServeMux

	mu    sync.Mutex
	shops map[string][]Entry
	calls map[string]bool
}

// NewBook returns an empty ledger.
func NewBook(now func() time.Time) *Book {
	b := &Book{epoch: rand.Text(), now: now, mux: http.NewServeMux(), shops: map[string][]Entry{}, calls: map[string]bool{}}
	b.mux.HandleFunc("POST /shops/{shop}", b.write)
	b.mux.HandleFunc("GET /shops/{shop}", b.read)
	return b
}

// ServeHTTP implements http.Handler.
func (b *Book) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.mux.ServeHTTP(w, r) }

func (b *Book) write(w http.ResponseWriter, r *http.Request) {
	var entry Entry
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&entry); err != nil {
		http.Error(w, "not an entry: "+err.Error(), http.StatusBadRequest)
		return
	}
	shop := r.PathValue("shop")
	b.mu.Lock()
	if !b.calls[entry.Call] {
		b.calls[entry.Call] = true
		entry.At = b.now()
		b.shops[shop] = append(b.shops[shop], entry)
	}
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (b *Book) read(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.FormValue("from"))
	if err != nil || from < 0 {
		from = 0
	}
	b.mu.Lock()
	entries := b.shops[r.PathValue("shop")]
	page := Page{Epoch: b.epoch, Entries: slices.Clone(entries[min(from, len(entries)):])}
	b.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page) //nolint:errchkjson // a reader that went away asks again
}
