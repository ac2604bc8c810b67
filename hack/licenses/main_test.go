package main

import (
	"bytes"
	"strings"
	"testing"

	"redrive.dev/redrive/hack/modules"
)

func TestCheck_RefusesModulesUnderOtherLicences(t *testing.T) {
	tests := map[string]struct {
		licences []string
		refused  bool
	}{
		"allowed":             {[]string{"MIT"}, false},
		"two that are":        {[]string{"Apache-2.0", "MIT"}, false},
		"one that is not":     {[]string{"GPL"}, true},
		"one of two that not": {[]string{"AGPL", "MIT"}, true},
		"none":                {nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var table bytes.Buffer
			err := check(&table, []modules.Module{{Path: "example.org/x", Version: "v1.0.0", Licences: tt.licences}})
			if (err != nil) != tt.refused || (err != nil && !strings.Contains(err.Error(), "example.org/x")) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(table.String(), "example.org/x  v1.0.0") {
				t.Errorf("the table is %s", &table)
			}
		})
	}
}
