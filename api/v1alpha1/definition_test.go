package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	crd "redrive.dev/redrive/config/crd"
)

// definitions are the generated CustomResourceDefinitions.
func definitions(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	entries, err := crd.FS.ReadDir("bases")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, entry := range entries {
		data, err := crd.FS.ReadFile("bases/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, definition); err != nil {
			t.Fatal(err)
		}
		found[definition.Spec.Names.Kind] = definition
	}
	if len(found) != 2 {
		t.Fatalf("%d CustomResourceDefinitions, want 2", len(found))
	}
	return found
}

// kubectl apply, as opposed to server-side apply, keeps the whole definition in an annotation, which has a limit.
func TestCRD_IsSmallEnoughForKubectlApply(t *testing.T) {
	const limit = 262144
	cluster := server(t)
	for kind, definition := range definitions(t) {
		applied, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		if len(applied) > limit/2 {
			t.Errorf("%s has %d bytes: half of the %d of an annotation leaves room to grow", kind, len(applied), limit)
		}
		var live apiextensionsv1.CustomResourceDefinition
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(definition), &live); err != nil {
			t.Fatal(err)
		}
		live.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: string(applied)}
		if err := cluster.Client.Update(t.Context(), &live, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestCRD_IsEstablished(t *testing.T) {
	cluster := server(t)
	for kind, definition := range definitions(t) {
		var live apiextensionsv1.CustomResourceDefinition
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(definition), &live); err != nil {
			t.Fatal(err)
		}
		conditions := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{}
		for _, condition := range live.Status.Conditions {
			conditions[condition.Type] = condition.Status
		}
		if conditions[apiextensionsv1.Established] != apiextensionsv1.ConditionTrue ||
			conditions[apiextensionsv1.NamesAccepted] != apiextensionsv1.ConditionTrue ||
			conditions[apiextensionsv1.NonStructuralSchema] == apiextensionsv1.ConditionTrue {
			t.Errorf("%s: conditions are %v", kind, live.Status.Conditions)
		}
	}
}

func TestCRD_RefusesUnknownFieldsAsKubectlAsks(t *testing.T) {
	verdicts := map[string]map[string]verdict{
		"RetryPolicy": {
			"an unknown field":              {"maxRetrys: 3", `strict decoding error: unknown field "spec.maxRetrys"`},
			"an unknown field in a backoff": {"backoff: {type: Constant, dellay: 1s}", `unknown field "spec.backoff.dellay"`},
			"another case":                  {"maxretries: 3", `unknown field "spec.maxretries"`},
		},
		"Transport": {
			"an unknown field in a queue":   {"broker: {secretRef: {name: r}}\nqueues: [{name: a, ttl: 1s}]", `unknown field "spec.queues[0].ttl"`},
			"an unknown field in a worker":  {minimal + "workers: [{name: w, image: x, handler: {http: {url: 'http://h/'}}}]", `unknown field "spec.workers[0].image"`},
			"anything goes in the template": {minimal + "workers: [{name: w, handler: {http: {url: 'http://h/'}}, template: {x: {y: 1}}}]", ""},
		},
	}
	for kind, table := range verdicts {
		runs(t, kind, table)
	}
}

// Server-side apply has a type system of its own, which takes less than the rest of the server: a set of objects, for instance, it refuses.
func TestCRD_TakesEveryFieldByServerSideApply(t *testing.T) {
	cluster := server(t)
	namespace := cluster.Namespace(t)
	for kind, specs := range seeds {
		for i, spec := range specs {
			o := object(t, kind, spec)
			o.SetNamespace(namespace)
			o.SetGenerateName("")
			o.SetName(fmt.Sprint("applied-", i))
			for _, owner := range []client.FieldOwner{"kubectl", "kubectl", "argocd"} {
				if err := cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), owner, client.ForceOwnership); err != nil {
					t.Errorf("%s applies %s %s: %v", owner, kind, spec, err)
				}
			}
		}
	}
}

// The cost of CEL rules is estimated from the bounds of lists and strings when the definition is installed, and counted
// when an object is checked. Objects at all the bounds pass both, and are stored.
func TestCRD_AcceptsObjectsOfFullSize(t *testing.T) {
	cluster := server(t)
	cases := map[string]struct{ kind, spec string }{
		"a RetryPolicy with 128 strategies": {"RetryPolicy", fullPolicy(128)},
		"a Transport with 64 queues":        {"Transport", fullTransport(64, 0, 0)},
		"a Transport with 16 workers":       {"Transport", fullTransport(1, 16, 0)},
		"a Transport with 256 rules":        {"Transport", fullTransport(1, 0, 256)},
		"a Transport with all of them":      {"Transport", fullTransport(64, 16, 256)},
	}
	namespace := cluster.Namespace(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := object(t, tc.kind, tc.spec)
			o.SetNamespace(namespace)
			if err := cluster.Client.Create(t.Context(), o, client.FieldValidation("Strict")); err != nil {
				t.Fatal(err)
			}
			if err := cluster.Client.Update(t.Context(), o, client.FieldValidation("Strict")); err != nil {
				t.Errorf("update: %v", err)
			}
			// What the API server computes anew at each write, also of the status. With an owner for each key it is twice as long, and takes 1.4 s.
			if owners, err := json.Marshal(o.GetManagedFields()); err != nil || len(owners) > 300_000 {
				t.Errorf("who owns its fields takes %d bytes, want 300,000 at most (%v)", len(owners), err)
			}
		})
	}
}

func TestCRD_RefusesObjectsOverTheirSize(t *testing.T) {
	runs(t, "RetryPolicy", map[string]verdict{
		"129 strategies": {fullPolicy(129), "spec.strategies: Too many: 129: must have at most 128 items"},
	})
	runs(t, "Transport", map[string]verdict{
		"65 queues":  {fullTransport(65, 0, 0), "spec.queues: Too many: 65: must have at most 64 items"},
		"17 workers": {fullTransport(1, 17, 0), "spec.workers: Too many: 17: must have at most 16 items"},
		"257 rules":  {fullTransport(1, 0, 257), "spec.retryPolicies: Too many: 257: must have at most 256 items"},
	})
}

// fullPolicy is a RetryPolicy with n strategies, each with everything that it can have.
func fullPolicy(n int) string {
	backoff := "{type: Explicit, delays: [" + list(32, "719h59m59.999s") + "], jitter: {type: Proportional, percent: 100}}"
	strategies := make([]string, n)
	for i := range strategies {
		strategies[i] = fmt.Sprintf("{name: s%d, priority: 1, when: %s, action: Retry, delayFrom: %s, maxDelay: 720h, maxRetries: 3, backoff: %s}",
			i, strings.Repeat("w", 2048), strings.Repeat("d", 2048), backoff)
	}
	return "maxAge: 8760h\nbackoff: " + backoff + "\nincludeStrategies: [" + names(16) + "]\nstrategies: [" + strings.Join(strategies, ", ") + "]"
}

// fullTransport is a Transport with lists of the given lengths, and full lists in them. The strings inside are shorter than
// they may be, or the whole would not fit into a request.
func fullTransport(queues, workers, rules int) string {
	queueNames, queueList := make([]string, queues), make([]string, queues)
	bindings := make([]string, 16)
	for i := range bindings {
		bindings[i] = fmt.Sprintf("{exchange: e%d, keys: [%s]}", i, numbers(32))
	}
	for i := range queueList {
		queueNames[i] = fmt.Sprintf("%s%02d", strings.Repeat("q", 98), i)
		queueList[i] = fmt.Sprintf("{name: %s, bindingKeys: [%s], bindings: [%s], limits: {messageTTL: 720h, dropOldestAfter: 1}}",
			queueNames[i], numbers(32), strings.Join(bindings, ", "))
	}
	workerList := make([]string, workers)
	for i := range workerList {
		workerList[i] = fmt.Sprintf("{name: w%d, queues: [%s], timeout: 15m, handler: %s}", i, strings.Join(queueNames, ", "), fullHandler(i))
	}
	ruleList := make([]string, rules)
	for i := range ruleList {
		ruleList[i] = fmt.Sprintf("{when: %s, retryPolicyRef: {name: p%d}}", strings.Repeat("w", 1000), i)
	}
	return fmt.Sprintf("broker: {secretRef: {name: r}}\nqueues: [%s]\nworkers: [%s]\nretryPolicies: [%s]\n",
		strings.Join(queueList, ", "), strings.Join(workerList, ", "), strings.Join(ruleList, ", "))
}

// headerNames are n different ones.
func headerNames(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", strings.Repeat("h", 250), i)
	}
	return strings.Join(names, ", ")
}

// fullHandler has everything that a handler of its kind can have; the kinds take turns.
func fullHandler(i int) string {
	command := "command: [" + list(64, strings.Repeat("c", 200)) + "]"
	kinds := []string{
		fmt.Sprintf("http: {url: 'https://h/%[1]s', readinessURL: 'https://h/%[1]s', unixSocket: /%[2]s, format: CloudEvents, keepAlive: false, tls: {caSecretRef: {name: %[3]s, key: %[3]s}}, "+
			"headersSecretRef: {name: %[3]s}, headers: {prefix: %[4]s-, allow: [%[5]s]}}", strings.Repeat("u", 2000), strings.Repeat("s", 106),
			strings.Repeat("a", 253), strings.Repeat("p", 39), headerNames(64)),
		"exec: {" + command + "}",
		"process: {" + command + ", processes: 1000, startTimeout: 15m, recycle: {messages: 1000000000, age: 720h, memory: 999999Gi}}",
		"inProcess: {}",
	}
	return "{image: " + strings.Repeat("i", 1024) + ", " + kinds[i%len(kinds)] + "}"
}
