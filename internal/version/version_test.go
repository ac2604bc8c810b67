package version

import (
	"runtime/debug"
	"testing"
)

func TestVersion_IsTheMostExactThingKnown(t *testing.T) {
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	tests := map[string]struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		"the linker's word comes first": {
			"v1.2.3", &debug.BuildInfo{Main: debug.Module{Version: "v9.9.9"}}, "v1.2.3",
		},
		"a module that was installed by version": {
			"", &debug.BuildInfo{Main: debug.Module{Version: "v0.4.0"}}, "v0.4.0",
		},
		"a checkout shows its revision": {
			"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{revision}}, "devel-0123456789ab",
		},
		"a checkout with changes says so": {
			"", &debug.BuildInfo{Settings: []debug.BuildSetting{revision, modified}}, "devel-0123456789ab+changes",
		},
		"a library in another program": {
			"", &debug.BuildInfo{
				Main: debug.Module{Path: "example.com/orders", Version: "v9.9.9"}, Settings: []debug.BuildSetting{revision},
				Deps: []*debug.Module{{Path: "example.com/other", Version: "v8.8.8"}, {Path: "redrive.dev/redrive", Version: "v0.4.0"}},
			}, "v0.4.0",
		},
		"nothing is known": {"", nil, "devel"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := choose(tt.linked, tt.info); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
