package manifest_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	crd "redrive.dev/redrive/config/crd"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
)

const (
	samples  = "../../config/samples"
	examples = "../../docs/examples"
)

func loaded(t *testing.T, path string) *manifest.Set {
	t.Helper()
	loader, err := newLoader()
	if err != nil {
		t.Fatal(err)
	}
	set, err := loader.Load(t.Context(), nil, path)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSamples_LoadAndCompile(t *testing.T) {
	// The samples are one set, and each example is a set of its own; the later steps of one use the policies of the first.
	policies := map[string]*v1alpha1.RetryPolicy{}
	for _, path := range append(exampleFiles(t), samples) {
		set := loaded(t, path)
		ignored := slices.DeleteFunc(set.Ignored, func(i manifest.Ignored) bool { return path == samples && i.Kind == "RabbitmqCluster" })
		if len(set.Transports) != 1 || len(ignored) != 0 {
			t.Errorf("%s: %d Transports and ignored %v, want one and none", path, len(set.Transports), ignored)
		}
		for name, policy := range set.RetryPolicies {
			policies[name.Name] = policy
		}
		for name, transport := range set.Transports {
			if _, err := compile.Compile(transport, policies); err != nil {
				t.Errorf("%s: Transport %s: %v", path, name, err)
			}
		}
	}
	set := loaded(t, samples)
	for name, transport := range set.Transports {
		secret := name
		secret.Name = transport.Spec.Broker.SecretRef.Name
		if set.Secrets[secret] == nil {
			t.Errorf("Transport %s refers to the Secret %s, which is no sample", name, secret)
		}
	}
}

func exampleFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{examples + "/*.yaml", examples + "/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(files))
		}
		all = append(all, files...)
	}
	// What `redrive policy test` compares with is no manifest.
	return slices.DeleteFunc(all, func(file string) bool { return filepath.Base(file) == "cases.yaml" })
}

func TestSamples_AreAllInTheKustomization(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(samples, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if base := filepath.Base(file); base != "kustomization.yaml" {
			names = append(names, base)
		}
	}
	slices.Sort(kustomization.Resources)
	if !slices.Equal(names, kustomization.Resources) {
		t.Errorf("kustomization lists %v, the directory holds %v", kustomization.Resources, names)
	}
}

func TestSamples_ShowEveryTypeOfBackoffAndJitter(t *testing.T) {
	backoffs, jitters := map[v1alpha1.BackoffType]bool{}, map[v1alpha1.JitterType]bool{}
	for _, policy := range loaded(t, samples).RetryPolicies {
		if backoff := policy.Spec.Backoff; backoff != nil {
			backoffs[backoff.Type] = true
			if backoff.Jitter != nil {
				jitters[backoff.Jitter.Type] = true
			}
		}
	}
	if len(backoffs) != 4 || len(jitters) != 5 {
		t.Errorf("samples show the backoffs %v and the jitters %v, want all 4 and all 5", backoffs, jitters)
	}
}

// A field that no sample shows is a field that nobody finds, and that nobody has tried.
func TestSamples_UseEveryFieldOfTheAPI(t *testing.T) {
	used := map[string]bool{}
	files, err := filepath.Glob(samples + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, exampleFiles(t)...) {
		collectUsed(t, file, used)
	}
	fields := specFields(t)
	if len(fields) < 50 {
		t.Fatalf("the schemas have %d fields, which cannot be all", len(fields))
	}
	for _, field := range fields {
		if !used[field] {
			t.Errorf("no sample uses %s", field)
		}
	}
}

// collectUsed notes the fields that the objects of a file set themselves, before any defaults.
func collectUsed(t *testing.T, file string, used map[string]bool) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var object struct {
			Kind string `json:"kind"`
			Spec any    `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		walkValue(object.Kind+".spec", object.Spec, used)
	}
}

func walkValue(path string, value any, used map[string]bool) {
	used[path] = true
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			walkValue(path+"."+key, child, used)
		}
	case []any:
		for _, child := range value {
			walkValue(path+"[]", child, used)
		}
	}
}

// specFields lists the paths of all fields of both specs.
func specFields(t *testing.T) []string {
	t.Helper()
	fields := map[string]bool{}
	entries, err := crd.FS.ReadDir("bases")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := crd.FS.ReadFile("bases/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &definition); err != nil {
			t.Fatal(err)
		}
		spec := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		walkSchema(definition.Spec.Names.Kind+".spec", &spec, fields)
	}
	return slices.Sorted(maps.Keys(fields))
}

func walkSchema(path string, schema *apiextensionsv1.JSONSchemaProps, fields map[string]bool) {
	fields[path] = true
	if path == "RetryPolicy.spec.strategies[].backoff" {
		return // the same type as RetryPolicy.spec.backoff, whose fields count once
	}
	for name, property := range schema.Properties {
		walkSchema(path+"."+name, &property, fields)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		walkSchema(path+"[]", schema.Items.Schema, fields)
	}
}

func TestExamples_ShowEveryKindOfHandler(t *testing.T) {
	shown := map[string]bool{}
	for _, path := range exampleFiles(t) {
		for _, transport := range loaded(t, path).Transports {
			for i := range transport.Spec.Workers {
				handler := transport.Spec.Workers[i].Handler
				shown["http"] = shown["http"] || handler.HTTP != nil && handler.Image == nil
				shown["http with an image"] = shown["http with an image"] || handler.HTTP != nil && handler.Image != nil
				shown["exec"] = shown["exec"] || handler.Exec != nil
				shown["process"] = shown["process"] || handler.Process != nil
				shown["inProcess"] = shown["inProcess"] || handler.InProcess != nil
			}
		}
	}
	for kind, is := range shown {
		if !is {
			t.Errorf("no example has the handler %s", kind)
		}
	}
}

func TestSamples_AreTheFoundingConfiguration(t *testing.T) {
	set := loaded(t, samples)
	transport := set.Transports[name("default", "async")]
	if transport == nil {
		t.Fatal("no Transport async")
	}
	spec, err := json.Marshal(transport.Spec.Exchange)
	if err != nil {
		t.Fatal(err)
	}
	if string(spec) != `{"name":"async","type":"Direct","unroutedTo":"lost"}` {
		t.Errorf("exchange is %s", spec)
	}
	queues := map[string][]string{}
	for _, queue := range transport.Spec.Queues {
		queues[queue.Name] = queue.BindingKeys
	}
	if !slices.Equal(queues["lost"], []string{"lost"}) || !slices.Equal(queues["test"], []string{"test"}) || len(queues) != 2 {
		t.Errorf("queues are %v, want lost and test with their own keys", queues)
	}
	for _, strategy := range set.RetryPolicies[name("default", transport.Spec.RetryPolicyRef.Name)].Spec.Strategies {
		if strategy.Name == "throttled" {
			if strategy.When != "error.status == 429" || !*strategy.Unlimited || *strategy.DelayFrom != "error.retryAfter" {
				t.Errorf("throttled is %+v", strategy)
			}
			return
		}
	}
	t.Error("no strategy for too many requests")
}

// The broker of the sample has the setting that docs/install.md advises, word by word.
func TestSamples_GiveARabbitmqClusterTheAdvisedSetting(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(samples, "rabbitmqcluster", "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cluster struct {
		Spec struct {
			RabbitMQ struct {
				AdvancedConfig string `json:"advancedConfig"`
			} `json:"rabbitmq"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &cluster); err != nil {
		t.Fatal(err)
	}
	advised, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	setting := strings.TrimSpace(cluster.Spec.RabbitMQ.AdvancedConfig)
	if !strings.Contains(setting, "dead_letter_worker_publisher_confirm_timeout") || !strings.Contains(string(advised), setting) {
		t.Errorf("the sample has %q, which docs/install.md does not advise", setting)
	}
}
