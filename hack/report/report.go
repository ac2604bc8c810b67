// Package report runs a benchmark, and prints and saves what it has measured.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
)

// Main runs a benchmark until it ends or is interrupted. The process ends with 1 where not all holds that has to.
func Main(name string, run func(context.Context) (held bool, err error)) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	held, err := run(ctx)
	stop()
	switch {
	case err != nil:
		Fail(name, err)
	case !held:
		fmt.Fprintf(os.Stderr, "%s: not all that has to hold does\n", name)
		os.Exit(1)
	}
}

// Fail ends the process with 2, as a benchmark does that could not measure.
func Fail(name string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(2)
}

// Table prints lines of cells in columns, below a heading.
func Table(out io.Writer, heading []string, lines [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(heading, "\t"))
	for _, cells := range lines {
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush() //nolint:wrapcheck // of the standard output
}

// Save writes results as JSON for everyone to read. The folder is made where it is missing.
func Save(path string, results any) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a folder of build results
		return fmt.Errorf("save the results: %w", err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec,wrapcheck // for everyone to read; it names the file
}
