// Command chart writes the templates of the Helm chart, config/chart/templates, from what kustomize builds of config/default,
// config/namespaced, config/prometheus and config/scoped-users:
//
//	go run ./hack/chart
//
// Each object goes into a file of its own, and the few expressions of pages.go are put in. They are put in by their place in the
// text, which must be there exactly once: where config changes so that one is not, the chart is not written, and this says which.
// So is an object that pages.go does not name. What a template says besides is kustomize's.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	folder = "config/chart/templates"
	// written is the first line of each file that this program writes, and may delete.
	written = "{{- /* Written by `make chart` from config/. */ -}}\n"

	fileMode = 0o644
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	builds, err := buildAll(ctx)
	if err != nil {
		return err
	}
	files, err := render(builds)
	if err != nil {
		return err
	}
	if err := removeWritten(); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), fileMode); err != nil {
			return fmt.Errorf("write the chart: %w", err)
		}
	}
	return nil
}

// Folders that the chart is made from.
const (
	everywhere = "config/default"
	watched    = "config/namespaced"
	monitored  = "config/prometheus"
	scoped     = "config/scoped-users"
	scopedIn   = "config/scoped-users/namespace"
)

// objects are documents of YAML by kind and name, such as "Service redrive-manager-metrics".
type objects map[string]string

// buildAll returns what kustomize makes of the folders.
func buildAll(ctx context.Context) (map[string]objects, error) {
	builds := map[string]objects{}
	for _, source := range []string{everywhere, watched, monitored, scoped, scopedIn} {
		command := exec.CommandContext(ctx, "go", "tool", "-modfile=hack/tools/go.mod", "kustomize", "build", source) //nolint:gosec // ours
		command.Stderr = os.Stderr
		output, err := command.Output()
		if err != nil {
			return nil, fmt.Errorf("kustomize build %s: %w", source, err)
		}
		if builds[source], err = split(string(output)); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
	}
	return builds, nil
}

// split tells the objects apart. What is an expression to Helm, as in the texts of alerts, is quoted.
func split(text string) (objects, error) {
	text = strings.ReplaceAll(text, "{{", "{{`{{`}}")
	found := objects{}
	kind, name := regexp.MustCompile(`(?m)^kind: (.+)$`), regexp.MustCompile(`(?m)^  name: (.+)$`)
	for document := range strings.SplitSeq(text, "\n---\n") {
		k, n := kind.FindStringSubmatch(document), name.FindStringSubmatch(document)
		if k == nil || n == nil {
			return nil, fmt.Errorf("an object without a kind or a name: %.200s", document)
		}
		found[k[1]+" "+n[1]] = strings.TrimSuffix(document, "\n") + "\n"
	}
	return found, nil
}

// render gives the files of the chart.
func render(builds map[string]objects) (map[string]string, error) {
	files := map[string]string{}
	done := map[string]bool{"Namespace redrive-system": true} // Helm makes it with --create-namespace
	for _, page := range pages() {
		text, exists := builds[page.source][page.object]
		if !exists {
			return nil, fmt.Errorf("%s has no %s", page.source, page.object)
		}
		for _, edit := range append(page.edits, everyPage()...) {
			var err error
			if text, err = edit(text); err != nil {
				return nil, fmt.Errorf("%s: %w", page.object, err)
			}
		}
		done[page.object] = true
		files[page.file] += page.under(text)
	}
	for source, found := range builds {
		for object := range found {
			if !done[object] {
				return nil, fmt.Errorf("hack/chart/pages.go has no page for %s of %s", object, source)
			}
		}
	}
	for name, text := range files {
		files[name] = written + text
	}
	return files, nil
}

// removeWritten deletes what an earlier run wrote.
func removeWritten() error {
	names, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return fmt.Errorf("look for the chart: %w", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // ours
		if err != nil {
			return fmt.Errorf("look at the chart: %w", err)
		}
		if !strings.HasPrefix(string(text), written) {
			continue
		}
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("renew the chart: %w", err)
		}
	}
	return nil
}
