package v1alpha1_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// `kubectl apply --server-side` is how docs/install.md installs.
func TestInstall_AppliesCRDsAndRolesServerSide(t *testing.T) {
	cluster := server(t)
	namespace := cluster.Namespace(t)
	applied := 0
	for _, pattern := range []string{"config/crd/bases/*.yaml", "config/rbac/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(files))
		}
		for _, file := range files {
			for _, o := range objectsIn(t, file, read(t, file)) {
				if o.GetKind() == "Kustomization" {
					continue
				}
				if slices.Contains([]string{"Role", "RoleBinding", "ServiceAccount"}, o.GetKind()) {
					o.SetNamespace(namespace)
				}
				if err := cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
					t.Errorf("%s: %v", file, err)
				}
				applied++
			}
		}
	}
	if applied < 10 {
		t.Errorf("%d objects are applied: the files are not read", applied)
	}
}

func TestCRD_TakesEverySampleAndExample(t *testing.T) {
	cluster := server(t)
	kinds := map[string]int{}
	for place, text := range shown(t) {
		for _, o := range objectsIn(t, place, text) {
			if !strings.HasPrefix(o.GetAPIVersion(), "redrive.dev/") {
				continue
			}
			kinds[o.GetKind()]++
			o.SetNamespace("default")
			if err := submit(t, cluster, o); err != nil {
				t.Errorf("%s: %v", place, err)
			}
		}
	}
	t.Logf("%v", kinds)
	if kinds["RetryPolicy"] < 10 || kinds["Transport"] < 10 {
		t.Errorf("found %v: the files are not read", kinds)
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// shown are the manifests that users are shown: whole files, and blocks in pages.
func shown(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	add := func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
		case strings.HasSuffix(path, ".yaml"):
			texts[path] = read(t, path)
		case strings.HasSuffix(path, ".md"):
			var blocks []string
			for _, match := range yamlBlock.FindAllStringSubmatch(read(t, path), -1) {
				blocks = append(blocks, match[1])
			}
			texts[path] = strings.Join(blocks, "\n---\n")
		}
		return nil
	}
	for _, path := range []string{"README.md", "docs", "config/samples"} {
		if err := filepath.WalkDir(filepath.Join(root, path), add); err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func objectsIn(t *testing.T, place, text string) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		var content map[string]any
		if err := yaml.Unmarshal([]byte(document), &content); err != nil {
			t.Logf("%s: not an object: %v", place, err)
			continue
		}
		if content["kind"] != nil {
			found = append(found, &unstructured.Unstructured{Object: content})
		}
	}
	return found
}
