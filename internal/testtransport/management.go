package testtransport

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Management is a reverse proxy before a management API that answers by a script.
type Management struct {
	// URL that clients ask.
	URL string

	t      testing.TB
	truth  http.Handler
	mu     sync.Mutex
	script Script
	// seen are the first answers by URL, of which the older ones are told again.
	seen map[string]*httptest.ResponseRecorder
	late sync.WaitGroup
}

// Script says how a request is answered; nil is the truth.
type Script func(*http.Request) Lie

// Lie answers a request. What the truth is, it asks the management API itself.
type Lie func(m *Management, w http.ResponseWriter, r *http.Request)

// NewManagement leads to the management API at an address until the test ends, by a script that can be set anew.
func NewManagement(t testing.TB, target string) *Management {
	t.Helper()
	m := &Management{t: t, truth: behind(t, target), seen: map[string]*httptest.ResponseRecorder{}}
	server := httptest.NewServer(m)
	m.URL = server.URL
	t.Cleanup(func() {
		m.late.Wait()
		server.CloseClientConnections()
		server.Close()
	})
	return m
}

func behind(t testing.TB, target string) http.Handler {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal("the management URL is not a URL")
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Accept-Encoding") // whoever changes an answer reads it
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// Answer by a script from now on; nil is the truth.
func (m *Management) Answer(script Script) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script = script
}

// ServeHTTP answers as the script says.
func (m *Management) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	script := m.script
	m.mu.Unlock()
	if script != nil {
		if lie := script(r); lie != nil {
			lie(m, w, r)
			return
		}
	}
	tell(w, m.ask(r))
}

// ask the management API, and keep the first answer to each question.
func (m *Management) ask(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	m.truth.ServeHTTP(answer, r)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Method == http.MethodGet && m.seen[r.RequestURI] == nil {
		m.seen[r.RequestURI] = answer
	}
	return answer
}

func tell(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for key, values := range answer.Header() {
		if key != "Content-Length" {
			w.Header()[key] = values
		}
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// Changed changes an answer: its status and text, and its header in place.
func Changed(change func(status int, header http.Header, text []byte) (int, []byte)) Lie {
	return func(m *Management, w http.ResponseWriter, r *http.Request) {
		truth, lie := m.ask(r), httptest.NewRecorder()
		maps.Copy(lie.Header(), truth.Header())
		status, text := change(truth.Code, lie.Header(), truth.Body.Bytes())
		lie.WriteHeader(status)
		_, _ = lie.Write(text)
		tell(w, lie)
	}
}

// Without leaves rows out of a list. What is no list is told as it is.
func Without(leave func(row map[string]any) bool) Lie {
	return Changed(func(status int, _ http.Header, text []byte) (int, []byte) {
		var rows []map[string]any
		if json.Unmarshal(text, &rows) != nil || rows == nil {
			return status, text
		}
		if left, err := json.Marshal(slices.DeleteFunc(rows, leave)); err == nil {
			text = left
		}
		return status, text
	})
}

// Empty answers a list with none.
func Empty() Lie { return Without(func(map[string]any) bool { return true }) }

// Old answers what was told first, however long ago that is. A write is carried out.
func Old() Lie {
	return func(m *Management, w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		old := m.seen[r.RequestURI]
		m.mu.Unlock()
		if r.Method != http.MethodGet || old == nil {
			old = m.ask(r)
		}
		tell(w, old)
	}
}

// By lets another node answer.
func By(t testing.TB, target string) Lie {
	t.Helper()
	other := behind(t, target)
	return func(_ *Management, w http.ResponseWriter, r *http.Request) { other.ServeHTTP(w, r) }
}

// Says answers a text in place of the truth. The request is not carried out.
func Says(status int, contentType, text string) Lie {
	return func(_ *Management, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// Half carries the request out, and breaks off in the middle of the answer.
func Half() Lie {
	return func(m *Management, w http.ResponseWriter, r *http.Request) {
		answer := m.ask(r)
		text := answer.Body.Bytes()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(text)+1)) // so that its end is not taken for the end
		w.WriteHeader(answer.Code)
		_, _ = w.Write(text[:len(text)/2])
	}
}

// Nothing carries the request out, and cuts the connection in place of an answer.
func Nothing() Lie {
	return func(m *Management, _ http.ResponseWriter, r *http.Request) {
		m.ask(r)
		panic(http.ErrAbortHandler)
	}
}

// Bomb answers a list that is small on the wire and large in memory.
func Bomb(megabytes int) Lie {
	return func(_ *Management, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		defer func() { _ = packed.Close() }()
		_, _ = io.WriteString(packed, "[")
		spaces := bytes.Repeat([]byte(" "), 1<<20)
		for range megabytes {
			if _, err := packed.Write(spaces); err != nil {
				return
			}
		}
		_, _ = io.WriteString(packed, "]")
	}
}

// Held carries the request out only when it is released, whether its client still waits or not. It is released at the latest when
// the test ends, if the test closes the channel by then.
func Held(release <-chan struct{}) Lie {
	return func(m *Management, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		later := r.Clone(context.WithoutCancel(r.Context()))
		later.Body = io.NopCloser(bytes.NewReader(body))
		answered := make(chan *httptest.ResponseRecorder, 1)
		m.late.Go(func() {
			<-release
			answered <- m.ask(later)
		})
		select {
		case answer := <-answered:
			tell(w, answer)
		case <-r.Context().Done():
		}
	}
}

// Late cuts the connection at once, and carries the request out after a while.
func Late(after time.Duration) Lie {
	return func(m *Management, _ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			later := r.Clone(context.WithoutCancel(r.Context()))
			later.Body = io.NopCloser(bytes.NewReader(body))
			m.late.Go(func() {
				time.Sleep(after)
				m.ask(later)
			})
		}
		panic(http.ErrAbortHandler)
	}
}

// Wait returns when all that is late has been carried out.
func (m *Management) Wait() { m.late.Wait() }
