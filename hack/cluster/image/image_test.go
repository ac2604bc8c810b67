package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/hack/oci"
)

// build compiles the smallest program here for Linux.
func build(t *testing.T, architecture string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pause")
	arguments := append([]string{"build", "-o", program}, flags...)
	command := exec.CommandContext(t.Context(), "go", append(arguments, "../pause")...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, output)
	}
	return program
}

// entries are the names of an archive with their headers, in order, and the contents by name.
func entries(t *testing.T, archive io.Reader) ([]tar.Header, map[string][]byte) {
	t.Helper()
	var headers []tar.Header
	contents := map[string][]byte{}
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		headers, contents[header.Name] = append(headers, *header), content
	}
}

func TestImage_HoldsTheProgramAndNothingElseThatRuns(t *testing.T) {
	program := build(t, "amd64")
	var archive bytes.Buffer
	if err := run(&archive, []string{"localhost/x:e2e", program, "-flag"}, 0); err != nil {
		t.Fatal(err)
	}
	_, files := entries(t, &archive)

	var manifests []manifest
	if err := json.Unmarshal(files["manifest.json"], &manifests); err != nil {
		t.Fatal(err)
	}
	if len(manifests) != 1 || !slices.Equal(manifests[0].RepoTags, []string{"localhost/x:e2e"}) {
		t.Errorf("the archive holds %+v", manifests)
	}
	var settings oci.Config
	if err := json.Unmarshal(files[configFile], &settings); err != nil {
		t.Fatal(err)
	}
	if settings.Config.User != "65532:65532" || !slices.Equal(settings.Config.Entrypoint, []string{"/pause", "-flag"}) {
		t.Errorf("it runs %v as %s", settings.Config.Entrypoint, settings.Config.User)
	}
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256(files[layerFile])); !slices.Equal(settings.RootFS.DiffIDs, []string{want}) {
		t.Errorf("the layers are %v, want %s", settings.RootFS.DiffIDs, want)
	}

	headers, contents := entries(t, bytes.NewReader(files[layerFile]))
	for _, header := range headers {
		runs := header.Typeflag == tar.TypeReg && header.Mode&0o111 != 0
		if runs != (header.Name == "pause") || header.Uid != 0 || header.Gid != 0 {
			t.Errorf("in the image is %s of %d:%d, mode %o", header.Name, header.Uid, header.Gid, header.Mode)
		}
		if !slices.Contains([]string{"tmp/", "etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", "pause"}, header.Name) {
			t.Errorf("in the image is %s", header.Name)
		}
	}
	want, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents["pause"], want) {
		t.Error("the program in the image is another one")
	}
}

func TestImage_HasTheSameBytesForTheSameProgram(t *testing.T) {
	program := build(t, "amd64")
	var archives [2]bytes.Buffer
	for i := range archives {
		written := time.Unix(int64(i), 0)
		if err := os.Chtimes(program, written, written); err != nil {
			t.Fatal(err)
		}
		if err := run(&archives[i], []string{"localhost/x:e2e", program}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0].Bytes(), archives[1].Bytes()) {
		t.Error("two archives of one program differ")
	}
}

func TestImage_HasTheProgramsArchitecture(t *testing.T) {
	var archive bytes.Buffer
	if err := run(&archive, []string{"localhost/x:e2e", build(t, "arm64")}, 0); err != nil {
		t.Fatal(err)
	}
	_, files := entries(t, &archive)
	if !bytes.Contains(files[configFile], []byte(`"architecture":"arm64"`)) {
		t.Errorf("the configuration is %s", files[configFile])
	}
}

func TestImage_RefusesWhatItCannotBeMadeOf(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		arguments []string
		limit     int
		says      string
	}{
		"no program":              {arguments: []string{"localhost/x:e2e"}, says: "give the image's name"},
		"a program that is away":  {arguments: []string{"localhost/x:e2e", script + "x"}, says: "read the program"},
		"a script":                {arguments: []string{"localhost/x:e2e", script}, says: "not a Linux program"},
		"one that needs a loader": {arguments: []string{"localhost/x:e2e", build(t, "amd64", "-buildmode=pie")}, says: "CGO_ENABLED=0"},
		"more than it may become": {arguments: []string{"localhost/x:e2e", build(t, "amd64")}, limit: 1_000_000, says: "more than 1.0 MB"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var archive bytes.Buffer
			err := run(&archive, tc.arguments, tc.limit)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %v, want one with %q", err, tc.says)
			}
			if archive.Len() > 0 {
				t.Error("something was written")
			}
		})
	}
}
