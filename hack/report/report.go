// Package report prints and saves what a benchmark has measured.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

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
