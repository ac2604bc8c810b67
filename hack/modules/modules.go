// Package modules knows what the programs are built from: the Go modules whose packages are in them, and under which licences
// these are.
package modules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Platforms that programs are released for.
func Platforms() []Platform {
	return []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}
}

// Platform as Go names it.
type Platform struct{ OS, Architecture string }

// String is os/architecture.
func (p Platform) String() string { return p.OS + "/" + p.Architecture }

// Environment for a build that gives the same program on every machine.
func (p Platform) Environment() []string {
	return append(os.Environ(), "GOOS="+p.OS, "GOARCH="+p.Architecture,
		"CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
}

// Module of which at least one package is in a program.
type Module struct {
	Path, Version string
	// Licences as SPDX names them, sorted.
	Licences []string
	// Texts of the licences by file, as the folder of the module has them.
	Texts map[string]string
}

// Of returns the modules of some packages on all platforms, by path. Licences are looked for in the folder of each package and
// above, up to that of the module. A module without one, or with one that is not known here, is an error.
func Of(ctx context.Context, root string, packages ...string) ([]Module, error) {
	found := map[string]*Module{}
	var problems []error
	for _, platform := range Platforms() {
		places, err := list(ctx, root, platform, packages)
		if err != nil {
			return nil, err
		}
		for _, place := range places {
			problems = append(problems, place.addTo(found))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	all := make([]Module, 0, len(found))
	for _, module := range found {
		if len(module.Licences) == 0 {
			problems = append(problems, fmt.Errorf("%s@%s has no licence", module.Path, module.Version))
		}
		slices.Sort(module.Licences)
		all = append(all, *module)
	}
	slices.SortFunc(all, func(a, b Module) int { return strings.Compare(a.Path, b.Path) })
	return all, errors.Join(problems...)
}

// place is a folder with a package in it.
type place struct{ path, version, moduleFolder, folder string }

func list(ctx context.Context, root string, platform Platform, packages []string) ([]place, error) {
	const format = "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}"
	command := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-f", format}, packages...)...) //nolint:gosec // ours
	command.Dir, command.Env = root, platform.Environment()
	var problem bytes.Buffer
	command.Stderr = &problem
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages for %s: %w\n%s", platform, err, &problem)
	}
	var places []place
	for line := range strings.Lines(string(output)) {
		if parts := strings.Split(strings.TrimSpace(line), "\t"); len(parts) == 4 {
			places = append(places, place{parts[0], parts[1], parts[2], parts[3]})
		}
	}
	return places, nil
}

// addTo notes the module of a package and the licences between their folders. A module of this repository has no version.
func (p place) addTo(found map[string]*Module) error {
	if p.version == "" {
		return nil
	}
	module := found[p.path]
	if module == nil {
		module = &Module{Path: p.path, Version: p.version, Texts: map[string]string{}}
		found[p.path] = module
	}
	for folder := p.folder; ; folder = filepath.Dir(folder) {
		if err := module.read(p.moduleFolder, folder); err != nil {
			return err
		}
		if folder == p.moduleFolder || len(folder) < len(p.moduleFolder) {
			return nil
		}
	}
}

// read takes in the licences of one folder.
func (m *Module) read(top, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("look for a licence: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		name, err := filepath.Rel(top, path)
		if err != nil {
			return fmt.Errorf("look for a licence: %w", err)
		}
		if _, known := m.Texts[name]; known || entry.IsDir() || !isLicence(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(path) //nolint:gosec // of a module
		if err != nil {
			return fmt.Errorf("read a licence: %w", err)
		}
		licences := Identify(string(text))
		if len(licences) == 0 {
			return fmt.Errorf("%s@%s: %s is a licence that hack/modules does not know", m.Path, m.Version, name)
		}
		m.Texts[name] = string(text)
		m.Licences = slices.Compact(slices.Sorted(slices.Values(append(m.Licences, licences...))))
	}
	return nil
}

func isLicence(name string) bool {
	if strings.HasSuffix(name, ".go") {
		return false
	}
	name, _, _ = strings.Cut(strings.ToUpper(name), ".")
	for _, known := range []string{"LICENSE", "LICENCE", "COPYING", "UNLICENSE"} {
		if name == known || strings.HasPrefix(name, known+"-") || strings.HasPrefix(name, known+"_") {
			return true
		}
	}
	return false
}
