// Command release writes all that a release of Redrive consists of, besides the one YAML, which make puts beside it:
//
//		go run ./hack/release -version v1.2.3 -registry registry.example -to dist/release
//
//	  - the programs: the manager and the worker for Linux, the redrive CLI for Linux, macOS and Windows;
//	  - their images as OCI layouts for amd64 and arm64, which need no daemon to be made and no network;
//	  - the Helm chart, with the version and the images of the release;
//	  - for each program a bill of materials (CycloneDX), and the licences of what they are built from;
//	  - SHA256SUMS of all files in the folder.
//
// One commit gives the same bytes on every machine with the same version of Go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"redrive.dev/redrive/hack/modules"
)

const (
	fileMode    = 0o644
	programMode = 0o755
	folderMode  = 0o755
)

// release is what is made.
type release struct {
	// root of the repository, and the folder that everything is put into.
	root, to string
	version  string
	// registry goes before the names of images; empty is none.
	registry string
	programs []program
}

func main() {
	r := release{root: ".", programs: programs()}
	flag.StringVar(&r.version, "version", "", "version of the release, such as v1.2.3; also the tag of its images")
	flag.StringVar(&r.registry, "registry", "", "where the images will be, such as registry.example/redrive; empty is left to the user")
	flag.StringVar(&r.to, "to", "", "folder to write to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.make(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

// make everything. The order is that of what needs what.
func (r *release) make(ctx context.Context) error {
	if r.version == "" || r.to == "" {
		return errors.New("give -version and -to")
	}
	if strings.ContainsAny(r.version, "+/: ") {
		return fmt.Errorf("version %q cannot be the tag of an image", r.version)
	}
	if err := os.MkdirAll(r.to, folderMode); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	used, err := modules.Of(ctx, r.root, packagesOf(r.programs)...)
	if err != nil {
		return fmt.Errorf("find what the programs are built from: %w", err)
	}
	steps := []func() error{
		func() error { return r.build(ctx) },
		r.images,
		r.chart,
		func() error { return r.materials(used) },
		func() error { return r.licences(used) },
		r.sums,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// write a file of the release.
func (r *release) write(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(r.to, name), data, fileMode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (r *release) read(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(r.to, name)) //nolint:gosec // of the release
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// reference of an image without its tag.
func (r *release) reference(image string) string {
	if r.registry == "" {
		return image
	}
	return strings.TrimSuffix(r.registry, "/") + "/" + image
}
