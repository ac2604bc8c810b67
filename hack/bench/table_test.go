package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"redrive.dev/redrive/hack/report"
)

func TestResult_HoldsAtItsRatioOrAbove(t *testing.T) {
	cases := []struct {
		why   string
		line  result
		ratio float64
		holds bool
	}{
		{"as fast as it has to be", faster("", 100, 90, 0.9), 0.9, true},
		{"too slow", faster("", 100, 89, 0.9), 0.89, false},
		{"within a limit", cheaper("", 300, 100, 1), 3, true},
		{"beyond a limit", cheaper("", 300, 400, 1), 0.75, false},
		{"only to be seen", cheaper("", 10, 30, 0), 1.0 / 3, true},
		{"nothing to compare with", cheaper("", 0, 30, 0), 0, true},
		{"nothing was measured", faster("", 0, 0, 0.9), 0, false},
	}
	for _, c := range cases {
		if c.line.Ratio != c.ratio || c.line.holds() != c.holds {
			t.Errorf("%s: ratio %v, holds %v; want %v and %v", c.why, c.line.Ratio, c.line.holds(), c.ratio, c.holds)
		}
	}
}

func TestShow_SaysWhatFallsShort(t *testing.T) {
	var out strings.Builder
	if err := show(&out, []result{faster("quick", 100, 95, 0.9), faster("slow", 100, 50, 0.9), cheaper("seen", 0, 12.345, 0)}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.HasSuffix(lines[1], "ok") || !strings.HasSuffix(lines[2], "SHORT") || !strings.Contains(lines[3], "12.3") {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestSave_WritesResultsAsAList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bin", "bench.json")
	if err := report.Save(path, []result{faster("a", 100, 95, 0.9)}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(list[0]) != 5 || list[0]["name"] != "a" || list[0]["baseline"] != 100.0 || list[0]["ours"] != 95.0 ||
		list[0]["ratio"] != 0.95 || list[0]["atLeast"] != 0.9 {
		t.Errorf("saved %s", data)
	}
}

func TestMedian_IsTheOneInTheMiddle(t *testing.T) {
	same := func(x *float64) float64 { return *x }
	if m := median([]float64{9, 1, 2}, same); m != 2 {
		t.Errorf("median of three: %v", m)
	}
	if m := median([]float64{9, 1, 2, 4}, same); m != 3 {
		t.Errorf("median of four: %v", m)
	}
}
