package local

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/manifest"
)

func TestTakeSecrets_GivesAHandlerWhatItNames(t *testing.T) {
	const head = "apiVersion: redrive.dev/v1alpha1\nkind: Transport\nmetadata: {name: async}\n" +
		"spec:\n  broker: {secretRef: {name: rabbitmq}}\n  queues: [{name: test}]\n  workers:\n"
	const secrets = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {Authorization: s3cret-1, X-Api-Key: s3cret-2}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: b}\nstringData: {ca.crt: s3cret-3, other: s3cret-4}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: far, namespace: away}\nstringData: {Authorization: s3cret-5}\n"
	tests := map[string]struct {
		handler string
		want    Files
		problem string
	}{
		"nothing":          {"http: {url: 'https://h'}", Files{}, ""},
		"another kind":     {"image: i, exec: {command: [x]}", Files{}, ""},
		"headers":          {"http: {url: 'https://h', headersSecretRef: {name: a}}", Files{"headers/Authorization": []byte("s3cret-1"), "headers/X-Api-Key": []byte("s3cret-2")}, ""},
		"certificates":     {"http: {url: 'https://h', tls: {caSecretRef: {name: b}}}", Files{"ca.crt": []byte("s3cret-3")}, ""},
		"of another key":   {"http: {url: 'https://h', tls: {caSecretRef: {name: b, key: other}}}", Files{"ca.crt": []byte("s3cret-4")}, ""},
		"no such Secret":   {"http: {url: 'https://h', headersSecretRef: {name: c}}", nil, "spec.workers[0].handler.http.headersSecretRef: Secret default/c is not in the files"},
		"another's Secret": {"http: {url: 'https://h', headersSecretRef: {name: far}}", nil, "Secret default/far is not in the files"},
		"no such key":      {"http: {url: 'https://h', tls: {caSecretRef: {name: a}}}", nil, "tls.caSecretRef: Secret default/a has no key ca.crt"},
	}
	loader, err := manifest.NewLoader()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := loader.Load(t.Context(), strings.NewReader(head+"  - {name: default, handler: {"+tt.handler+"}}\n"+secrets), manifest.Stdin)
			if err != nil {
				t.Fatal(err)
			}
			units, err := Prepare(set)
			if err != nil {
				t.Fatal(err)
			}
			err = TakeSecrets(set, units)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("got %v", err)
				}
				return
			}
			if got := units[0].Files["default"]; err != nil || !maps.EqualFunc(got, tt.want, func(a, b []byte) bool { return string(a) == string(b) }) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestFolder_HoldsWhatItIsToldAndIsPrivate(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	put := func(files Files) {
		t.Helper()
		if err := f.add("handler", files); err != nil {
			t.Fatal(err)
		}
		if err := f.prune("handler", files); err != nil {
			t.Fatal(err)
		}
	}
	put(Files{"headers/A": []byte("1"), "headers/B": []byte("2")})
	before, err := os.Stat(f.at("handler/headers/B"))
	if err != nil {
		t.Fatal(err)
	}
	put(Files{"headers/B": []byte("2"), "ca.crt": []byte("3")})
	found := map[string]string{}
	err = filepath.WalkDir(f.path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s, %v", path, info.Mode(), err)
		}
		if !entry.IsDir() {
			name, _ := filepath.Rel(f.path, path)
			text, _ := os.ReadFile(path)
			found[name] = string(text)
		}
		return nil
	})
	if want := map[string]string{"handler/headers/B": "2", "handler/ca.crt": "3"}; err != nil || !maps.Equal(found, want) {
		t.Errorf("got %v, %v", found, err)
	}
	if after, err := os.Stat(f.at("handler/headers/B")); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that did not change was written: %v", err)
	}
	f.remove()
	if _, err := os.Stat(f.path); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}
