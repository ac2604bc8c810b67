// Command image writes the archive of an image FROM scratch with one static program, its entrypoint, where there is nothing
// that builds images: no registry and no daemon.
//
//	go run ./hack/cluster/image [-limit BYTES] IMAGE PROGRAM [ARG…] >image.tar
//
// The archive is one of Docker's, which `ctr images import`, `docker load` and `kind load image-archive` take. Like the
// Dockerfile's, the image runs as 65532, has a /tmp, and CA certificates, those of this machine; it has no shell and no
// other program. The same program gives the same bytes.
package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"redrive.dev/redrive/hack/oci"
)

const certificates = "/etc/ssl/certs/ca-certificates.crt"

func main() {
	limit := flag.Int("limit", 0, "bytes that the image may take up, uncompressed; 0 is no limit")
	flag.Parse()
	if err := run(os.Stdout, flag.Args(), *limit); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, arguments []string, limit int) error {
	if len(arguments) < 2 {
		return errors.New("give the image's name and a program")
	}
	name, path := arguments[0], arguments[1]
	program, err := os.ReadFile(path) //nolint:gosec // what the user names
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	trusted, err := os.ReadFile(certificates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the CA certificates: %w", err)
	}
	image := oci.Image{
		Entrypoint: append([]string{"/" + filepath.Base(path)}, arguments[2:]...),
		Program:    program,
		Trusted:    trusted,
	}
	layer, err := image.Layer()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if limit > 0 {
		if err := measure(name, layer, limit); err != nil {
			return err
		}
	}
	buffered := bufio.NewWriter(out)
	if err := write(buffered, name, image, layer); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// measure tells how large the image is, in both of the ways in which that is counted: what it takes up on a node, and what
// a registry keeps of it.
func measure(name string, layer []byte, limit int) error {
	var compressed count
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(layer); err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if err := writer.Close(); err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	const mega = 1e6
	size := float64(len(layer)) / mega
	_, _ = fmt.Fprintf(os.Stderr, "image: %s takes up %.1f MB, compressed %.1f MB\n", name, size, float64(compressed)/mega)
	if len(layer) > limit {
		return fmt.Errorf("%s takes up %.1f MB, more than %.1f MB", name, size, float64(limit)/mega)
	}
	return nil
}

// count counts what is written.
type count int

func (c *count) Write(data []byte) (int, error) {
	*c += count(len(data))
	return len(data), nil
}
