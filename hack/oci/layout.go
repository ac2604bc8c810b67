package oci

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"

	// tagAnnotation has the tag, for tools by the specification; containerd takes the whole name from another.
	tagAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

// descriptor leads to content by its digest.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type imageManifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// WriteLayout writes one image for several architectures as an archive of an OCI layout, which `skopeo copy oci-archive:FILE` and
// `ctr images import` take, and `docker load` where Docker has containerd's image store. The tag is that of the image, and name its
// reference with it. The result is the digest by which registries and clusters will know the image.
func WriteLayout(out io.Writer, name, tag string, images ...Image) (string, error) {
	blobs := blobs{}
	all := index{SchemaVersion: 2, MediaType: indexType}
	for _, image := range images {
		manifest, err := blobs.image(image)
		if err != nil {
			return "", err
		}
		all.Manifests = append(all.Manifests, manifest)
	}
	root, err := blobs.json(indexType, all)
	if err != nil {
		return "", err
	}
	root.Annotations = map[string]string{tagAnnotation: tag, nameAnnotation: name}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{root}})
	if err != nil {
		return "", fmt.Errorf("write the index: %w", err)
	}
	w := NewArchiver(out)
	w.File("oci-layout", fileMode, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	w.File("index.json", fileMode, top)
	w.Folder("blobs", folderMode)
	w.Folder("blobs/sha256", folderMode)
	for _, digest := range slices.Sorted(maps.Keys(blobs)) {
		w.File("blobs/sha256/"+digest[len("sha256:"):], fileMode, blobs[digest])
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("write the archive: %w", err)
	}
	return root.Digest, nil
}

// blobs by digest.
type blobs map[string][]byte

func (b blobs) add(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	b[d.Digest] = data
	return d
}

func (b blobs) json(mediaType string, content any) (descriptor, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return descriptor{}, fmt.Errorf("write %s: %w", mediaType, err)
	}
	return b.add(mediaType, data), nil
}

// image adds one architecture, and returns what leads to its manifest.
func (b blobs) image(image Image) (descriptor, error) {
	layer, err := image.Layer()
	if err != nil {
		return descriptor{}, err
	}
	settings, err := image.Config(layer)
	if err != nil {
		return descriptor{}, err
	}
	config, err := b.json(configType, settings)
	if err != nil {
		return descriptor{}, err
	}
	compressed, err := compress(layer)
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := b.json(manifestType, imageManifest{
		SchemaVersion: 2, MediaType: manifestType, Config: config, Layers: []descriptor{b.add(layerType, compressed)},
	})
	manifest.Platform = &platform{Architecture: settings.Architecture, OS: settings.OS}
	return manifest, err
}

// compress without a time and a name.
func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return out.Bytes(), nil
}
