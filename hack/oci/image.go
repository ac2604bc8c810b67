// Package oci makes images of one static program each, FROM scratch, without a daemon and without a registry. Like those of the
// Dockerfile they run as 65532, have a /tmp, and CA certificates, and no shell and no other program. The same program and the same
// certificates give the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
)

const (
	folderMode  = 0o755
	programMode = 0o755
	fileMode    = 0o644
	// tmpMode is that of every /tmp: all may write, nobody deletes what is another's.
	tmpMode = 0o1777

	// user is distroless's "nonroot", by number: Kubernetes cannot tell whether a name is root.
	user = "65532:65532"
)

// Image holds one program.
type Image struct {
	// Entrypoint is the program's path in the image, and its first arguments.
	Entrypoint []string
	Program    []byte
	// Trusted are CA certificates, PEM; empty is none.
	Trusted []byte
	// Labels of the image, besides its title.
	Labels map[string]string
}

// Config is the image's configuration, as the OCI specifies it.
type Config struct {
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Config       Execute `json:"config"`
	RootFS       RootFS  `json:"rootfs"`
}

// Execute is how the program is run.
//
//nolint:tagliatelle // the specification's spelling
type Execute struct {
	User       string            `json:"User"`
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

// RootFS names the layers by their content.
type RootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"` //nolint:tagliatelle // the specification's spelling
}

// Layer is the file system, as a tar archive.
func (i Image) Layer() ([]byte, error) {
	if err := checkStatic(i.Program); err != nil {
		return nil, err
	}
	var content bytes.Buffer
	w := NewArchiver(&content)
	w.Folder("tmp", tmpMode)
	if len(i.Trusted) > 0 {
		for _, folder := range []string{"etc", "etc/ssl", "etc/ssl/certs"} {
			w.Folder(folder, folderMode)
		}
		w.File("etc/ssl/certs/ca-certificates.crt", fileMode, i.Trusted)
	}
	w.File(i.Entrypoint[0][1:], programMode, i.Program)
	err := w.Close()
	return content.Bytes(), err
}

// Config is the configuration of the image with a layer.
func (i Image) Config(layer []byte) (Config, error) {
	architecture, err := architectureOf(i.Program)
	if err != nil {
		return Config{}, err
	}
	labels := map[string]string{"org.opencontainers.image.title": i.Entrypoint[0][1:]}
	maps.Copy(labels, i.Labels)
	return Config{
		Architecture: architecture, OS: "linux",
		Config: Execute{User: user, Env: []string{"PATH=/"}, Entrypoint: i.Entrypoint, WorkingDir: "/", Labels: labels},
		RootFS: RootFS{Type: "layers", DiffIDs: []string{digest(layer)}},
	}, nil
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// Archiver writes entries that differ in nothing but what they are. A first error stays, and Close gives it.
type Archiver struct{ *tar.Writer }

// NewArchiver writes to out.
func NewArchiver(out io.Writer) Archiver { return Archiver{tar.NewWriter(out)} }

// Folder adds one.
func (w Archiver) Folder(name string, mode int64) {
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
}

// File adds one.
func (w Archiver) File(name string, mode int64, content []byte) {
	header := tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if w.WriteHeader(&header) == nil {
		_, _ = w.Write(content)
	}
}

// checkStatic refuses a program that needs a loader and libraries, which the image does not have.
func checkStatic(program []byte) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("not a Linux program: %w", err)
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("not a static program: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// architectureOf is the name that Go and the OCI have for what the program runs on.
func architectureOf(program []byte) (string, error) {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", err //nolint:wrapcheck // wrapped by the caller
	}
	names := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_S390: "s390x", elf.EM_RISCV: "riscv64"}
	name, known := names[file.Machine]
	if !known {
		return "", fmt.Errorf("no name for the architecture %s", file.Machine)
	}
	return name, nil
}
