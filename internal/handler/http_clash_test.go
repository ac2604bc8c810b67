package handler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	public "redrive.dev/redrive/handler"
)

func carrierOf(own map[string]any) *carrier {
	return &carrier{fields: &fields{}, headerRules: headerRules{prefix: public.HTTPHeaderPrefix, all: true}, own: own}
}

// clashing are headers whose names become the same field: few that leave so many bytes, and thousands that do not fit into those.
func clashing(left int) map[string]any {
	all := map[string]any{}
	for i := range 60 {
		all[fmt.Sprintf("a!%c%c", '!'+i%14, '!'+i/14)] = strings.Repeat("v", 90)
	}
	first := carrierOf(all)
	first.carryAll()
	all["a!!!"] = strings.Repeat("v", 90+first.left-left)
	odd := []byte("#$%&()*+./:;<=>?@[]^_{|}~")
	for b := 128; b < 256; b++ {
		odd = append(odd, byte(b))
	}
	for _, x := range odd {
		for _, y := range odd {
			if len(all) < 8000 {
				all["a"+string([]byte{x, y})] = ""
			}
		}
	}
	return all
}

// For each of 8,000 headers, 63 numbers were tried at a field that the ones before it had taken: 0.1 s at each attempt.
func TestCarrier_TriesNumbersOfAFieldOnceForAllNames(t *testing.T) {
	for _, left := range []int{0, 30} { // with more than the shortest takes, a field is looked for
		own := clashing(left)
		var c *carrier
		n := testing.AllocsPerRun(1, func() {
			c = carrierOf(own)
			c.carryAll()
		})
		if c.count != maxCarriedHeaders-60 || c.left != left {
			t.Errorf("%d more may be carried, and %d bytes: the others are not looked at", c.count, c.left)
		}
		if each := n / float64(len(own)); each > 8 {
			t.Errorf("%.0f allocations for each header", each)
		}
	}
}

// What is carried of names that clash, and as what, does not depend on how a free field is found.
func TestCarrier_NumbersNamesOfOneFieldInTheirOrder(t *testing.T) {
	own := map[string]any{
		"a": "1", "a-3": "2", "A": "3", "A_": "4", "_a": "5", "a_": "6",
		"b": "7", "b-2": "8", "b-2-2": "9", "B-2": "10", "B": "11", "B_": "12", "b_2": "13",
	}
	for i := range 70 {
		own["c"+strings.Repeat("_", i+1)] = strconv.Itoa(i)
	}
	c, want := carrierOf(own), carrierOf(own)
	c.carryAll()
	for _, name := range slices.Sorted(maps.Keys(own)) {
		want.next = nil // to look for a free one from the beginning
		if field := want.fieldOf(name); !isField(name) && c.has(canonical(c.prefix, field)) {
			want.used = append(want.used, field)
		}
	}
	if !slices.Equal(c.used, want.used) || len(c.used) == 0 {
		t.Errorf("carried as %q,\nwant       %q", c.used, want.used)
	}
}
