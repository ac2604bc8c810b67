package message

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Not parallel: others would allocate meanwhile.
func TestMemorySize_IsCloseToWhatIsTaken(t *testing.T) { //nolint:paralleltest // it measures the heap
	numbered := func(n int, value func(i int) any) func() map[string]any {
		return func() map[string]any {
			headers := map[string]any{}
			for i := range n {
				headers[strings.Clone("h"+strconv.Itoa(i))] = value(i)
			}
			return headers
		}
	}
	cases := map[string]func() map[string]any{
		"8,000 headers without a value":        numbered(8000, func(int) any { return nil }),
		"8,000 small numbers":                  numbered(8000, func(i int) any { return int64(i + 1000) }),
		"5,000 short texts":                    numbered(5000, func(i int) any { return "v" + strconv.Itoa(i) }),
		"5,000 times":                          numbered(5000, func(i int) any { return time.Unix(int64(i), 0) }),
		"100 texts of a kilobyte":              numbered(100, func(int) any { return strings.Repeat("x", 1000) }),
		"one text of 100 kilobytes":            numbered(1, func(int) any { return strings.Repeat("x", 100_000) }),
		"1,000 tables of one entry":            numbered(1000, func(i int) any { return map[string]any{"k" + strconv.Itoa(i): "v" + strconv.Itoa(i)} }),
		"a list of 8,000 short texts":          numbered(1, func(int) any { return texts(8000) }),
		"a list of 8,000 empty tables":         numbered(1, func(int) any { return empties(8000, func() any { return map[string]any{} }) }),
		"8,000 empty tables":                   numbered(8000, func(int) any { return map[string]any{} }),
		"a list of 8,000 empty lists":          numbered(1, func(int) any { return empties(8000, func() any { return []any{} }) }),
		"a list of 8,000 truths":               numbered(1, func(int) any { return empties(8000, func() any { return true }) }),
		"a few headers, as most messages have": numbered(6, func(i int) any { return "value" + strconv.Itoa(i) }),
	}
	const copies = 20
	for name, build := range cases {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			held := make([]map[string]any, copies)
			before := heap()
			for i := range held {
				held[i] = build()
			}
			taken := float64(heap()-before) / copies
			estimate := float64(MemorySize(&Message{Headers: held[0]})) / 2 // the other half is for a copy
			runtime.KeepAlive(held)
			t.Logf("%.0f bytes taken, %.0f estimated, %d in a frame", taken, estimate, HeaderSize(held[0]))
			if ratio := estimate / taken; ratio < 0.75 || ratio > 2 {
				t.Errorf("%.0f bytes are taken, and the estimate is %.0f", taken, estimate)
			}
		})
	}
}

// A decimal had all lists and tables around it copied for expressions and the handler, and the copy counted nothing.
func TestMemorySize_HasWhatAViewCopies(t *testing.T) { //nolint:paralleltest // it measures the heap
	tables := func(value any) []any {
		list := make([]any, 5000)
		for i := range list {
			list[i] = map[string]any{"k": value}
		}
		return list
	}
	decimal := Decimal{Scale: 1, Value: 5}
	many := map[string]any{"x-delivery-count": int64(1)}
	for i := range 8000 {
		many["h"+strconv.Itoa(i)] = nil
	}
	for name, headers := range map[string]map[string]any{
		"tables without a decimal":       {"list": tables("v")},
		"tables with one each":           {"list": tables(decimal)},
		"a list with one beside tables":  {"list": append(tables("v"), decimal), "other": tables("v")},
		"a list of decimals":             {"list": slices.Repeat([]any{decimal}, 8000)},
		"many headers and a decimal":     {"many": maps.Clone(many), "price": decimal},
		"many that the broker has added": many,
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			before := heap()
			view := View(Message{Headers: headers}, State{}, "work")
			taken := float64(heap() - before)
			estimate := float64(MemorySize(&Message{Headers: headers}) - 2*int64(tableMemory(headers)))
			runtime.KeepAlive(headers)
			runtime.KeepAlive(view)
			t.Logf("%.0f bytes taken, %.0f estimated", taken, estimate)
			const noise = 16 << 10 // of the runtime
			if estimate < 0.75*(taken-noise) || estimate > 2*(taken+noise) {
				t.Errorf("%.0f bytes are taken, and the estimate is %.0f", taken, estimate)
			}
		})
	}
}

func texts(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = "v" + strconv.Itoa(i)
	}
	return list
}

// empties is a list that grows as the one does that is read from a frame.
func empties(n int, value func() any) (list []any) {
	for range n {
		list = append(list, value())
	}
	return list
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
