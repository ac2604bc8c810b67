// Package version knows which build this is.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
)

// version is set by the linker: -ldflags "-X redrive.dev/redrive/internal/version.version=v1.2.3".
var version string

const (
	shortRevision = 12
	// module is this one's path. In the program of a team that uses it as a library it is one of those that it was built with.
	module = "redrive.dev/redrive"
)

// Version of this build: what the linker was told, else the module's version, else the revision it was built from, else
// "devel".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = nil
	}
	return choose(version, info)
}

// Long is the version with what it was built with and for, in one line.
func Long() string {
	return fmt.Sprintf("%s (%s, %s/%s)", Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func choose(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return "devel"
	}
	if info.Main.Path != module {
		if library := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module }); library >= 0 {
			return cmp.Or(info.Deps[library].Version, "devel")
		}
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, modified := "", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			modified = "+changes"
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision[:min(len(revision), shortRevision)] + modified
}
