//go:build e2e

package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	operatorNamespace  = "redrive-system"
	operatorDeployment = "redrive-manager"
	operatorLease      = "redrive-manager.redrive.dev"

	// suiteLabel stands on every namespace of this run, with its id.
	suiteLabel = "redrive.dev/e2e"

	ledgerName  = "ledger"
	partnerName = "partner"
	tapName     = "tap"
)

// environment is the cluster with the operator, one RabbitMQ, and the programs on the other side.
type environment struct {
	config    *rest.Config
	client    client.Client
	clientset kubernetes.Interface

	// id of this run; namespace holds what is not any scenario's.
	id, namespace string
	// partnerImage has the program of hack/e2e/partner as /partner, and nextImage as /next. The short form does not need the latter.
	partnerImage, nextImage string
	// hostIP is this machine as pods see it; empty where RabbitMQ runs in the cluster.
	hostIP  string
	kubelet string
	short   bool
	keep    bool

	broker   *rabbit
	evidence *evidence
	secrets  *secrets
	// metricsToken opens the operator's metrics.
	metricsToken string

	closing sync.Once
	stop    context.CancelFunc
}

func newEnvironment(ctx context.Context) (*environment, error) {
	ctx, stop := context.WithCancel(ctx)
	e := &environment{
		id:           strings.ToLower(rand.Text()[:6]),
		partnerImage: os.Getenv("IMG_PARTNER"),
		nextImage:    os.Getenv("IMG_PARTNER_NEXT"),
		hostIP:       os.Getenv("E2E_HOST_IP"),
		kubelet:      os.Getenv("E2E_KUBELET"),
		short:        os.Getenv("E2E_SHORT") == "1",
		keep:         os.Getenv("E2E_KEEP") == "1",
		secrets:      &secrets{},
		stop:         stop,
	}
	e.namespace = "e2e-" + e.id
	if e.partnerImage == "" || e.nextImage == "" && !e.short {
		return e, errors.New("set IMG_PARTNER and IMG_PARTNER_NEXT to the images of hack/e2e/partner, or use make e2e")
	}
	steps := []func(context.Context) error{e.connect, e.checkOperator, e.gatherEvidence, e.makeOwnNamespace, e.allowMetrics, e.startBroker, e.startPartners}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return e, err
		}
	}
	return e, nil
}

func (e *environment) connect(context.Context) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("register the kinds: %w", err)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS = -1
	e.config = config
	if e.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("client of the cluster: %w", err)
	}
	if e.clientset, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("client of the cluster: %w", err)
	}
	return nil
}

// checkOperator tells a cluster without the operator from a scenario that fails.
func (e *environment) checkOperator(ctx context.Context) error {
	state, ok := poll(ctx, time.Minute, func() (bool, any) {
		deployment, err := e.clientset.AppsV1().Deployments(operatorNamespace).Get(ctx, operatorDeployment, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return deployment.Status.AvailableReplicas == 2, fmt.Sprintf("%d available replicas", deployment.Status.AvailableReplicas)
	})
	if !ok {
		return fmt.Errorf("the operator must run in %s with two replicas, see make deploy: %v", operatorNamespace, state)
	}
	return nil
}

func (e *environment) gatherEvidence(ctx context.Context) (err error) {
	e.evidence, err = newEvidence(ctx, e.clientset)
	return err
}

func (e *environment) makeOwnNamespace(ctx context.Context) error {
	return e.makeNamespace(ctx, e.namespace)
}

// makeNamespace makes one in which only restricted pods are admitted.
func (e *environment) makeNamespace(ctx context.Context, name string) error {
	err := e.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		suiteLabel: e.id, "pod-security.kubernetes.io/enforce": "restricted",
	}}})
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

// deleteNamespace does not wait until it is gone; close does.
func (e *environment) deleteNamespace(ctx context.Context, name string) error {
	err := e.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

// verify takes the last evidence and searches it all for passwords.
func (e *environment) verify() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.harvest(ctx, operatorNamespace); err != nil {
		return err
	}
	if err := e.harvest(ctx, e.namespace); err != nil {
		return err
	}
	return e.evidence.search(e.secrets)
}

// close removes what the run made, once.
func (e *environment) close() (err error) {
	if e == nil {
		return nil
	}
	e.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if e.client != nil && !e.keep {
			err = e.deleteNamespaces(ctx)
		}
		if e.broker != nil {
			err = errors.Join(err, e.broker.stop(ctx))
		}
		e.stop()
	})
	return err
}

// deleteNamespaces fails where one does not go: then a finalizer hangs.
func (e *environment) deleteNamespaces(ctx context.Context) error {
	selector := client.MatchingLabels{suiteLabel: e.id}
	if err := e.client.DeleteAllOf(ctx, &rbacv1.ClusterRoleBinding{}, selector); err != nil {
		return fmt.Errorf("delete the right to the metrics: %w", err)
	}
	var all corev1.NamespaceList
	if err := e.client.List(ctx, &all, selector); err != nil {
		return fmt.Errorf("list the namespaces of this run: %w", err)
	}
	for i := range all.Items {
		if err := e.deleteNamespace(ctx, all.Items[i].Name); err != nil {
			return err
		}
	}
	left, ok := poll(ctx, 2*time.Minute, func() (bool, any) {
		var left corev1.NamespaceList
		if err := e.client.List(ctx, &left, selector); err != nil {
			return false, err
		}
		return len(left.Items) == 0, namesOf(left.Items)
	})
	if !ok {
		return fmt.Errorf("namespaces that do not go: %v", left)
	}
	return nil
}

func namesOf(namespaces []corev1.Namespace) []string {
	names := make([]string, len(namespaces))
	for i := range namespaces {
		names[i] = namespaces[i].Name
	}
	return names
}

// kubectl runs it as a user would, with text on its standard input, and returns what it prints.
func (e *environment) kubectl(t testing.TB, input string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "kubectl", arguments...)
	command.Stdin = strings.NewReader(input)
	var problems strings.Builder
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, problems.String())
	}
	return string(output)
}

// leader is the name of the operator's pod that leads.
func (e *environment) leader(ctx context.Context) (string, error) {
	lease, err := e.clientset.CoordinationV1().Leases(operatorNamespace).Get(ctx, operatorLease, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the operator's lease: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return pod, nil
}

// kill ends a pod without any grace. What can be reached of its processes gets no signal that it could act on, as when the
// machine goes: so where the node is this machine. Elsewhere a kubelet sends SIGTERM first, grace or none.
func (e *environment) kill(ctx context.Context, namespace, name string) error {
	pods := e.clientset.CoreV1().Pods(namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill pod %s: %w", name, err)
	}
	for _, process := range processesOf(pod) {
		_ = syscall.Kill(process, syscall.SIGKILL) // it may have ended by itself
	}
	err = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("kill pod %s: %w", name, err)
	}
	return nil
}

// processesOf a pod's containers, by the name of their cgroup, in which the pod's UID stands. None on a node elsewhere.
func processesOf(pod *corev1.Pod) []int {
	var processes []int
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// systemd's names have no dashes.
		groups := strings.ReplaceAll(string(data), "_", "-")
		number, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && strings.Contains(groups, "pod"+string(pod.UID)) {
			processes = append(processes, number)
		}
	}
	return processes
}
