package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"redrive.dev/redrive/hack/modules"
)

// program of the release.
type program struct {
	name, source string
	platforms    []modules.Platform
	// image is true where there is one of it.
	image bool
}

func programs() []program {
	var linux []modules.Platform
	for _, platform := range modules.Platforms() {
		if platform.OS == "linux" {
			linux = append(linux, platform)
		}
	}
	return []program{
		{name: "redrive-manager", source: "./cmd/manager", platforms: linux, image: true},
		{name: "redrive-worker", source: "./cmd/worker", platforms: linux, image: true},
		{name: "redrive", source: "./cmd/redrive", platforms: modules.Platforms()},
	}
}

func packagesOf(all []program) []string {
	sources := make([]string, len(all))
	for i, p := range all {
		sources[i] = p.source
	}
	return sources
}

// file is the name of a program for a platform.
func (p program) file(platform modules.Platform) string {
	name := p.name + "-" + platform.OS + "-" + platform.Architecture
	if platform.OS == "windows" {
		name += ".exe"
	}
	return name
}

// build all programs for all their platforms.
func (r *release) build(ctx context.Context) error {
	to, err := filepath.Abs(r.to)
	if err != nil {
		return fmt.Errorf("find the folder: %w", err)
	}
	flags := "-s -w -buildid= -X redrive.dev/redrive/internal/version.version=" + r.version
	for _, p := range r.programs {
		for _, platform := range p.platforms {
			fmt.Fprintf(os.Stderr, "release: building %s for %s\n", p.name, platform)
			command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", //nolint:gosec // ours
				"-ldflags", flags, "-o", filepath.Join(to, p.file(platform)), p.source)
			command.Dir, command.Env = r.root, platform.Environment()
			var problem bytes.Buffer
			command.Stderr = &problem
			if err := command.Run(); err != nil {
				return fmt.Errorf("build %s for %s: %w\n%s", p.name, platform, err, &problem)
			}
		}
	}
	return nil
}
