package testcluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestMain(m *testing.M) { Main(m) }

func TestCluster_ServesOurKinds(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the API server")
	}
	c := Start(t)
	if again := Start(t); again != c {
		t.Error("a second start gave a second cluster")
	}
	first, second := c.Namespace(t), c.Namespace(t)
	if first == second {
		t.Errorf("two tests got the same namespace %s", first)
	}
	var definitions apiextensionsv1.CustomResourceDefinitionList
	if err := c.Client.List(t.Context(), &definitions); err != nil {
		t.Fatal(err)
	}
	if len(definitions.Items) != 2 {
		t.Errorf("%d CustomResourceDefinitions, want both kinds", len(definitions.Items))
	}
	var transports v1alpha1.TransportList
	if err := c.Client.List(t.Context(), &transports, client.InNamespace(first)); err != nil {
		t.Errorf("list Transports: %v", err)
	}
}

func TestFindAssets_SaysWhatToDoWhereTheyAreMissing(t *testing.T) {
	empty := t.TempDir()
	broken := t.TempDir()
	if err := os.MkdirAll(filepath.Join(broken, "hack"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "hack", "envtest.sh"), []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ root, given, want string }{
		"a folder without the programs": {empty, empty, "etcd"},
		"no script":                     {empty, "", "hack/envtest.sh"},
		"a script that fails":           {broken, "", "exit status 3"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := findAssets(t.Context(), tc.root, tc.given)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "set KUBEBUILDER_ASSETS") {
				t.Errorf("error is %v, want one with %q and the way out", err, tc.want)
			}
		})
	}
}

func TestFindAssets_TakesTheFolderThatTheScriptPrints(t *testing.T) {
	root := t.TempDir()
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if err := os.WriteFile(filepath.Join(root, program), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "hack"), 0o750); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho building\necho " + root + "\n"
	if err := os.WriteFile(filepath.Join(root, "hack", "envtest.sh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := findAssets(t.Context(), root, ""); err != nil || got != root {
		t.Errorf("assets are %q, %v, want %q", got, err, root)
	}
}
