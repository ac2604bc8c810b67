package ssa

import (
	"testing"
)

func TestCovers_TellsWhetherADocumentHasWhatIsWanted(t *testing.T) {
	document := map[string]any{
		"a": int64(1), "list": []any{map[string]any{"name": "x", "defaulted": true}}, "more": "of others",
	}
	tests := map[string]struct {
		wanted map[string]any
		want   bool
	}{
		"that says less":                   {map[string]any{"a": int64(1)}, true},
		"whose lists hold less":            {map[string]any{"list": []any{map[string]any{"name": "x"}}}, true},
		"that says nothing of what it has": {map[string]any{"a": int64(1), "empty": map[string]any{}, "null": nil}, true},
		"but not with another value":       {map[string]any{"a": int64(2)}, false},
		"but not with one more field":      {map[string]any{"b": int64(1)}, false},
		"but not with a longer list":       {map[string]any{"list": []any{map[string]any{"name": "x"}, "y"}}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := covers(document, tt.wanted); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
