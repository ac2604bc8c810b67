package ledger

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	reportWithin = 10 * time.Second
	reportPause  = 100 * time.Millisecond
)

// Reporter writes into a ledger somewhere else.
type Reporter struct {
	base   string
	client *http.Client
}

// NewReporter writes to the ledger at a URL.
func NewReporter(base string) *Reporter {
	return &Reporter{base: base, client: &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: 30 * time.Second},
	}}
}

// Report writes an entry, and tries again for a while where the ledger does not answer.
func (r *Reporter) Report(ctx context.Context, shop string, entry Entry) error {
	entry.Call = rand.Text()
	body, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("encode an entry: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	for {
		err := r.post(ctx, shop, body)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(reportPause):
		}
	}
}

func (r *Reporter) post(ctx context.Context, shop string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/shops/"+url.PathEscape(shop), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("report to the ledger: %w", err)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("report to the ledger: %w", err)
	}
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection can be used again
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("report to the ledger: %s", response.Status)
	}
	return nil
}
