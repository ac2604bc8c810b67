package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/manifest"
)

// Files are contents by their slash-separated paths below a folder.
type Files map[string][]byte

// defaultCAKey of a Secret is the one that tls.caSecretRef means if it names none. It is the name of the file as well.
const defaultCAKey = "ca.crt"

// TakeSecrets gives each unit what its handlers take from the Secrets of the set. The error lists what is missing, and no value.
func TakeSecrets(set *manifest.Set, units []Unit) error {
	var problems []error
	for i := range units {
		transport := units[i].Transport
		units[i].Files = make(map[string]Files, len(transport.Spec.Workers))
		for n, worker := range transport.Spec.Workers {
			files, err := handlerFiles(worker.Handler, transport.Namespace, set)
			if err != nil {
				problems = append(problems, set.Locate("Transport", units[i].Name(), fmt.Errorf("spec.workers[%d].handler.http.%w", n, err)))
			}
			units[i].Files[worker.Name] = files
		}
	}
	return errors.Join(problems...)
}

// handlerFiles are the files that a handler's folder needs, as the worker of a pod finds them mounted.
func handlerFiles(handler v1alpha1.Handler, namespace string, set *manifest.Set) (Files, error) {
	files := Files{}
	if handler.HTTP == nil {
		return files, nil
	}
	find := func(field, name string) (map[string][]byte, error) {
		secret := set.Secrets[types.NamespacedName{Namespace: namespace, Name: name}]
		if secret == nil {
			return nil, fmt.Errorf("%s: Secret %s/%s is not in the files: add it to them", field, namespace, name)
		}
		return secret.Data, nil
	}
	if ref := handler.HTTP.HeadersSecretRef; ref != nil {
		headers, err := find("headersSecretRef", ref.Name)
		if err != nil {
			return files, err
		}
		for name, value := range headers {
			files["headers/"+name] = value
		}
	}
	if tls := handler.HTTP.TLS; tls != nil {
		data, err := find("tls.caSecretRef", tls.CASecretRef.Name)
		if err != nil {
			return files, err
		}
		key := defaultCAKey
		if tls.CASecretRef.Key != nil {
			key = *tls.CASecretRef.Key
		}
		if _, there := data[key]; !there {
			return files, fmt.Errorf("tls.caSecretRef: Secret %s/%s has no key %s", namespace, tls.CASecretRef.Name, key)
		}
		files[defaultCAKey] = data[key]
	}
	return files, nil
}

// folder is a private temporary folder of a worker group.
type folder struct{ path string }

func newFolder() (*folder, error) {
	path, err := os.MkdirTemp("", "redrive-worker-") // which others may not enter
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the folder
	}
	return &folder{path}, nil
}

// at is a path in the folder.
func (f *folder) at(name string) string { return filepath.Join(f.path, filepath.FromSlash(name)) }

// add writes files below a name. Who reads one has the one before or the new one, whole. What is in them already is left alone.
func (f *folder) add(below string, files Files) error {
	if err := os.MkdirAll(f.at(below), 0o700); err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	for name, content := range files {
		path := f.at(below + "/" + name)
		if before, err := os.ReadFile(path); err == nil && string(before) == string(content) { //nolint:gosec // our own folder
			continue
		}
		draft := f.at("draft")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(draft, content, 0o600)); err != nil {
			return err
		}
		if err := os.Rename(draft, path); err != nil {
			return err //nolint:wrapcheck // it names both files
		}
	}
	return nil
}

// prune removes the files below a name that are not among these.
func (f *folder) prune(below string, files Files) error {
	root := f.at(below)
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error { //nolint:wrapcheck // it names the file
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err //nolint:wrapcheck // cannot be: it is below root
		}
		if _, stays := files[filepath.ToSlash(name)]; stays {
			return nil
		}
		return os.Remove(path) //nolint:gosec // nobody else may write there
	})
}

// remove removes the folder; what cannot be removed is left to the system.
func (f *folder) remove() { _ = os.RemoveAll(f.path) }
