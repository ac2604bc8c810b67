package handler

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	caFile        = "ca.crt"
	headersFolder = "headers"
	// maxFile bounds a file of the folder, and maxSecretHeaders the number of headers. A Secret holds 1 MiB in all.
	maxFile          = 1 << 20
	maxSecretHeader  = 16 << 10
	maxSecretHeaders = 64
)

// files is what a spec takes from the folder of Options.Files.
type files struct {
	folder      string
	headers, ca bool
}

// content is what is in the files.
type content struct {
	headers map[string]string
	ca      []byte
}

func (c content) equal(other content) bool {
	return bytes.Equal(c.ca, other.ca) && maps.Equal(c.headers, other.headers)
}

// followFiles takes the files over, and goes on to do so in the background if there are any. The system announces changes in
// mounted folders on some file systems only, and the files are small: they are read anew each time.
func (h *HTTP) followFiles(ctx context.Context) {
	if !h.files.headers && !h.files.ca {
		h.link.Store(&link{transports: h.dialer.transports(nil)})
		return
	}
	var (
		inForce content
		refused string
	)
	look := func() {
		next, err := settled(h.files.read)
		if err == nil && (h.link.Load() == nil || !next.equal(inForce)) {
			if err = h.takeOver(next, inForce); err == nil {
				inForce = next
			}
		}
		refused = h.report(err, refused)
	}
	look()
	h.background.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(spread(h.pace.files)):
				look()
			}
		}
	})
}

// report tells what is wrong with the files: each text once to the log, and to the gate where there never were good ones.
func (h *HTTP) report(err error, before string) string {
	if err == nil {
		h.gate.set(&h.gate.files, nil)
		return ""
	}
	if h.link.Load() == nil {
		h.gate.set(&h.gate.files, err)
	}
	if err.Error() != before {
		h.log.Error("failed to reload the files of the http handler; keeping the previous ones, if any", "error", err)
	}
	return err.Error()
}

// takeOver puts new files in force. Requests under way go on with the old ones.
func (h *HTTP) takeOver(next, before content) error {
	headers, err := newSecretHeaders(next.headers, h.cloudEvents)
	if err != nil {
		return err
	}
	old := h.link.Load()
	made := &link{headers: headers}
	if old != nil && bytes.Equal(next.ca, before.ca) {
		made.transports = old.transports
	} else {
		var roots *x509.CertPool
		if h.files.ca {
			if roots, err = certificates(next.ca); err != nil {
				return fmt.Errorf("%s: %w", caFile, err)
			}
		}
		made.transports = h.dialer.transports(roots)
	}
	h.link.Store(made)
	if old != nil {
		h.log.Info("changed files of the http handler taken over", "headers", slices.Sorted(maps.Keys(next.headers)))
		if old.transports != made.transports {
			old.transports.closeIdleConnections() // and those in use once they are idle
		}
	}
	h.readiness.doubt()
	return nil
}

// settled reads the files until two times give the same: they may be in the middle of a change, in which some cannot be read.
func settled(read func() (content, error)) (content, error) {
	before, problem := read()
	for range 10 {
		again, err := read()
		switch {
		case err == nil && problem == nil && again.equal(before):
			return again, nil
		case err != nil && problem != nil && err.Error() == problem.Error():
			return content{}, err
		}
		before, problem = again, err
	}
	return content{}, errors.New("files of the http handler: they do not stop changing")
}

func (f files) read() (content, error) {
	var found content
	if f.folder == "" {
		return content{}, errors.New("the spec takes headers or certificates from a Secret, and the worker was given no folder with them")
	}
	if f.ca {
		var err error
		if found.ca, err = readBounded(filepath.Join(f.folder, caFile), maxFile); err != nil {
			return content{}, err
		}
	}
	if !f.headers {
		return found, nil
	}
	folder := filepath.Join(f.folder, headersFolder)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return content{}, fmt.Errorf("headers of the http handler: %w", err)
	}
	found.headers = make(map[string]string, len(entries))
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") { // the kubelet's own, to which the files are links
			continue
		}
		value, err := readBounded(filepath.Join(folder, entry.Name()), maxSecretHeader)
		if err != nil {
			return content{}, err
		}
		found.headers[entry.Name()] = strings.TrimRight(string(value), "\r\n")
	}
	if len(found.headers) == 0 { // without its login, a handler would refuse every message
		return content{}, fmt.Errorf("%s: no header there; the Secret is missing, or has no keys", folder)
	}
	return found, nil
}

// readBounded returns a file's content. Its errors name the file.
func readBounded(path string, limit int) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the folder is the operator's, by flag
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: not there; the Secret is missing, or has no such key", path)
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // it has all that there is to say
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err != nil {
		return nil, err //nolint:wrapcheck // likewise
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", path, limit)
	}
	return data, nil
}

// certificates parses a list in PEM. All of it has to be good: one certificate left out may be the one that is needed.
func certificates(data []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	n := 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		n++
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is a %s, not a CERTIFICATE", n, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d does not parse: %w", n, err)
		}
		roots.AddCert(certificate)
	}
	if n == 0 {
		return nil, errors.New("holds no certificate in PEM")
	}
	if bytes.Contains(data, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("what follows certificate %d is not PEM", n)
	}
	return roots, nil
}
