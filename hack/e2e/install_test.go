//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	repository = "../.."
	release    = "redrive"
	// moveWithin is how long a build may take to come up and to move all workers over.
	moveWithin = 3 * time.Minute
)

// build of the operator and its workers: images, and the source whose installer and chart install them.
type build struct{ manager, worker, source string }

// builds are the one that the suite runs on and an earlier one.
func builds(t *testing.T) (earlier, present build) {
	t.Helper()
	here, err := filepath.Abs(repository)
	must(t, err)
	present = build{os.Getenv("IMG_MANAGER"), os.Getenv("IMG_WORKER"), here}
	suffix, source := os.Getenv("E2E_EARLIER"), os.Getenv("E2E_EARLIER_TREE")
	if suffix == "" || source == "" || present.manager == "" || present.worker == "" {
		t.Skip("E2E_EARLIER, E2E_EARLIER_TREE, IMG_MANAGER and IMG_WORKER name no earlier build")
	}
	return build{present.manager + suffix, present.worker + suffix, source}, present
}

// program runs one in the root of the repository, as a user does.
func program(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir = repository
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, &output)
	}
	return output.String()
}

// apply installs or upgrades with the one YAML.
func (b build) apply(t *testing.T) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(b.source, "dist"), 0o750))
	folder, err := os.MkdirTemp(filepath.Join(b.source, "dist"), "e2e.") //nolint:usetesting // kustomize takes no folder elsewhere
	must(t, err)
	defer func() { must(t, os.RemoveAll(folder)) }()
	relative := filepath.Join("dist", filepath.Base(folder))
	program(t, "make", "--directory", b.source, "build-installer", "DIST="+relative, "IMG_MANAGER="+b.manager, "IMG_WORKER="+b.worker)
	program(t, "kubectl", "apply", "--server-side", "--force-conflicts", "--filename", filepath.Join(folder, "install.yaml"))
}

// helm runs the pinned one.
func helm(t *testing.T, arguments ...string) {
	t.Helper()
	program(t, "go", append([]string{"tool", "-modfile=hack/tools/helm/go.mod", "helm", "--namespace", operatorNamespace}, arguments...)...)
}

// chart installs or upgrades with Helm. What was installed otherwise is taken over.
func (b build) chart(t *testing.T) {
	t.Helper()
	arguments := []string{"upgrade", "--install", release, filepath.Join(b.source, "config/chart"), "--create-namespace", "--take-ownership", "--force-conflicts"}
	for name, image := range map[string]string{"manager": b.manager, "worker": b.worker} {
		colon := strings.LastIndex(image, ":")
		arguments = append(arguments, "--set", "image."+name+".repository="+image[:colon], "--set-string", "image."+name+".tag="+image[colon+1:])
	}
	helm(t, arguments...)
}

// moved waits until the operator is this build and all workers of a shop are too, and messages go through them.
func (b build) moved(s *shop) {
	s.t.Helper()
	await(s.t, moveWithin, "the operator of "+b.manager, func() (bool, any) {
		deployment, err := suite.clientset.AppsV1().Deployments(operatorNamespace).Get(s.t.Context(), operatorDeployment, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		status := deployment.Status
		rolled := status.ObservedGeneration == deployment.Generation && status.UpdatedReplicas == 2 && status.AvailableReplicas == 2 && status.Replicas == 2
		return rolled && deployment.Spec.Template.Spec.Containers[0].Image == b.manager, fmt.Sprintf("%+v", status)
	})
	await(s.t, moveWithin, "workers of "+b.worker, func() (bool, any) {
		pods, err := s.pods(s.t.Context())
		if err != nil || len(pods) != 2 {
			return false, fmt.Sprint(len(pods), " pods ", err)
		}
		for i := range pods {
			if !podReady(&pods[i]) || pods[i].Spec.Containers[0].Image != b.worker {
				return false, pods[i].Name + " is another or is not ready"
			}
		}
		return true, nil
	})
	s.awaitReady(moveWithin)
	s.awaitHandled(20)
}

// checkAlone holds the cluster to have no operator, and everything else as it was: the kinds, the Transport, its workers, its
// queues, and messages that go through them.
func (s *shop) checkAlone() {
	s.t.Helper()
	await(s.t, time.Minute, "the operator to be gone", func() (bool, any) {
		pods, err := suite.clientset.CoreV1().Pods(operatorNamespace).List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		_, err = suite.clientset.RbacV1().ClusterRoles().Get(s.t.Context(), "redrive-manager", metav1.GetOptions{})
		return len(pods.Items) == 0 && apierrors.IsNotFound(err), fmt.Sprint(len(pods.Items), " pods ", err)
	})
	transport, err := s.read(s.t.Context())
	must(s.t, err)
	if transport.DeletionTimestamp != nil {
		s.t.Error("the Transport is being deleted")
	}
	queues, err := s.broker.queues(s.t.Context(), s.vhost)
	must(s.t, err)
	names := map[string]bool{}
	for _, q := range queues {
		names[q.Name] = true
	}
	if !names[ordersQueue] || !names[failureQueue] {
		s.t.Errorf("queues are gone; there are %v", names)
	}
	s.awaitPods(2, time.Minute)
	s.awaitHandled(20)
}

// gone waits until the operator's namespace can be made again.
func gone(t *testing.T) {
	t.Helper()
	await(t, 2*time.Minute, "the namespace "+operatorNamespace+" to be gone", func() (bool, any) {
		_, err := suite.clientset.CoreV1().Namespaces().Get(t.Context(), operatorNamespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}

// TestInstallation_IsUpgradedAndRemovedUnderLoad does each of them by the one YAML and by the chart, while messages flow. It runs beside no
// other scenario, and leaves behind what it found.
func TestInstallation_IsUpgradedAndRemovedUnderLoad(t *testing.T) {
	long(t)
	earlier, present := builds(t)
	s := openShop(t, "install", plan{})
	flow := s.startLoad(60, slow(s.name, 100*time.Millisecond))
	t.Cleanup(func() { // also where it failed half way
		if t.Failed() {
			restore(t, present)
		}
	})

	t.Log("the one YAML: removed, installed, upgraded, removed")
	undeploy := func() {
		program(t, "make", "undeploy")
		gone(t)
		s.checkAlone()
	}
	undeploy()
	earlier.apply(t)
	earlier.moved(s)
	present.apply(t)
	present.moved(s)
	undeploy()

	t.Log("the chart: installed, upgraded, removed")
	earlier.chart(t)
	earlier.moved(s)
	present.chart(t)
	present.moved(s)
	helm(t, "uninstall", release)
	s.checkAlone()

	t.Log("back to the one YAML")
	present.apply(t)
	present.moved(s)
	checkOnce(t, s.tally.settle(flow.stop(), 4*time.Minute))
	s.checkNothingMoved()
}

// restore what other scenarios need.
func restore(t *testing.T, present build) {
	ctx, cancel := context.WithTimeout(context.Background(), moveWithin)
	defer cancel()
	command := exec.CommandContext(ctx, "make", "deploy", "IMG_MANAGER="+present.manager, "IMG_WORKER="+present.worker)
	command.Dir = repository
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("make deploy: %v\n%s", err, output)
	}
}
