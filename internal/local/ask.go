package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// askEvery is how often a program is asked what it has done, and askLast that while it stops, of which nothing is to be missed.
	askEvery = time.Second
	askLast  = 100 * time.Millisecond
	// askTimeout bounds an answer, and maxAnswer its size in bytes.
	askTimeout = 2 * time.Second
	maxAnswer  = 16 << 20
	// mostMisses is how often in a row a program may give no answer before it is taken for one that hangs.
	mostMisses = 3
	// maxLine is the longest line that is passed on in one piece, in bytes.
	maxLine = 64 << 10
)

// asker asks a worker on loopback what it does.
type asker struct{ client *http.Client }

func newAsker() *asker {
	return &asker{&http.Client{Transport: &http.Transport{}, Timeout: askTimeout}} // which knows no proxy
}

// follow asks until over ends, more often from when stopping is closed. What a program did after the last answer is not known.
func (u *upkeep) follow(over context.Context, stopping <-chan struct{}, address string) {
	defer u.ask.client.CloseIdleConnections()
	every, misses := askEvery, 0
	for {
		now, err := u.ask.worker(over, address)
		switch {
		case err == nil:
			misses = 0
			u.mu.Lock()
			u.told.now, u.problem = now, ""
			u.mu.Unlock()
		case over.Err() == nil:
			if misses++; misses == mostMisses {
				u.hangs(err)
			}
		}
		select {
		case <-time.After(every):
		case <-stopping:
			every, stopping = askLast, nil
		case <-over.Done():
			return
		}
	}
}

// hangs notes that a program which was ready gives no answer any more. One that starts may take its time.
func (u *upkeep) hangs(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.told.now.ready {
		return
	}
	u.told.now.ready, u.problem = false, "its program does not answer"
	u.log.Warn("the worker's program does not answer, and is not taken for ready until it does", "error", err)
}

// worker returns what a worker tells of itself.
func (a *asker) worker(ctx context.Context, address string) (answer, error) {
	told := answer{done: tallies{}}
	err := a.get(ctx, "http://"+address+"/status", func(body io.Reader) error { return json.NewDecoder(body).Decode(&told.status) })
	if err != nil {
		return answer{}, err
	}
	err = a.get(ctx, "http://"+address+"/metrics", func(body io.Reader) error {
		families, err := readMetrics(body)
		told.families = families
		return err
	})
	told.done.addFamilies(told.families)
	told.ready = a.get(ctx, "http://"+address+"/readyz", func(io.Reader) error { return nil }) == nil
	return told, err
}

func (a *asker) get(ctx context.Context, url string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err //nolint:wrapcheck // nobody sees it
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err //nolint:wrapcheck // nobody sees it
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, response.StatusCode)
	}
	return read(io.LimitReader(response.Body, maxAnswer))
}

// copyLines passes on what a program prints, whole lines at a time, so that those of several programs do not get mixed up.
func copyLines(to io.Writer, from io.Reader) {
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			_, _ = to.Write(line) // the program goes on, whoever listens
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
