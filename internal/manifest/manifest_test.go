package manifest_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// newLoader compiles the definitions once for all tests.
var newLoader = sync.OnceValues(manifest.NewLoader)

func load(t *testing.T, stream string) (*manifest.Set, error) {
	t.Helper()
	loader, err := newLoader()
	if err != nil {
		t.Fatal(err)
	}
	return loader.Load(t.Context(), strings.NewReader(stream), manifest.Stdin)
}

func mustLoad(t *testing.T, stream string) *manifest.Set {
	t.Helper()
	set, err := load(t, stream)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func name(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoader_SetsTheDefaultsOfTheCluster(t *testing.T) {
	set := mustLoad(t, policy()+"---\n"+transport("queues: [{name: a}]"))
	p := set.RetryPolicies[name("default", "subject")]
	if p == nil || p.Spec.MaxRetries == nil || *p.Spec.MaxRetries != 3 || p.Spec.MaxAge == nil || p.Spec.MaxAge.Duration.Duration != 24*time.Hour {
		t.Errorf("RetryPolicy is %+v, want maxRetries 3 and maxAge 24h", p)
	}
	if p != nil && (p.Status.ObservedGeneration != -1 || p.Kind != "RetryPolicy" || p.APIVersion != "redrive.dev/v1alpha1") {
		t.Errorf("RetryPolicy is %+v, want its kind and a status that nobody has looked at", p)
	}
	tr := set.Transports[name("default", "subject")]
	if tr == nil || tr.Spec.Lanes != "Standard" || tr.Spec.DeletionPolicy != "DeleteIfEmpty" {
		t.Errorf("Transport is %+v, want lanes Standard and deletionPolicy DeleteIfEmpty", tr)
	}
}

func TestLoader_IgnoresTheStatusOfAFile(t *testing.T) {
	set := mustLoad(t, policy("maxRetries: 1")+"status: {observedGeneration: 7, usedBy: 3}\n")
	if got := set.RetryPolicies[name("default", "subject")].Status; got.ObservedGeneration != -1 || got.UsedBy != nil {
		t.Errorf("status is %+v, want a fresh one", got)
	}
}

func TestLoader_TakesNullForAbsent(t *testing.T) {
	set := mustLoad(t, policy("maxRetries: null", "backoff: null"))
	if got := set.RetryPolicies[name("default", "subject")].Spec; *got.MaxRetries != 3 || got.Backoff != nil {
		t.Errorf("spec is %+v, want the defaults", got)
	}
}

func TestLoader_KeepsTheNamespaceOfAnObject(t *testing.T) {
	set := mustLoad(t, "apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: p, namespace: shop}\nspec: {}\n")
	if set.RetryPolicies[name("shop", "p")] == nil {
		t.Errorf("policies are %v, want shop/p", slices.Collect(maps.Keys(set.RetryPolicies)))
	}
}

func TestLoader_KeepsATemplateAsItIs(t *testing.T) {
	set := mustLoad(t, transport("queues: [{name: a}]",
		`workers: [{name: w, handler: {http: {url: "http://h/"}}, template: {spec: {nodeSelector: {disk: ssd}}}}]`))
	raw := string(set.Transports[name("default", "subject")].Spec.Workers[0].Template.Raw)
	if raw != `{"spec":{"nodeSelector":{"disk":"ssd"}}}` {
		t.Errorf("template is %s", raw)
	}
}

func TestLoader_RefusesObjectsInReadableWords(t *testing.T) {
	for title, tc := range refused {
		t.Run(title, func(t *testing.T) {
			_, err := load(t, tc.yaml)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "stdin:") {
				t.Fatalf("error is\n%v\nwant it to begin with the place and to hold\n%s", err, tc.want)
			}
			if strings.Contains(err.Error(), "<nil>") || strings.Contains(err.Error(), "anyOf") {
				t.Errorf("error is\n%v\nwant only what can be put right", err)
			}
		})
	}
}

func TestLoader_RefusesInputThatIsNotValid(t *testing.T) {
	cases := map[string]struct{ yaml, want string }{
		"no YAML":       {"# first\na: [", "stdin:2: this is no YAML: "},
		"a text":        {"hello", "stdin:1: is not an object with apiVersion and kind"},
		"no kind":       {"apiVersion: v1\nmetadata: {name: a}", "stdin:1: kind is not set"},
		"no apiVersion": {"kind: Secret\nmetadata: {name: a}", "stdin:1: apiVersion is not set"},
		"a version that does not exist": {
			"apiVersion: redrive.dev/v1beta1\nkind: Transport\nmetadata: {name: t}", `stdin:1: apiVersion: there is no kind Transport in redrive.dev/v1beta1: write redrive.dev/v1alpha1`,
		},
		"a kind that does not exist": {
			"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolice\nmetadata: {name: t}", `stdin:2: kind: there is no kind RetryPolice in redrive.dev/v1alpha1; did you mean RetryPolicy?`,
		},
		"a name for the cluster to make up": {
			"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {generateName: p-}\nspec: {}", "metadata.name",
		},
		"no name":                      {"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nspec: {}", "metadata.name: Required value"},
		"the same object twice":        {policy() + "---\n" + policy(), "stdin:6: RetryPolicy default/subject is already in stdin:1"},
		"the second document is wrong": {policy() + "---\n" + transport("queues: []"), "stdin:11: Transport default/subject: spec.queues"},
		"a list with a wrong item": {
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: redrive.dev/v1alpha1, kind: RetryPolicy, metadata: {name: a}, spec: {x: 1}}",
			`stdin:4: RetryPolicy default/a: spec.x: unknown field`,
		},
		"a list with an item that is none": {"apiVersion: v1\nkind: List\nitems: [7]", "stdin:3: is not an object"},
		"a list that is none":              {"apiVersion: v1\nkind: List\nitems: 7", "stdin:3: List: items is no list"},
		"a Secret with a misspelt field":   {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringdata: {a: b}", `stdin:4: Secret default/s: stringdata: unknown field; did you mean stringData?`},
		"a Secret with a key that is none": {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {'a b': c}", `data[a b]: Invalid value: "a b"`},
		"a Secret without a name":          {"apiVersion: v1\nkind: Secret\nstringData: {a: b}", "metadata.name: Required value"},
	}
	for title, tc := range cases {
		t.Run(title, func(t *testing.T) {
			if _, err := load(t, tc.yaml); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is\n%v\nwant it to hold\n%s", err, tc.want)
			}
		})
	}
}

func TestLoader_ReportsEveryWrongObject(t *testing.T) {
	_, err := load(t, policy("a: 1")+"---\n"+policy("b: 2"))
	if err == nil || !strings.Contains(err.Error(), `spec.a: unknown field`) || !strings.Contains(err.Error(), `spec.b: unknown field`) {
		t.Errorf("error is %v, want both documents in it", err)
	}
}

func TestLoader_ReportsErrorsInTheSameOrderEachTime(t *testing.T) {
	text := policy("maxRetries: -1", "maxAge: x", "backoff: {type: Linear, delay: y, maxDelay: z, step: x}")
	_, first := load(t, text)
	for range 20 {
		if _, again := load(t, text); first == nil || again == nil || again.Error() != first.Error() {
			t.Fatalf("two errors for the same file:\n%v\n%v", first, again)
		}
	}
}

func TestLoader_MayBeSharedBetweenGoroutines(t *testing.T) {
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for title, tc := range refused {
				if _, err := load(t, tc.yaml); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %v", title, err)
				}
			}
		})
	}
	group.Wait()
}

func TestLoader_ShowsNoValueOfASecretInErrors(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {password: hunter2!}",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: [hunter2]}",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2, password: hunter2}",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: hunter2",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  password: hunter2: x",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  password: *hunter2",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n\tpassword: hunter2",
		"kind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}",
		"apiVersion: v1\nmetadata: {name: s}\nstringData: {password: hunter2}",
	} {
		set, err := load(t, text)
		if err == nil {
			t.Errorf("%q was read: %v", text, set.Ignored)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error holds the password: %v", text, err)
		}
	}
}

func TestLoader_PutsAllValuesOfASecretIntoData(t *testing.T) {
	set := mustLoad(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {host: YQ==, port: MQ==}\nstringData: {port: '5672'}\n")
	s := set.Secrets[name("default", "s")]
	if s == nil || string(s.Data["host"]) != "a" || string(s.Data["port"]) != "5672" || len(s.StringData) != 0 {
		t.Errorf("Secret is %+v, want stringData over data", s)
	}
}

func TestLoader_IgnoresAndListsOtherKinds(t *testing.T) {
	set := mustLoad(t, "# only a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n# nothing\n---\n"+
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {anything: goes}\n---\napiVersion: x/v1\nkind: Odd\nmetadata: []\n")
	want := []manifest.Ignored{
		{Place: "stdin:3", APIVersion: "v1", Kind: "Namespace", Name: "shop"},
		{Place: "stdin:9", APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		{Place: "stdin:14", APIVersion: "x/v1", Kind: "Odd"},
	}
	if !slices.Equal(set.Ignored, want) {
		t.Errorf("ignored are\n%v\nwant\n%v", set.Ignored, want)
	}
}

func TestLoader_TakesListsApart(t *testing.T) {
	set := mustLoad(t, "apiVersion: v1\nkind: List\nitems:\n"+
		"- {apiVersion: redrive.dev/v1alpha1, kind: RetryPolicy, metadata: {name: a}, spec: {}}\n"+
		"- apiVersion: redrive.dev/v1alpha1\n  kind: RetryPolicyList\n  items: [{apiVersion: redrive.dev/v1alpha1, kind: RetryPolicy, metadata: {name: b}, spec: {}}]\n"+
		"- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n")
	if len(set.RetryPolicies) != 2 {
		t.Errorf("policies are %v, want a and b", slices.Collect(maps.Keys(set.RetryPolicies)))
	}
	if len(set.Ignored) != 1 || set.Ignored[0].Place != "stdin:8" {
		t.Errorf("ignored are %v, want item 3", set.Ignored)
	}
}

func TestLoader_ReadsDirectoriesWholeAndInOrder(t *testing.T) {
	configMap := func(name string) string { return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n" }
	dir := writeFiles(t, map[string]string{
		"b.yaml":                  configMap("b"),
		"a/z.yml":                 configMap("z"),
		"a/deep/y.yaml":           configMap("deep"),
		"c.yaml":                  configMap("c"),
		"kustomization.yaml":      "resources: [b.yaml]\n",
		"a/kustomization.yml":     "resources: [z.yml]\n",
		"notes.txt":               "not YAML: [",
		".hidden.yaml":            "not YAML: [",
		".git/config.yaml":        "not YAML: [",
		"..data/mounted.yaml":     "not YAML: [",
		"directory.yaml/inner.md": "not YAML: [",
	})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	loader, err := newLoader()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, dir + "/", link} {
		set, err := loader.Load(t.Context(), nil, path)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, ignored := range set.Ignored {
			names = append(names, ignored.Name)
		}
		if want := []string{"deep", "z", "b", "c"}; !slices.Equal(names, want) {
			t.Errorf("%s: read %v, want %v", path, names, want)
		}
	}
}

func TestLoader_MakesOneSetOfSeveralPaths(t *testing.T) {
	dir := writeFiles(t, map[string]string{"policy.yaml": policy(), "any.txt": transport("queues: [{name: a}]")})
	loader, err := newLoader()
	if err != nil {
		t.Fatal(err)
	}
	set, err := loader.Load(t.Context(), nil, filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "any.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.RetryPolicies) != 1 || len(set.Transports) != 1 {
		t.Errorf("set is %+v, want one of each kind", set)
	}
	_, err = loader.Load(t.Context(), nil, dir, filepath.Join(dir, "policy.yaml"))
	if err == nil || !strings.Contains(err.Error(), "is already in "+filepath.Join(dir, "policy.yaml")+":1") {
		t.Errorf("error is %v, want the place of the first", err)
	}
}

func TestLoader_RefusesPathsThatItCannotRead(t *testing.T) {
	loader, err := newLoader()
	if err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(empty, "absent"): "no such file",
		empty:                          "no *.yaml or *.yml",
	} {
		if _, err := loader.Load(t.Context(), nil, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q in it", path, err, want)
		}
	}
}
