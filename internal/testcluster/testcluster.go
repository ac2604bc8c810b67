// Package testcluster gives tests a real API server with Redrive's CustomResourceDefinitions: etcd and kube-apiserver
// without nodes and without controllers, one for each test package.
//
// The programs come from the folder in KUBEBUILDER_ASSETS, else from hack/envtest.sh, which builds them once and keeps
// them outside the checkout.
package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	assetsVariable = "KUBEBUILDER_ASSETS"

	// startTimeout is generous: on a busy machine the API server takes a while to be ready.
	startTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
)

// Cluster is a running API server. All tests of a package share it; each takes a namespace of its own.
type Cluster struct {
	// Config of an administrator, without a limit on the rate of requests.
	Config *rest.Config
	// Client reads and writes without a cache.
	Client client.Client
	// Scheme knows Kubernetes' own kinds, CustomResourceDefinitions and Redrive's.
	Scheme *runtime.Scheme

	environment *envtest.Environment
}

// shared is the cluster of this test package, started by the first test that asks for it and stopped by Main.
var shared struct { //nolint:gochecknoglobals // a test binary has no other place that outlives a test
	once    sync.Once
	cluster *Cluster
	err     error
}

// Main runs the tests of a package and then stops its cluster, also when the tests are interrupted. TestMain calls it.
func Main(m *testing.M) {
	os.Exit(Run(m))
}

// Run is Main without the exit, for a TestMain that has more to stop. It returns the exit code.
func Run(m interface{ Run() int }) int {
	signals := make(chan os.Signal, 1)
	// A closed pipe is what "go test | head" ends with.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	go func() {
		for received := range signals {
			// Each socket that its other end has closed gives a SIGPIPE too. Only a write tells which it was.
			if received == syscall.SIGPIPE && outputIsRead() {
				continue
			}
			stop()
			os.Exit(1)
		}
	}()
	code := m.Run()
	if !stop() {
		code = 1
	}
	return code
}

func outputIsRead() bool {
	_, err := os.Stdout.WriteString("\n")
	return err == nil
}

// stop ends the cluster, if there is one.
func stop() bool {
	shared.once.Do(func() { shared.err = errors.New("the tests of this package are over") })
	if shared.cluster == nil {
		return true
	}
	if err := shared.cluster.environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		return false
	}
	return true
}

// Start returns the cluster of this test package. The test fails when the API server cannot be had.
func Start(t testing.TB) *Cluster {
	t.Helper()
	shared.once.Do(func() {
		shared.cluster, shared.err = start(t.Context())
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// Namespace makes a namespace for one test and returns its name.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := c.Client.Create(t.Context(), namespace); err != nil {
		t.Fatalf("create a namespace: %v", err)
	}
	return namespace.Name
}

func start(ctx context.Context) (*Cluster, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	assets, err := findAssets(ctx, root, os.Getenv(assetsVariable))
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{
		Scheme:                   scheme,
		CRDDirectoryPaths:        []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		BinaryAssetsDirectory:    assets,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
	}
	// As OpenShift does: who marks an object as owned by another must be allowed to set finalizers on that other.
	environment.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	restore := collectLess()
	config, err := environment.Start()
	restore()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server from %s: %w", assets, err), environment.Stop())
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client of the API server: %w", err), environment.Stop())
	}
	return &Cluster{Config: config, Client: c, Scheme: scheme, environment: environment}, nil
}

// collectLess has the programs that start before restore is called collect garbage a third as often as Go does by itself, unless GOGC says how
// often: that is a sixth of the processor time of a control plane, for a few hundred megabytes.
func collectLess() (restore func()) {
	const variable, growth = "GOGC", "300"
	if os.Getenv(variable) != "" {
		return func() {}
	}
	_ = os.Setenv(variable, growth) // neither fails for such a name
	return func() { _ = os.Unsetenv(variable) }
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	return scheme, nil
}

// moduleRoot finds the checkout above the package under test, where go test runs it.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the module: no go.mod above the working directory")
		}
		dir = parent
	}
}

// findAssets returns the folder with etcd and kube-apiserver. hack/envtest.sh prints it as its last line.
func findAssets(ctx context.Context, root, given string) (string, error) {
	const help = "set " + assetsVariable + " to a folder with etcd and kube-apiserver, or run hack/envtest.sh and see what it says"
	dir := given
	if dir == "" {
		var out bytes.Buffer
		script := exec.CommandContext(ctx, filepath.Join(root, "hack", "envtest.sh")) //nolint:gosec // ours
		script.Dir = root
		script.Stdout = &out
		script.Stderr = os.Stderr // its progress: a first build takes minutes
		if err := script.Run(); err != nil {
			return "", fmt.Errorf("no API server for the tests: hack/envtest.sh: %w; %s", err, help)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		dir = lines[len(lines)-1]
	}
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil { //nolint:gosec // only looked at
			return "", fmt.Errorf("no API server for the tests: %w; %s", err, help)
		}
	}
	return dir, nil
}
