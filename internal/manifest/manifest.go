// Package manifest reads the YAML that a cluster would be given: RetryPolicies, Transports and Secrets. It defaults and
// validates what it reads with the embedded CustomResourceDefinitions and the API server's own code, so that a file that
// the cluster refuses is refused here, with the same words, or shorter ones where the cluster's are hard to read.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"redrive.dev/redrive/api/v1alpha1"
)

// DefaultNamespace is the namespace of objects that name none.
const DefaultNamespace = "default"

// Stdin as a path stands for the standard input.
const Stdin = "-"

// Set is what was read. All objects are defaulted and valid.
type Set struct {
	RetryPolicies map[types.NamespacedName]*v1alpha1.RetryPolicy
	Transports    map[types.NamespacedName]*v1alpha1.Transport
	// Secrets have all their values in Data.
	Secrets map[types.NamespacedName]*corev1.Secret
	// Ignored are the objects of other kinds, in the order in which they were read.
	Ignored []Ignored

	sources map[key]source
}

// Ignored is an object that Redrive has no use for.
type Ignored struct {
	// Place is FILE:LINE.
	Place string
	// APIVersion, Kind and Name of the object; Name may be empty.
	APIVersion, Kind, Name string
}

// key identifies an object of a Set.
type key struct {
	kind string
	name types.NamespacedName
}

// Loader reads manifests. It is safe for concurrent use, and worth keeping: its rules are compiled once.
type Loader struct {
	admission map[string]*admission
}

// NewVerbatimLoader is NewLoader with the API server's own words in the errors, for those who compare the two.
func NewVerbatimLoader() (*Loader, error) {
	loader, err := NewLoader()
	if err != nil {
		return nil, err
	}
	for _, admission := range loader.admission {
		admission.verbatim = true
	}
	return loader, nil
}

// NewLoader compiles the embedded CustomResourceDefinitions.
func NewLoader() (*Loader, error) {
	admissions, err := compileCRDs()
	if err != nil {
		return nil, err
	}
	return &Loader{admission: admissions}, nil
}

// Load reads files, directories and, for "-", stdin. Of a directory it reads all *.yaml and *.yml in and below it, in the
// order of their names, but nothing hidden and no kustomization. It reports every object that is wrong, not only the
// first; every error begins with the file and the line, as FILE:LINE.
func (l *Loader) Load(ctx context.Context, stdin io.Reader, paths ...string) (*Set, error) {
	set := &Set{
		RetryPolicies: map[types.NamespacedName]*v1alpha1.RetryPolicy{},
		Transports:    map[types.NamespacedName]*v1alpha1.Transport{},
		Secrets:       map[types.NamespacedName]*corev1.Secret{},
		sources:       map[key]source{},
	}
	errs := make([]error, 0, len(paths))
	for _, path := range paths {
		errs = append(errs, l.loadPath(ctx, set, stdin, path))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return set, nil
}

func (l *Loader) loadPath(ctx context.Context, set *Set, stdin io.Reader, path string) error {
	if path == Stdin {
		return l.loadStream(ctx, set, "stdin", stdin)
	}
	files, err := filesOf(path)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // the user names it
		if err != nil {
			errs = append(errs, fmt.Errorf("read manifests: %w", err))
			continue
		}
		errs = append(errs, l.loadStream(ctx, set, file, bytes.NewReader(data)))
	}
	return errors.Join(errs...)
}

// loadStream reads the documents of one file.
func (l *Loader) loadStream(ctx context.Context, set *Set, file string, stream io.Reader) error {
	data, err := io.ReadAll(stream)
	if err != nil {
		return fmt.Errorf("read manifests: %s: %w", file, err)
	}
	// The reader of documents does so too, and what it gives is looked for in data.
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var errs []error
	for read := 0; ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("%s: %w", file, err))...)
		}
		read += max(0, bytes.Index(data[read:], bytes.TrimSuffix(text, []byte("\n"))))
		at := documentAt(file, bytes.Count(data[:read], []byte("\n")), text)
		read = min(read+len(text), len(data))
		objects, err := objectsOf(at)
		errs = append(errs, err)
		for _, object := range objects {
			errs = append(errs, l.add(ctx, set, object))
		}
	}
}

// filesOf lists the files to read for a path.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	// os.DirFS also follows a path that is a symbolic link, as the mount of a ConfigMap is.
	err = fs.WalkDir(os.DirFS(path), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != "." && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case !entry.IsDir() && isManifest(entry.Name()):
			files = append(files, filepath.Join(path, filepath.FromSlash(name)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests in %s: %w", path, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no *.yaml or *.yml in this directory", path)
	}
	return files, nil
}

func isManifest(name string) bool {
	stem, extension := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
	return slices.Contains([]string{".yaml", ".yml"}, extension) && stem != "kustomization"
}
