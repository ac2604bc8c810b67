package main

import (
	"io"
	"strconv"

	"redrive.dev/redrive/hack/report"
)

// result is one line of the table. The less, the better.
type result struct {
	Name string `json:"name"`
	// Baseline is what the bare loop took, or what is to be kept to; 0 where nothing is to happen.
	Baseline float64 `json:"baseline"`
	Ours     float64 `json:"ours"`
	// Ratio is ours for each of the baseline; where that is 0 it is ours.
	Ratio float64 `json:"ratio"`
	// Limit is what the ratio must not be above; nil where it is only to be seen.
	Limit *float64 `json:"limit"`
}

func limited(name string, baseline, ours, limit float64) result {
	r := shown(name, baseline, ours)
	r.Limit = &limit
	return r
}

func shown(name string, baseline, ours float64) result {
	ratio := ours
	if baseline != 0 {
		ratio = ours / baseline
	}
	return result{Name: name, Baseline: baseline, Ours: ours, Ratio: ratio}
}

func (r *result) holds() bool { return r.Limit == nil || r.Ratio <= *r.Limit }

// show prints the table.
func show(out io.Writer, results []result) error {
	lines := make([][]string, 0, len(results))
	for i := range results {
		r := &results[i]
		limit, verdict := "", ""
		if r.Limit != nil {
			limit, verdict = short(*r.Limit), "ok"
		}
		if !r.holds() {
			verdict = "ABOVE"
		}
		lines = append(lines, []string{r.Name, short(r.Baseline), short(r.Ours), short(r.Ratio), limit, verdict})
	}
	return report.Table(out, []string{"WHAT", "BASELINE", "OURS", "RATIO", "LIMIT", ""}, lines)
}

// short prints at most two digits after the point.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(float64(int64(x*100+0.5))/100, 'f', -1, 64)
}
