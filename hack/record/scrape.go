package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

const scrapeEvery = 2 * time.Second

// target is what Prometheus scrapes, with the labels that it gives all that comes from there.
type target struct {
	url    string
	labels map[string]string
}

// scrape is one line of the file: what a target answered, and when.
type scrape struct {
	Time   time.Time         `json:"time"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

// scraper writes down what the targets answer until it ends.
type scraper struct {
	cancel context.CancelFunc
	done   chan error
}

func startScraper(ctx context.Context, out string, targets []target) (*scraper, error) {
	file, err := os.Create(out) //nolint:gosec // whoever runs this says where
	if err != nil {
		return nil, fmt.Errorf("make the file: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &scraper{cancel: cancel, done: make(chan error, 1)}
	go func() {
		encoder := json.NewEncoder(file)
		var err error
		for err == nil && wait(ctx, scrapeEvery) {
			for _, one := range targets {
				err = errors.Join(err, write(ctx, encoder, one))
			}
		}
		if ctx.Err() != nil {
			err = nil
		}
		s.done <- errors.Join(err, file.Close())
	}()
	return s, nil
}

// end returns the first error, if there was one.
func (s *scraper) end() error {
	s.cancel()
	return <-s.done
}

func write(ctx context.Context, encoder *json.Encoder, from target) error {
	body, err := get(ctx, from.url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	line := scrape{Time: time.Now(), Labels: from.labels}
	var text strings.Builder
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		// Comments, and the metrics of Go and of the process, are of no use for the dashboard.
		for _, prefix := range []string{"redrive_", "controller_runtime_", "leader_election_", "workqueue_"} {
			if strings.HasPrefix(lines.Text(), prefix) {
				_, _ = fmt.Fprintln(&text, lines.Text())
			}
		}
	}
	line.Text = text.String()
	if err := errors.Join(lines.Err(), encoder.Encode(line)); err != nil {
		return fmt.Errorf("write down a scrape: %w", err)
	}
	return nil
}

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("scrape %s: %s", url, response.Status), response.Body.Close())
	}
	return response.Body, nil
}

func answers(ctx context.Context, url string) bool {
	body, err := get(ctx, url)
	if err != nil {
		return false
	}
	_ = body.Close()
	return true
}
