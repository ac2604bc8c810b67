package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	folderMode  = 0o755
	programMode = 0o755
	fileMode    = 0o644
	// tmpMode is that of every /tmp: all may write, nobody deletes what is another's.
	tmpMode = 0o1777

	configFile = "config.json"
	layerFile  = "layer.tar"
	// user is distroless's "nonroot", by number: Kubernetes cannot tell whether a name is root.
	user = "65532:65532"
)

// image holds one program.
type image struct {
	name string
	// entrypoint is the program's path in the image, and its first arguments.
	entrypoint []string
	program    []byte
	// trusted are CA certificates, PEM; empty is none.
	trusted []byte
}

// config is the image's configuration, as the OCI specifies it.
type config struct {
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Config       execute `json:"config"`
	RootFS       rootFS  `json:"rootfs"`
}

//nolint:tagliatelle // the specification's spelling
type execute struct {
	User       string            `json:"User"`
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"` //nolint:tagliatelle // the specification's spelling
}

// manifest is an entry of manifest.json, as `docker save` writes it.
//
//nolint:tagliatelle // Docker's spelling
type manifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// layer is the file system, as a tar archive.
func (i image) layer() ([]byte, error) {
	if err := checkStatic(i.program); err != nil {
		return nil, err
	}
	var content bytes.Buffer
	w := archiver{tar.NewWriter(&content)}
	w.folder("tmp", tmpMode)
	if len(i.trusted) > 0 {
		for _, folder := range []string{"etc", "etc/ssl", "etc/ssl/certs"} {
			w.folder(folder, folderMode)
		}
		w.file("etc/ssl/certs/ca-certificates.crt", fileMode, i.trusted)
	}
	w.file(i.entrypoint[0][1:], programMode, i.program)
	err := w.Close()
	return content.Bytes(), err
}

// write writes the archive with the layer in it.
func (i image) write(out io.Writer, layer []byte) error {
	architecture, err := architectureOf(i.program)
	if err != nil {
		return err
	}
	settings, err := json.Marshal(config{
		Architecture: architecture, OS: "linux",
		Config: execute{
			User: user, Env: []string{"PATH=/"}, Entrypoint: i.entrypoint, WorkingDir: "/",
			Labels: map[string]string{"org.opencontainers.image.title": i.entrypoint[0][1:]},
		},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}
	index, err := json.Marshal([]manifest{{Config: configFile, RepoTags: []string{i.name}, Layers: []string{layerFile}}})
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}
	w := archiver{tar.NewWriter(out)}
	w.file("manifest.json", fileMode, index)
	w.file(configFile, fileMode, settings)
	w.file(layerFile, fileMode, layer)
	return w.Close() //nolint:wrapcheck // wrapped by the caller
}

// archiver writes entries that differ in nothing but what they are. A first error stays, and Close gives it.
type archiver struct{ *tar.Writer }

func (w archiver) folder(name string, mode int64) {
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
}

func (w archiver) file(name string, mode int64, content []byte) {
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
