// Command monitoring draws the dashboard of config/grafana as it shows a run that hack/record wrote down: the queries are those of
// the dashboard, Prometheus's own engine evaluates them, and only the drawing is not Grafana's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	// steps of a panel, and over how long the queries take a rate.
	steps        = 90
	rateInterval = 16 * time.Second
)

func main() {
	samples := flag.String("samples", "../../bin/record.jsonl", "the recorded run")
	out := flag.String("out", "../../docs/images/dashboard.svg", "the picture")
	flag.Parse()
	if err := run(context.Background(), *samples, *out); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, samples, out string) error {
	board, err := readDashboard()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "redrive-monitoring")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	db, err := tsdb.Open(folder, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer func() { _ = db.Close() }()
	begin, end, err := load(ctx, samples, db)
	if err != nil {
		return err
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 10 * time.Second, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() { _ = engine.Close() }()
	shown := &evaluation{board: board, engine: engine, db: db, begin: begin.Add(rateInterval), end: end}
	picture, err := draw(ctx, shown)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, picture, 0o644); err != nil { //nolint:gosec // a picture for everybody
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// evaluation is a dashboard over the time of a run.
type evaluation struct {
	board      *dashboard
	engine     *promql.Engine
	db         *tsdb.DB
	begin, end time.Time
}

// line is a series of a panel.
type line struct {
	legend string
	points []promql.FPoint
}

// lines of a panel, as Grafana would name them.
func (e *evaluation) lines(ctx context.Context, p *panel) ([]line, error) {
	step := e.end.Sub(e.begin) / steps
	var all []line
	for _, target := range p.Targets {
		query, err := e.engine.NewRangeQuery(ctx, e.db, nil, e.board.expanded(target.Expr, rateInterval, 4*step.Round(time.Second)), e.begin, e.end, step)
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
		result := query.Exec(ctx)
		matrix, err := result.Matrix()
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
		for _, series := range matrix {
			if len(series.Floats) > 0 {
				all = append(all, line{legend: legend(target.LegendFormat, series.Metric), points: append([]promql.FPoint(nil), series.Floats...)})
			}
		}
		query.Close()
	}
	return all, nil
}
