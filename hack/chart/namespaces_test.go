package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The names of the cluster's own objects tell releases apart.
func TestChart_InstallsWhatKustomizeDoesForSomeNamespaces(t *testing.T) {
	compare(t, unsuffixed(t, rendered(t, "watchNamespaces: [shop]")), kustomized(t, "config/namespaced"))
}

// unsuffixed gives objects the names that they have in kustomize.
func unsuffixed(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	t.Helper()
	renamed := map[string]*unstructured.Unstructured{}
	for key, object := range objects {
		text := strings.ReplaceAll(document(t, object), "-"+system+`"`, `"`)
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(text), object); err != nil {
			t.Fatal(err)
		}
		renamed[strings.TrimSuffix(key, "-"+system)] = object
	}
	return renamed
}

func TestChart_GrantsRightsInWatchedNamespacesAlone(t *testing.T) {
	objects := rendered(t, "watchNamespaces: [shop, billing]\nmetrics: {secure: false}")
	for _, key := range []string{"Role shop/redrive-manager", "RoleBinding shop/redrive-manager", "Role billing/redrive-manager", "RoleBinding billing/redrive-manager"} {
		if objects[key] == nil {
			t.Errorf("there is no %s", key)
		}
	}
	for key, object := range objects {
		if object.GetKind() != "ClusterRole" {
			continue
		}
		rules, _, _ := unstructured.NestedSlice(object.Object, "rules")
		if text := fmt.Sprint(rules); text != "[map[apiGroups:[] resourceNames:[kube-system] resources:[namespaces] verbs:[get]]]" {
			t.Errorf("%s: %s", key, text)
		}
	}
	if text := document(t, objects["Deployment "+system+"/redrive-manager"]); !strings.Contains(text, `"--watch-namespaces=shop,billing"`) {
		t.Errorf("the manager is not told: %s", text)
	}
}

// make changes arguments of the manager by their place, which moves when another is added.
func TestInstaller_InstallsWhatTheChartDoesForSomeNamespaces(t *testing.T) {
	if err := os.MkdirAll(filepath.Join(root, "dist"), 0o750); err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp(filepath.Join(root, "dist"), "test.") //nolint:usetesting // kustomize takes no folder elsewhere
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if _, err := execute(t, "make", "build-installer", "DIST=dist/"+filepath.Base(folder), "NAMESPACES=shop billing"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, unsuffixed(t, rendered(t, "watchNamespaces: [shop, billing]")), decoded(t, string(text)))
}
