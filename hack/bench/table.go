package main

import (
	"io"
	"strconv"

	"redrive.dev/redrive/hack/report"
)

// result is one line of the table.
type result struct {
	// Name says what is measured, and in what.
	Name string `json:"name"`
	// Baseline and Ours are medians; where there is nothing to compare with, Baseline is the limit that Ours has to keep, or 0.
	Baseline float64 `json:"baseline"`
	Ours     float64 `json:"ours"`
	// Ratio says how good ours is beside the baseline: the more, the better, also where less is better of what was measured.
	Ratio float64 `json:"ratio"`
	// AtLeast is what the ratio has to be; 0 where it is only to be seen.
	AtLeast float64 `json:"atLeast"`
}

// faster compares what is the better the more there is of it.
func faster(name string, baseline, ours, atLeast float64) result {
	return result{Name: name, Baseline: baseline, Ours: ours, Ratio: share(ours, baseline), AtLeast: atLeast}
}

// cheaper compares what is the better the less there is of it.
func cheaper(name string, baseline, ours, atLeast float64) result {
	return result{Name: name, Baseline: baseline, Ours: ours, Ratio: share(baseline, ours), AtLeast: atLeast}
}

// share is 0 where there is nothing to divide by, for JSON has no infinity.
func share(of, by float64) float64 {
	if by == 0 {
		return 0
	}
	return of / by
}

func (r *result) holds() bool { return r.Ratio >= r.AtLeast }

// show prints the table.
func show(out io.Writer, results []result) error {
	lines := make([][]string, 0, len(results))
	for i := range results {
		r := &results[i]
		atLeast, verdict := "", ""
		if r.AtLeast > 0 {
			atLeast, verdict = significant(r.AtLeast), "ok"
		}
		if !r.holds() {
			verdict = "SHORT"
		}
		ratio := strconv.FormatFloat(r.Ratio, 'f', 2, 64)
		lines = append(lines, []string{r.Name, significant(r.Baseline), significant(r.Ours), ratio, atLeast, verdict})
	}
	return report.Table(out, []string{"WHAT", "BASELINE", "OURS", "RATIO", "AT LEAST", ""}, lines)
}

// significant prints three digits, and all of those before the point.
func significant(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x >= 100 || x <= -100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	default:
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
}
