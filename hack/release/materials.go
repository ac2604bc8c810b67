package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"redrive.dev/redrive/hack/modules"
)

const sumsFile = "SHA256SUMS"

// bill of materials, as CycloneDX 1.6 specifies it.
type bill struct {
	Format       string      `json:"bomFormat"`
	Spec         string      `json:"specVersion"`
	Version      int         `json:"version"`
	Metadata     metadata    `json:"metadata"`
	Components   []component `json:"components"`
	Dependencies []depends   `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref"` //nolint:tagliatelle // the specification's spelling
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	URL      string    `json:"purl"`
	Licences []licence `json:"licenses,omitempty"`
}

type licence struct {
	Licence identifier `json:"license"`
}

type identifier struct {
	ID string `json:"id"`
}

type depends struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

// materials writes a bill for each program, of what the linker says that is in it, on whatever platform.
func (r *release) materials(used []modules.Module) error {
	licences := map[string][]string{"std": {"BSD-3-Clause"}}
	for _, module := range used {
		licences[module.Path] = module.Licences
	}
	for _, p := range r.programs {
		parts := map[string]component{}
		for _, platform := range p.platforms {
			if err := r.partsOf(p.file(platform), licences, parts); err != nil {
				return err
			}
		}
		refs := slices.Sorted(maps.Keys(parts))
		b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{r.self(p)}, Dependencies: []depends{{r.self(p).Ref, refs}}}
		for _, ref := range refs {
			b.Components = append(b.Components, parts[ref])
		}
		text, err := json.MarshalIndent(b, "", "  ")
		if err != nil {
			return fmt.Errorf("bill of materials: %w", err)
		}
		if err := r.write(p.name+".cdx.json", append(text, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// partsOf adds what one file is built from.
func (r *release) partsOf(file string, licences map[string][]string, parts map[string]component) error {
	info, err := buildinfo.ReadFile(filepath.Join(r.to, file))
	if err != nil {
		return fmt.Errorf("what %s is built from: %w", file, err)
	}
	standard := componentOf("library", "std", strings.TrimPrefix(info.GoVersion, "go"), licences["std"])
	parts[standard.Ref] = standard
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		if licences[module.Path] == nil {
			return fmt.Errorf("%s has %s in it, of which no licence is known", file, module.Path)
		}
		part := componentOf("library", module.Path, module.Version, licences[module.Path])
		parts[part.Ref] = part
	}
	return nil
}

func (r *release) self(p program) component {
	self := componentOf("application", "redrive.dev/redrive", r.version, []string{"Apache-2.0"})
	self.Name = p.name
	self.URL += "#" + strings.TrimPrefix(p.source, "./")
	return self
}

func componentOf(kind, path, version string, licences []string) component {
	url := "pkg:golang/" + path + "@" + version
	c := component{Type: kind, Ref: url, Name: path, Version: version, URL: url}
	for _, id := range licences {
		c.Licences = append(c.Licences, licence{identifier{id}})
	}
	return c
}

// licences writes the texts that must go with the programs.
func (r *release) licences(used []modules.Module) error {
	var all bytes.Buffer
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return fmt.Errorf("licence of Redrive: %w", err)
	}
	fmt.Fprintf(&all, "Redrive\n\n%s\n", own)
	for _, module := range used {
		for _, name := range slices.Sorted(maps.Keys(module.Texts)) {
			fmt.Fprintf(&all, "%s\n%s %s, %s\n\n%s\n", strings.Repeat("-", 80), module.Path, module.Version, name, module.Texts[name])
		}
	}
	return r.write("licenses.txt", all.Bytes())
}

// sums of all files in the folder, as sha256sum writes and checks them.
func (r *release) sums() error {
	entries, err := os.ReadDir(r.to)
	if err != nil {
		return fmt.Errorf("list the release: %w", err)
	}
	var all bytes.Buffer
	for _, entry := range entries {
		if entry.IsDir() || entry.Name() == sumsFile {
			continue
		}
		content, err := r.read(entry.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return r.write(sumsFile, all.Bytes())
}
