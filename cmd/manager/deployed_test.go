package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
)

const (
	root            = "../.."
	systemNamespace = "redrive-system"
)

func TestMain(m *testing.M) {
	testbroker.Main(running(func() int { return testcluster.Run(m) }))
}

// running is a function that runs tests.
type running func() int

// Run implements what testbroker.Main takes.
func (r running) Run() int { return r() }

// kustomized are the objects of a folder, as `kubectl apply -k` makes them.
func kustomized(t *testing.T, folder string) (objects []*unstructured.Unstructured) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=hack/tools/go.mod", "kustomize", "build", folder)
	command.Dir = root
	var problem bytes.Buffer
	command.Stderr = &problem
	output, err := command.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v: %s", folder, err, &problem)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(output), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		must(t, err)
		objects = append(objects, object)
	}
}

// deploy applies a folder. The API server refuses fields that it does not know.
func deploy(t *testing.T, cluster *testcluster.Cluster, folder, namespace string) (objects []*unstructured.Unstructured) {
	t.Helper()
	objects = kustomized(t, folder)
	if len(objects) == 0 {
		t.Fatalf("%s is empty", folder)
	}
	for _, object := range objects {
		if namespace != "" {
			object.SetNamespace(namespace)
		}
		err := cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("kubectl"), client.ForceOwnership)
		if err != nil {
			t.Fatalf("%s: %s %s: %v", folder, object.GetKind(), object.GetName(), err)
		}
	}
	return objects
}

func TestInstall_IsAcceptedByTheAPIServer(t *testing.T) {
	cluster := testcluster.Start(t)
	deploy(t, cluster, filepath.Join("config", "default"), "")
	makeWatchedNamespace(t, cluster)
	deploy(t, cluster, filepath.Join("config", "namespaced"), "")
	deploy(t, cluster, filepath.Join("config", "network-policy", "egress"), "")
	deploy(t, cluster, filepath.Join("config", "network-policy", "workers"), cluster.Namespace(t))
}

func TestManager_PassesTheRestrictedPodSecurityStandard(t *testing.T) {
	cluster := testcluster.Start(t)
	deploy(t, cluster, filepath.Join("config", "default"), "")
	deployment := &appsv1.Deployment{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: "redrive-manager"}, deployment))
	create := func(change func(*corev1.PodSpec)) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "subject"}, Spec: *deployment.Spec.Template.Spec.DeepCopy()}
		change(&pod.Spec)
		return cluster.Client.Create(context.Background(), pod, client.DryRunAll)
	}
	if err := create(func(*corev1.PodSpec) {}); err != nil {
		t.Errorf("the manager's pod is refused: %v", err)
	}
	// The namespace enforces it.
	if err := create(func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext = nil }); err == nil {
		t.Error("the namespace accepts a pod that is not restricted")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
