package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	root  = "../.."
	chart = "config/chart"
	// system is the namespace that kustomize installs into.
	system = "redrive-system"
)

// programs are the pinned tools, each found once: `go tool` looks at all that it is built from every time.
var programs sync.Map

// tool runs one of them in the root of the repository.
func tool(t *testing.T, module, name string, arguments ...string) (output string, err error) {
	t.Helper()
	path, known := programs.Load(name)
	if !known {
		found, err := execute(t, "go", "tool", "-modfile=hack/tools/"+module, "-n", name)
		if err != nil {
			t.Fatal(err)
		}
		path = strings.TrimSpace(found)
		programs.Store(name, path)
	}
	return execute(t, path.(string), arguments...)
}

func execute(t *testing.T, program string, arguments ...string) (output string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Dir = root
	var problem bytes.Buffer
	command.Stderr = &problem
	text, err := command.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(arguments, " "), err, text, &problem)
	}
	return string(text), err
}

func helm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return tool(t, "helm/go.mod", "helm", arguments...)
}

// rendered are the objects of the chart with some values, as YAML.
func rendered(t *testing.T, values string) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := helm(t, "template", "redrive", chart, "--namespace", system, "--values", valuesFile(t, values))
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, text)
}

func valuesFile(t *testing.T, values string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func kustomized(t *testing.T, folder string) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := tool(t, "go.mod", "kustomize", "build", folder)
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, text)
}

// decoded are the objects by kind, namespace and name.
func decoded(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	found := map[string]*unstructured.Unstructured{}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) == 0 {
			continue
		}
		key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		if found[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		found[key] = object
	}
}

// compare the chart's objects with kustomize's, but for the namespace, which Helm makes otherwise, and for the mark by which
// Helm keeps the definitions.
func compare(t *testing.T, got, want map[string]*unstructured.Unstructured) {
	t.Helper()
	delete(want, "Namespace /"+system)
	for key, object := range got {
		if annotations := object.GetAnnotations(); object.GetKind() == "CustomResourceDefinition" {
			if annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("%s is not kept: %v", key, annotations)
			}
			delete(annotations, "helm.sh/resource-policy")
			object.SetAnnotations(annotations)
		}
		if want[key] == nil {
			t.Errorf("only the chart has %s", key)
		} else if !equality.Semantic.DeepEqual(object.Object, want[key].Object) {
			t.Errorf("%s differs:\n%.3000s\nkustomize has\n%.3000s", key, document(t, object), document(t, want[key]))
		}
	}
	for key := range want {
		if got[key] == nil {
			t.Errorf("the chart does not have %s", key)
		}
	}
}

func document(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestChart_InstallsWhatKustomizeDoes(t *testing.T) {
	got, want := rendered(t, ""), kustomized(t, "config/default")
	if len(want) < 10 {
		t.Fatalf("kustomize has only %d objects", len(want))
	}
	compare(t, got, want)
}

// Values and what they are to put into the Deployment, or into all objects where none is named.
func TestChart_PutsValuesWhereTheyBelong(t *testing.T) {
	tests := map[string]struct {
		values      string
		object      string
		has, hasNot []string
	}{
		"images by tag": {
			values: "image: {manager: {repository: registry.example/m, tag: v1}, worker: {repository: registry.example/w, tag: v2}, workerPullPolicy: Always}",
			has:    []string{`"image":"registry.example/m:v1"`, `"value":"registry.example/w:v2"`, `"--worker-image-pull-policy=Always"`},
		},
		"images by digest": {
			values: "image: {manager: {digest: sha256:" + strings.Repeat("a", 64) + "}}",
			has:    []string{`"image":"redrive-manager@sha256:` + strings.Repeat("a", 64) + `"`, `"value":"redrive-worker:latest"`},
		},
		"pull secrets": {values: "imagePullSecrets: [{name: registry}]", has: []string{`"imagePullSecrets":[{"name":"registry"}]`}},
		"where the pods go": {
			values: "nodeSelector: {pool: system}\ntolerations: [{key: pool, operator: Exists}]\naffinity: {nodeAffinity: {}}",
			has:    []string{`"nodeSelector":{"pool":"system"}`, `"tolerations":[{"key":"pool","operator":"Exists"}]`, `"affinity":{"nodeAffinity":{}}`},
			hasNot: []string{"podAntiAffinity"},
		},
		"resources replace all": {values: "resources: {limits: {memory: 1Gi}}", has: []string{`"resources":{"limits":{"memory":"1Gi"}}`}},
		"resources of workers": {
			values: "workerResources: {requests: {memory: 32Mi, cpu: 0.5}, limits: {memory: 1Gi}}",
			has:    []string{`"--worker-requests=cpu=0.5,memory=32Mi","--worker-limits=memory=1Gi"`},
		},
		"workers that request nothing": {values: "workerResources: {requests: {}}", has: []string{`"--worker-requests="`}, hasNot: []string{"--worker-limits"}},
		"one replica":                  {values: "replicas: 1", has: []string{`"replicas":1`}},
		"poll and more flags": {
			values: "pollInterval: 5m\nextraArgs: ['--log-level=DEBUG', '--lane-grace=1h']",
			has:    []string{`"--poll-interval=5m","--log-level=DEBUG","--lane-grace=1h"`},
		},
		"metrics at another port": {
			values: "metrics: {address: '127.0.0.1:9000', secure: false}",
			has:    []string{`"--metrics-bind-address=127.0.0.1:9000"`, `"containerPort":9000`, `"--metrics-secure=false"`},
		},
		"the service of these": {
			values: "metrics: {address: ':9000'}", object: "Service " + system + "/redrive-manager-metrics", has: []string{`"port":9000`},
		},
		"no metrics": {
			values: "metrics: {address: '0'}", has: []string{`"--metrics-bind-address=0"`}, hasNot: []string{`"containerPort":8443`},
		},
		"a ServiceMonitor": {
			values: "metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}}",
			object: "ServiceMonitor " + system + "/redrive-manager",
			has:    []string{`"release":"prometheus"`, `"scheme":"https"`, `"bearerTokenFile"`},
		},
		"one over HTTP": {
			values: "metrics: {secure: false, serviceMonitor: {enabled: true}}",
			object: "ServiceMonitor " + system + "/redrive-manager", hasNot: []string{"https", "bearerTokenFile"},
		},
		"a PodMonitor of some namespaces": {
			values: "watchNamespaces: [shop]\nmetrics: {podMonitor: {enabled: true}}",
			object: "PodMonitor " + system + "/redrive-workers", has: []string{`"namespaceSelector":{"matchNames":["shop"]}`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			key := tt.object
			if key == "" {
				key = "Deployment " + system + "/redrive-manager"
			}
			object := rendered(t, tt.values)[key]
			if object == nil {
				t.Fatalf("there is no %s", key)
			}
			text := document(t, object)
			for _, part := range tt.has {
				if !strings.Contains(text, part) {
					t.Errorf("%s is not in %s", part, text)
				}
			}
			for _, part := range tt.hasNot {
				if strings.Contains(text, part) {
					t.Errorf("%s is in %s", part, text)
				}
			}
		})
	}
}

func TestChart_LeavesOutWhatIsTurnedOff(t *testing.T) {
	all := slices.Collect(maps.Keys(rendered(t, "")))
	tests := map[string]struct {
		values string
		gone   string
	}{
		"definitions":                {"crds: {enabled: false}", "^CustomResourceDefinition"},
		"metrics":                    {"metrics: {address: '0'}", "metrics"},
		"the rights to ask who asks": {"metrics: {secure: false}", "metrics-(auth|reader)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := rendered(t, tt.values)
			for _, key := range all {
				if gone := regexp.MustCompile(tt.gone).MatchString(key); gone == (objects[key] != nil) {
					t.Errorf("%s: there %v", key, objects[key] != nil)
				}
			}
		})
	}
}

func TestChart_GrantsWritingSecretsOnlyWhereAsked(t *testing.T) {
	const verbs = `"verbs":["create","patch","delete"]`
	for values, want := range map[string][]string{
		"": nil,
		"scopedUsers: {enabled: true}": {
			"ClusterRole /redrive-scoped-users", "ClusterRoleBinding /redrive-scoped-users",
		},
		"scopedUsers: {enabled: true}\nwatchNamespaces: [shop, billing]": {
			"ClusterRole /redrive-scoped-users-" + system, "RoleBinding billing/redrive-scoped-users-" + system,
			"RoleBinding shop/redrive-scoped-users-" + system,
		},
	} {
		var got []string
		for key, object := range rendered(t, values) {
			if strings.Contains(key, "scoped-users") {
				got = append(got, key)
			}
			if text := document(t, object); strings.Contains(key, "Role ") && strings.Contains(text, verbs) != (key == "ClusterRole /"+object.GetName() && want != nil && key == want[0]) {
				t.Errorf("%s: %s", key, text)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%q has %q", values, got)
		}
	}
}

func TestChart_LetsDefinitionsGoWithTheReleaseWhereAsked(t *testing.T) {
	for key, object := range rendered(t, "crds: {keep: false}") {
		if policy, there := object.GetAnnotations()["helm.sh/resource-policy"]; there {
			t.Errorf("%s: %s", key, policy)
		}
	}
}

func TestChart_RefusesValuesThatCannotBe(t *testing.T) {
	for _, values := range []string{
		"replica: 3",
		"replicas: two",
		"image: {manager: redrive}",
		"image: {pullPolicy: Sometimes}",
		"image: {worker: {digest: latest}}",
		"watchNamespaces: ['Shop']",
		"pollInterval: often",
		"metrics: {address: everywhere}",
		"metrics: {rules: true}",
		"extraArgs: ['-v']",
		"crds: {keep: 'no'}",
	} {
		if _, err := helm(t, "template", "redrive", chart, "--values", valuesFile(t, values)); err == nil {
			t.Errorf("%s was taken", values)
		}
	}
}

func TestChart_PassesHelmLint(t *testing.T) {
	for _, values := range []string{"", "watchNamespaces: [shop]\nmetrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}, rules: {enabled: true}}"} {
		output, err := helm(t, "lint", "--strict", chart, "--values", valuesFile(t, values))
		if err != nil {
			t.Error(err)
		}
		// That a chart has no icon is what it has to say.
		for line := range strings.Lines(output) {
			if strings.HasPrefix(line, "[") && !strings.Contains(line, "icon is recommended") {
				t.Error(line)
			}
		}
	}
}

func TestChart_InstallsWhatKustomizeDoesForPrometheus(t *testing.T) {
	got := rendered(t, "metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}, rules: {enabled: true}}\ncrds: {enabled: false}")
	want := kustomized(t, monitored)
	for key := range got {
		if want[key] == nil {
			delete(got, key)
		}
	}
	compare(t, got, want)
}

func TestRender_GivesTheChartAsItIs(t *testing.T) {
	t.Chdir(root)
	builds, err := buildAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, err := render(builds)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(got) != want {
			t.Errorf("%s is out of date, make chart renews it: %v", name, err)
		}
	}
}

func TestRender_RefusesConfigThatDoesNotFit(t *testing.T) {
	t.Chdir(root)
	const deployment = "Deployment redrive-manager"
	tests := map[string]struct {
		change func(everywhere objects)
		says   string
	}{
		"an object that no page is for": {func(o objects) { o["Secret new"] = "kind: Secret\n" }, "no page for Secret new"},
		"an object that is not there":   {func(o objects) { delete(o, deployment) }, "config/default has no " + deployment},
		"a line that is not there": {func(o objects) {
			o[deployment] = strings.Replace(o[deployment], "replicas: 2", "replicas: 3", 1)
		}, `"  replicas: 2\n" is there 0 times`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			builds, err := buildAll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tt.change(builds[everywhere])
			if _, err := render(builds); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// Each value stands in the schema, which refuses others, and on the page.
func TestChart_HasEveryValueOnItsPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var visit func(path string, value any)
	visit = func(path string, value any) {
		children, branches := value.(map[string]any)
		if branches && len(children) > 0 {
			for name, child := range children {
				visit(strings.TrimPrefix(path+"."+name, "."), child)
			}
			return
		}
		seen++
		last := path[strings.LastIndex(path, ".")+1:]
		if !strings.Contains(string(page), "`"+path+"`") && !strings.Contains(string(page), "`."+last+"`") {
			t.Errorf("the page of the chart does not have `%s`", path)
		}
	}
	visit("", values)
	if seen < 15 {
		t.Errorf("only %d values: the test reads nothing", seen)
	}
}
