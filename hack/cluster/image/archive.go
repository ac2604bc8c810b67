package main

import (
	"encoding/json"
	"fmt"
	"io"

	"redrive.dev/redrive/hack/oci"
)

const (
	configFile = "config.json"
	layerFile  = "layer.tar"
	fileMode   = 0o644
)

// manifest is an entry of manifest.json, as `docker save` writes it.
//
//nolint:tagliatelle // Docker's spelling
type manifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// write writes the archive of an image with its layer in it.
func write(out io.Writer, name string, image oci.Image, layer []byte) error {
	config, err := image.Config(layer)
	if err != nil {
		return fmt.Errorf("configure the image: %w", err)
	}
	settings, err := json.Marshal(config)
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}
	index, err := json.Marshal([]manifest{{Config: configFile, RepoTags: []string{name}, Layers: []string{layerFile}}})
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}
	w := oci.NewArchiver(out)
	w.File("manifest.json", fileMode, index)
	w.File(configFile, fileMode, settings)
	w.File(layerFile, fileMode, layer)
	return w.Close() //nolint:wrapcheck // wrapped by the caller
}
