package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"redrive.dev/redrive/hack/oci"
)

// images writes those of the programs that have one.
func (r *release) images() error {
	trusted := roots()
	for _, p := range r.programs {
		if !p.image {
			continue
		}
		var architectures []oci.Image
		for _, platform := range p.platforms {
			content, err := r.read(p.file(platform))
			if err != nil {
				return err
			}
			architectures = append(architectures, oci.Image{
				Entrypoint: []string{"/" + p.name}, Program: content, Trusted: trusted,
				Labels: map[string]string{
					"org.opencontainers.image.version": r.version, "org.opencontainers.image.licenses": "Apache-2.0",
				},
			})
		}
		var archive bytes.Buffer
		name := r.reference(p.name) + ":" + r.version
		digest, err := oci.WriteLayout(&archive, name, r.version, architectures...)
		if err != nil {
			return fmt.Errorf("image of %s: %w", p.name, err)
		}
		if err := r.write(p.name+".oci.tar", archive.Bytes()); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "release: image %s@%s\n", name, digest)
	}
	return nil
}

// roots are the authorities that Mozilla trusts, in the state of a module that go.mod requires: those of the machine would make
// the image another one on another machine. What is trusted for some certificates only cannot be said in this format, and is
// left out.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return all.Bytes()
}
