//go:build e2e

package e2e

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestPods_AreRestricted looks at what the cluster really runs. That a namespace enforces the restricted standard is proven
// by every other scenario: in one that does not, no shop is opened.
func TestPods_AreRestricted(t *testing.T) {
	t.Parallel()
	var namespace corev1.Namespace
	must(t, suite.client.Get(t.Context(), client.ObjectKey{Name: operatorNamespace}, &namespace))
	if got := namespace.Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("namespace %s enforces %q", operatorNamespace, got)
	}
	operators, err := suite.clientset.CoreV1().Pods(operatorNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: ours})
	must(t, err)
	s := openShop(t, "restricted", plan{})
	workers := s.awaitPods(2, time.Minute)
	for _, pod := range slices.Concat(operators.Items, workers) {
		checkRestricted(t, &pod)
	}
	for _, pod := range workers {
		if ptr.Deref(pod.Spec.AutomountServiceAccountToken, true) {
			t.Errorf("pod %s has a token for the API server", pod.Name)
		}
	}
}

func checkRestricted(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		security := c.SecurityContext
		switch {
		case security == nil:
			t.Errorf("container %s of pod %s has no security context", c.Name, pod.Name)
		case !ptr.Deref(security.ReadOnlyRootFilesystem, false):
			t.Errorf("container %s of pod %s may write to its root file system", c.Name, pod.Name)
		case ptr.Deref(security.AllowPrivilegeEscalation, true):
			t.Errorf("container %s of pod %s may gain privileges", c.Name, pod.Name)
		case security.Capabilities == nil || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(security.Capabilities.Add) > 0:
			t.Errorf("container %s of pod %s has the capabilities %v", c.Name, pod.Name, security.Capabilities)
		}
		arguments := []string{"--namespace", pod.Namespace, "exec", pod.Name, "--container", c.Name, "--", "sh", "-c", "true"}
		if output, err := exec.CommandContext(t.Context(), "kubectl", arguments...).CombinedOutput(); err == nil {
			t.Errorf("container %s of pod %s has a shell: %s", c.Name, pod.Name, output)
		}
	}
	security := pod.Spec.SecurityContext
	if security == nil || !ptr.Deref(security.RunAsNonRoot, false) || security.SeccompProfile == nil ||
		security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod %s has the security context %v", pod.Name, security)
	}
}
