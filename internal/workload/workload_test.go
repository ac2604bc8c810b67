package workload_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/workload"
)

func transport(name string) *v1alpha1.Transport {
	return &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("11111111-2222-3333-4444-555555555555")},
		Spec: v1alpha1.TransportSpec{
			Broker: v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
			Queues: []v1alpha1.Queue{{Name: "test"}},
		},
	}
}

func worker(name string) *v1alpha1.Worker {
	return &v1alpha1.Worker{Name: name, Handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1:8080/messages"}}}
}

func config() compile.Config {
	return compile.Config{
		Version: compile.Version, Transport: "shop/async", Worker: "default", Concurrency: 10, Timeout: *v1alpha1.NewDuration(time.Second),
		Exchanges: compile.Exchanges{Fallback: "async.fallback", Return: "async.return", Failed: "async.failed"},
		Queues:    []compile.Queue{{Name: "test", Policy: "p"}}, Policies: map[string]v1alpha1.RetryPolicySpec{"p": {}},
	}
}

var options = workload.Options{Image: "redrive-worker:v1"}

func deployment(t *testing.T, w *v1alpha1.Worker) *appsv1.Deployment {
	t.Helper()
	d, err := workload.Deployment(transport("async"), w, options)
	if err != nil {
		t.Fatalf("Deployment: %v", err)
	}
	return d
}

// The whole object stands here once, as the API server gets it, so that no field comes or goes unseen.
func TestDeployment_MatchesItsGoldenFile(t *testing.T) {
	w := worker("default")
	w.Replicas = ptr.To[int32](5)
	u, err := workload.ApplyForm(deployment(t, w))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/deployment.json", append(got, '\n'))
}

func TestConfigMap_MatchesItsGoldenFile(t *testing.T) {
	cm, err := workload.ConfigMap(transport("async"), config())
	if err != nil {
		t.Fatal(err)
	}
	data, err := compile.Encode(config())
	if err != nil {
		t.Fatal(err)
	}
	if got := cm.Data[workload.ConfigKey]; got != string(data) || len(cm.Data) != 1 {
		t.Errorf("data is %v, want the encoded configuration under %s alone", cm.Data, workload.ConfigKey)
	}
	if got := cm.Annotations[workload.ConfigHashAnnotation]; got != compile.Hash(data) {
		t.Errorf("hash annotation is %q, want %q", got, compile.Hash(data))
	}
	cm.Data = nil
	cm.Annotations = nil
	u, err := workload.ApplyForm(cm)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/configmap.json", append(got, '\n'))
}

func TestConfigMap_RefusesAConfigurationThatIsTooLarge(t *testing.T) {
	c := config()
	for range 600 {
		c.Rules = append(c.Rules, compile.Rule{When: strings.Repeat("x", 2048), Policy: "p"})
	}
	_, err := workload.ConfigMap(transport("async"), c)
	if err == nil || !strings.Contains(err.Error(), "1048576") || !strings.Contains(err.Error(), `"default"`) {
		t.Errorf("error is %v, want one with the worker and the limit", err)
	}
}

// What no worker takes is not published: the next reconcile would find no configuration, and forget what its workers are to empty.
func TestConfigMap_RefusesAConfigurationThatNoWorkerTakes(t *testing.T) {
	c := config()
	c.Policies = nil
	if _, err := workload.ConfigMap(transport("async"), c); err == nil || !strings.Contains(err.Error(), `worker "default"`) {
		t.Errorf("error is %v, want one with the worker", err)
	}
}

func TestDeployment_NeedsAnImage(t *testing.T) {
	if _, err := workload.Deployment(transport("async"), worker("default"), workload.Options{}); err == nil {
		t.Error("no error without an image")
	}
}

func TestDeployment_LeavesOutReplicasWhereTheSpecDoes(t *testing.T) {
	u, err := workload.ApplyForm(deployment(t, worker("default")))
	if err != nil {
		t.Fatal(err)
	}
	spec, ok := u.Object["spec"].(map[string]any)
	if !ok {
		t.Fatal("no spec")
	}
	if replicas, found := spec["replicas"]; found {
		t.Errorf("replicas is %v, want it absent", replicas)
	}
	zero := worker("default")
	zero.Replicas = ptr.To[int32](0)
	if got := deployment(t, zero).Spec.Replicas; got == nil || *got != 0 {
		t.Errorf("replicas is %v, want the 0 of the spec", got)
	}
}

func TestGracePeriod_Is15SecondsLongerThanTheTimeout(t *testing.T) {
	cases := map[string]struct {
		timeout *v1alpha1.Duration
		want    int64
	}{
		"the default timeout of 30 s and 15 s more": {nil, 45},
		"whole seconds":                    {v1alpha1.NewDuration(time.Minute), 75},
		"a part of a second is rounded up": {v1alpha1.NewDuration(1500 * time.Millisecond), 17},
		"the shortest timeout":             {v1alpha1.NewDuration(100 * time.Millisecond), 16},
		"the longest timeout":              {v1alpha1.NewDuration(15 * time.Minute), 915},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := worker("default")
			w.Timeout = tc.timeout
			if got := *deployment(t, w).Spec.Template.Spec.TerminationGracePeriodSeconds; got != tc.want {
				t.Errorf("grace period is %d, want %d", got, tc.want)
			}
		})
	}
}

func TestGracePeriod_FollowsTheDefaultTimeout(t *testing.T) {
	tr := transport("async")
	tr.Spec.Workers = []v1alpha1.Worker{*worker("default")}
	result, err := compile.Compile(tr, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(result.Workers[0].Timeout.Seconds()) + 15
	if got := *deployment(t, worker("default")).Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
		t.Errorf("grace period is %d, want %d", got, want)
	}
}

func TestDeployment_StaysWhenAPolicyChangesTheConfigMap(t *testing.T) {
	build := func(maxRetries int32) (*corev1.ConfigMap, *appsv1.Deployment) {
		tr := transport("async")
		tr.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "p"}
		tr.Spec.Workers = []v1alpha1.Worker{*worker("default")}
		result, err := compile.Compile(tr, map[string]*v1alpha1.RetryPolicy{
			"p": {ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.RetryPolicySpec{MaxRetries: &maxRetries}},
		})
		if err != nil {
			t.Fatal(err)
		}
		cm, err := workload.ConfigMap(tr, result.Workers[0])
		if err != nil {
			t.Fatal(err)
		}
		d, err := workload.Deployment(tr, &tr.Spec.Workers[0], options)
		if err != nil {
			t.Fatal(err)
		}
		return cm, d
	}
	cm3, d3 := build(3)
	cm4, d4 := build(4)
	if equality.Semantic.DeepEqual(cm3, cm4) {
		t.Error("the ConfigMap did not change with the policy")
	}
	if !equality.Semantic.DeepEqual(d3, d4) {
		t.Error("the Deployment changed with the policy: every pod would restart")
	}
}

func TestDeployment_LeavesTheSpecUnchanged(t *testing.T) {
	w := withTemplate(`{"spec":{"nodeSelector":{"disk":"ssd"}}}`)
	before := w.DeepCopy()
	first := deployment(t, w)
	second := deployment(t, w)
	if !equality.Semantic.DeepEqual(before, w) {
		t.Error("the spec was changed")
	}
	if !equality.Semantic.DeepEqual(first, second) {
		t.Error("the same spec gave two Deployments")
	}
}

func dnsName(maxLength int, dots bool) *rapid.Generator[string] {
	alphabet := "abz09-"
	if dots {
		alphabet += "."
	}
	return rapid.Custom(func(t *rapid.T) string {
		middle := rapid.StringOfN(rapid.RuneFrom([]rune(alphabet)), 0, maxLength-2, -1).Draw(t, "middle")
		return "a" + strings.ReplaceAll(middle, ".", ".a") + "z"
	}).Filter(func(s string) bool {
		return len(s) <= maxLength && (!dots && len(validation.IsDNS1123Label(s)) == 0 || dots && len(validation.IsDNS1123Subdomain(s)) == 0)
	})
}

func TestName_IsValidAsAreItsLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := transport(dnsName(253, true).Draw(t, "transport"))
		w := dnsName(63, false).Draw(t, "worker")
		name := workload.Name(tr, w)
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			t.Errorf("name %q: %v", name, errs)
		}
		for key, value := range workload.Labels(tr, w) {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("label %s=%q: %v", key, value, errs)
			}
		}
		for key, value := range workload.Selector(tr, w) {
			if workload.Labels(tr, w)[key] != value {
				t.Errorf("the selector's %s is not among the labels", key)
			}
		}
	})
}

func TestName_NeverMeetsAnother(t *testing.T) {
	long := strings.Repeat("a", 62)
	pairs := [][2]string{
		{"a-b", "c"},
		{"a", "b-c"},
		{"a.b", "c"},
		{long, long},
		{long + "x", long},
		{long, long + "x"},
		{strings.Repeat("b.", 126) + "x", "default"},
		{strings.Repeat("b.", 126) + "y", "default"},
		{strings.Repeat("b-", 31) + "x", "default"},
	}
	names, selectors := map[string][2]string{}, map[string][2]string{}
	for _, pair := range pairs {
		name := workload.Name(transport(pair[0]), pair[1])
		if other, taken := names[name]; taken {
			t.Errorf("%v and %v share the name %s", pair, other, name)
		}
		names[name] = pair
		selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: workload.Selector(transport(pair[0]), pair[1])})
		if other, taken := selectors[selector]; taken {
			t.Errorf("%v and %v share the selector %s", pair, other, selector)
		}
		selectors[selector] = pair
	}
	elsewhere := transport("async")
	elsewhere.Namespace = "other"
	if workload.Name(transport("async"), "default") == workload.Name(elsewhere, "default") {
		t.Error("the namespace is not part of the name's hash")
	}
}

func TestName_IsStable(t *testing.T) {
	cases := map[string]struct{ transport, worker, want string }{
		"a short name keeps both parts": {"async", "default", "async-default-"},
		"a long transport leaves the worker readable": {
			strings.Repeat("x", 253), "default", strings.Repeat("x", 49) + "-default-",
		},
		"a long worker leaves the transport readable": {
			"async", strings.Repeat("w", 63), "async-" + strings.Repeat("w", 51) + "-",
		},
		"two long ones share the room": {
			strings.Repeat("x", 253), strings.Repeat("w", 63), strings.Repeat("x", 28) + "-" + strings.Repeat("w", 28) + "-",
		},
		"dots become dashes": {"shop.async", "default", "shop-async-default-"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := workload.Name(transport(tc.transport), tc.worker)
			if !strings.HasPrefix(got, tc.want) || len(got) != len(tc.want)+5 {
				t.Errorf("name is %q, want %q and 5 characters of a hash", got, tc.want)
			}
		})
	}
	// A different hash would orphan the Deployments of every installation.
	if got, want := workload.Name(transport("async"), "default"), "async-default-2zofi"; got != want {
		t.Errorf("name is %q, want %q for ever", got, want)
	}
}

// A quota of the namespace may want limits of each container, and the install container is one.
func TestDeployment_HasTheResourcesThatTheOperatorIsGiven(t *testing.T) {
	t.Parallel()
	amount := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	w := worker("default")
	w.Handler = v1alpha1.Handler{Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"handle"}}}
	opts := options
	opts.Resources = corev1.ResourceRequirements{Requests: amount("32Mi"), Limits: amount("256Mi")}
	d, err := workload.Deployment(transport("async"), w, opts)
	if err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	for name, got := range map[string]*resource.Quantity{
		"worker": pod.Containers[0].Resources.Limits.Memory(), "install": pod.InitContainers[0].Resources.Limits.Memory(),
	} {
		if got.String() != "256Mi" {
			t.Errorf("the limit of %s is %s", name, got)
		}
	}
	if got := pod.Containers[0].Resources.Requests; got.Memory().String() != "32Mi" || !got.Cpu().IsZero() {
		t.Errorf("the worker requests %v", got)
	}
	opts.Resources.Requests = corev1.ResourceList{}
	if d, err = workload.Deployment(transport("async"), w, opts); err != nil || len(d.Spec.Template.Spec.Containers[0].Resources.Requests) > 0 {
		t.Errorf("asked for none, the worker requests %v; %v", d.Spec.Template.Spec.Containers[0].Resources.Requests, err)
	}
}
