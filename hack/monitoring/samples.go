package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/tsdb"
)

// scrape is a line of what hack/record writes.
type scrape struct {
	Time   time.Time         `json:"time"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

// load puts a recorded run into a database, and tells when it began and ended.
func load(ctx context.Context, file string, db *tsdb.DB) (begin, end time.Time, err error) {
	lines, err := os.Open(file) //nolint:gosec // whoever runs this says which
	if err != nil {
		return begin, end, fmt.Errorf("open the recorded run: %w", err)
	}
	defer func() { _ = lines.Close() }()
	decoder := json.NewDecoder(lines)
	for {
		var one scrape
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return begin, end, nil
		} else if err != nil {
			return begin, end, fmt.Errorf("read the recorded run: %w", err)
		}
		if begin.IsZero() {
			begin = one.Time
		}
		end = one.Time
		if err := store(ctx, db, one); err != nil {
			return begin, end, err
		}
	}
}

// store adds the samples of a scrape. Labels of the target give way to those of a metric: what honorLabels means.
func store(ctx context.Context, db *tsdb.DB, one scrape) error {
	appender := db.Appender(ctx)
	parser := textparse.NewPromParser([]byte(one.Text), labels.NewSymbolTable(), false)
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read a scrape: %w", err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var own labels.Labels
		parser.Labels(&own)
		all := maps.Clone(one.Labels)
		maps.Copy(all, own.Map())
		_, _, value := parser.Series()
		if _, err := appender.Append(0, labels.FromMap(all), one.Time.UnixMilli(), value); err != nil {
			return fmt.Errorf("store a sample: %w", err)
		}
	}
	if err := appender.Commit(); err != nil {
		return fmt.Errorf("store a scrape: %w", err)
	}
	return nil
}
