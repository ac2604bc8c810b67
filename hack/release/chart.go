package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"redrive.dev/redrive/hack/oci"
)

const chartFolder = "config/chart"

// semantic versions, with the v that Go and git put before them.
var semantic = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?)$`)

// chartVersion is the version as Helm wants it. What is none, such as a hash of git, comes before all that are.
func chartVersion(version string) string {
	if match := semantic.FindStringSubmatch(version); match != nil {
		return match[1]
	}
	return "0.0.0-" + regexp.MustCompile(`[^0-9A-Za-z-]`).ReplaceAllString(version, "-")
}

// chart packs the chart as `helm package` does, but for the times in it.
func (r *release) chart() error {
	version := chartVersion(r.version)
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	w := oci.NewArchiver(compressed)
	source := filepath.Join(r.root, chartFolder)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == ".helmignore" {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // ours
		if err != nil {
			return err //nolint:wrapcheck // it names the file
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err //nolint:wrapcheck // it names the file
		}
		content, err = r.released(filepath.ToSlash(name), version, content)
		w.File("redrive/"+filepath.ToSlash(name), fileMode, content)
		return err
	})
	if err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}
	return r.write("redrive-"+version+".tgz", archive.Bytes())
}

// released puts the version and the images into a file of the chart.
func (r *release) released(name, version string, content []byte) ([]byte, error) {
	replacements := map[string][][2]string{
		"Chart.yaml": {
			{"\nversion: 0.0.0\n", "\nversion: " + version + "\n"},
			{"\nappVersion: latest\n", "\nappVersion: \"" + r.version + "\"\n"},
		},
		"values.yaml": {
			{"repository: redrive-manager\n", "repository: " + r.reference("redrive-manager") + "\n"},
			{"repository: redrive-worker\n", "repository: " + r.reference("redrive-worker") + "\n"},
		},
	}
	text := string(content)
	for _, pair := range replacements[name] {
		if strings.Count(text, pair[0]) != 1 {
			return nil, fmt.Errorf("%s has not one %q", name, pair[0])
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return []byte(text), nil
}
