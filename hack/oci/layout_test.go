package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program compiles the smallest program here for Linux.
func program(t *testing.T, architecture string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pause")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "../cluster/pause")
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, output)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// files of an archive by name.
func files(t *testing.T, archive io.Reader) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// layout is an archive of which all content is what its digests say.
type layout struct {
	*testing.T
	files map[string][]byte
}

// follow reads what a descriptor leads to, and holds it to its digest and size.
func (l layout) follow(d descriptor, into any) []byte {
	l.Helper()
	content, exists := l.files["blobs/sha256/"+d.Digest[len("sha256:"):]]
	if !exists || len(content) != d.Size || fmt.Sprintf("sha256:%x", sha256.Sum256(content)) != d.Digest {
		l.Fatalf("%s is not there, or is not what it says: %d bytes", d.Digest, len(content))
	}
	if into != nil {
		if err := json.Unmarshal(content, into); err != nil {
			l.Fatal(err)
		}
	}
	return content
}

func TestWriteLayout_HoldsAnImageForEachArchitecture(t *testing.T) {
	var archive bytes.Buffer
	programs := map[string][]byte{"amd64": program(t, "amd64"), "arm64": program(t, "arm64")}
	digest, err := WriteLayout(&archive, "registry.example/pause:v1", "v1",
		Image{Entrypoint: []string{"/pause"}, Program: programs["amd64"], Trusted: []byte("authorities")},
		Image{Entrypoint: []string{"/pause"}, Program: programs["arm64"], Trusted: []byte("authorities")})
	if err != nil {
		t.Fatal(err)
	}
	l := layout{t, files(t, &archive)}
	if string(l.files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("the version is %s", l.files["oci-layout"])
	}
	var top, all index
	if err := json.Unmarshal(l.files["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].Annotations[tagAnnotation] != "v1" ||
		top.Manifests[0].Annotations[nameAnnotation] != "registry.example/pause:v1" {
		t.Fatalf("the index is %+v", top)
	}
	l.follow(top.Manifests[0], &all)
	seen := map[string]bool{}
	for _, entry := range all.Manifests {
		var manifest imageManifest
		var config Config
		l.follow(entry, &manifest)
		l.follow(manifest.Config, &config)
		if entry.Platform == nil || entry.Platform.OS != "linux" || entry.Platform.Architecture != config.Architecture || len(manifest.Layers) != 1 {
			t.Fatalf("%+v leads to %+v and %+v", entry, manifest, config)
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(l.follow(manifest.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != want {
			t.Errorf("%s has the layers %v, and it is %s", config.Architecture, config.RootFS.DiffIDs, want)
		}
		if !bytes.Equal(files(t, bytes.NewReader(layer))["pause"], programs[config.Architecture]) {
			t.Errorf("for %s there is another program", config.Architecture)
		}
		seen[config.Architecture] = true
	}
	if len(seen) != 2 {
		t.Errorf("there are images for %v", seen)
	}
}

func TestWriteLayout_RefusesAScript(t *testing.T) {
	if _, err := WriteLayout(io.Discard, "x:v1", "v1", Image{Entrypoint: []string{"/x"}, Program: []byte("#!/bin/sh\n")}); err == nil {
		t.Error("a script became an image")
	}
}
