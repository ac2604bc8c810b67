package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/hack/modules"
)

// small is a release of the smallest program with a dependency, and of the smallest of all as an image.
func small(t *testing.T, version, registry string) release {
	t.Helper()
	linux := []modules.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}
	r := release{root: "../..", to: t.TempDir(), version: version, registry: registry, programs: []program{
		{name: "pause", source: "./hack/cluster/pause", platforms: linux, image: true},
		{name: "release", source: "./hack/release", platforms: []modules.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "windows", Architecture: "amd64"}}},
	}}
	if err := r.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRelease_HasTheSameSumsForTheSameCommit(t *testing.T) {
	first, second := small(t, "v1.2.3", "registry.example"), small(t, "v1.2.3", "registry.example")
	a, err := first.read(sumsFile)
	if err != nil {
		t.Fatal(err)
	}
	b, err := second.read(sumsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Errorf("the sums are\n%s\nand\n%s", a, b)
	}
	var names []string
	for line := range strings.Lines(string(a)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		content, err := first.read(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
			t.Errorf("the sum of %s is %s", name, got)
		}
		names = append(names, name)
	}
	want := []string{
		"licenses.txt", "pause-linux-amd64", "pause-linux-arm64", "pause.cdx.json", "pause.oci.tar", "redrive-1.2.3.tgz",
		"release-linux-amd64", "release-windows-amd64.exe", "release.cdx.json",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the files are %q, want %q", names, want)
	}
}

func TestRelease_HasChartBillAndLicences(t *testing.T) {
	r := small(t, "v1.2.3", "registry.example/shop")
	t.Run("the chart has the release's version and images", func(t *testing.T) {
		output := helm(t, r, "template", "redrive", filepath.Join(r.to, "redrive-1.2.3.tgz"))
		for _, part := range []string{"image: registry.example/shop/redrive-manager:v1.2.3\n", "value: registry.example/shop/redrive-worker:v1.2.3\n"} {
			if !strings.Contains(output, part) {
				t.Errorf("the chart does not give %q", part)
			}
		}
		if output := helm(t, r, "show", "chart", filepath.Join(r.to, "redrive-1.2.3.tgz")); !strings.Contains(output, "version: 1.2.3\n") {
			t.Errorf("the chart is %s", output)
		}
	})
	t.Run("the bill names what is in the program, with licences", func(t *testing.T) {
		text, err := r.read("release.cdx.json")
		if err != nil {
			t.Fatal(err)
		}
		var b bill
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatal(err)
		}
		found := map[string]component{}
		for _, c := range b.Components {
			found[c.Name] = c
		}
		roots := found["golang.org/x/crypto/x509roots/fallback"]
		if roots.URL != "pkg:golang/golang.org/x/crypto/x509roots/fallback@"+roots.Version || len(roots.Licences) != 1 || roots.Licences[0].Licence.ID != "BSD-3-Clause" {
			t.Errorf("the bill has %+v", roots)
		}
		if found["std"].Version == "" || b.Metadata.Component.Version != "v1.2.3" || b.Metadata.Component.Name != "release" {
			t.Errorf("the bill is of %+v, with %+v", b.Metadata.Component, found["std"])
		}
	})
	t.Run("licences go with it", func(t *testing.T) {
		text, err := r.read("licenses.txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"Apache License", "golang.org/x/crypto/x509roots/fallback"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("licenses.txt does not have %q", part)
			}
		}
	})
}

func helm(t *testing.T, r release, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=hack/tools/helm/go.mod", "helm"}, arguments...)...)
	command.Dir = r.root
	var problem strings.Builder
	command.Stderr = &problem
	output, err := command.Output()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, &problem)
	}
	return string(output)
}

func TestChartVersion_IsOneThatHelmTakes(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "bc9871e": "0.0.0-bc9871e", "v1.2.3-4-gbc9871e-dirty": "1.2.3-4-gbc9871e-dirty",
		"feature.x": "0.0.0-feature-x",
	} {
		if got := chartVersion(version); got != want {
			t.Errorf("%s became %s, want %s", version, got, want)
		}
	}
}

func TestRelease_RefusesBadVersionsAndNoFolder(t *testing.T) {
	for name, r := range map[string]release{
		"no version":                          {to: "x"},
		"no folder":                           {version: "v1.2.3"},
		"a version that cannot be a tag":      {to: "x", version: "v1.2.3+build"},
		"a version with a registry before it": {to: "x", version: "registry.example/v1"},
	} {
		if err := r.make(t.Context()); err == nil {
			t.Errorf("%s made a release", name)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a folder was made")
	}
}

func TestRoots_AreCertificates(t *testing.T) {
	if n := strings.Count(string(roots()), "-----BEGIN CERTIFICATE-----"); n < 100 {
		t.Errorf("the images trust %d authorities", n)
	}
}
