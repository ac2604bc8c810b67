package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"redrive.dev/redrive/controllers"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	namespace = "shop"
	secret    = "rabbitmq"
	// pollEvery is the operator's poll; a minute would leave little to see in a run of minutes.
	pollEvery = 4 * time.Second
	// leaseName is the one of cmd/manager.
	leaseName = "redrive-manager.redrive.dev"
)

//go:embed transports.yaml
var transports string

// cluster is an API server, and the operator's controllers in this process.
type cluster struct {
	environment *envtest.Environment
	client      client.Client
	metrics     string

	cancel context.CancelFunc
	ended  chan struct{}
}

func startCluster(ctx context.Context) (*cluster, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	assets, err := programs()
	if err != nil {
		return nil, err
	}
	address, err := testbroker.FreeAddress()
	if err != nil {
		return nil, err
	}
	c := &cluster{metrics: address, ended: make(chan struct{}), environment: &envtest.Environment{
		CRDDirectoryPaths: []string{"config/crd/bases"}, ErrorIfCRDPathMissing: true, BinaryAssetsDirectory: assets,
	}}
	config, err := c.environment.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server: %w", err), c.environment.Stop())
	}
	config.QPS = -1
	if err := c.run(ctx, config); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// programs is the folder with etcd and kube-apiserver. The script prints it as its last line.
func programs() (string, error) {
	if given := os.Getenv("KUBEBUILDER_ASSETS"); given != "" {
		return given, nil
	}
	script := exec.Command("hack/envtest.sh") //nolint:noctx // a first build takes minutes
	script.Stderr = os.Stderr
	out, err := script.Output()
	if err != nil {
		return "", fmt.Errorf("hack/envtest.sh: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// run starts the operator, as cmd/manager does.
func (c *cluster) run(ctx context.Context, config *rest.Config) error {
	specs := objectcache.NewTally(objectcache.SpecsOfProcess())
	cached, err := objectcache.CacheOptions(specs)
	if err != nil {
		return fmt.Errorf("restrict the cache: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: controllers.NewScheme(), Cache: cached, Client: objectcache.ClientOptions(),
		Metrics:        metricsserver.Options{BindAddress: c.metrics},
		LeaderElection: true, LeaderElectionNamespace: "default", LeaderElectionID: leaseName, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if c.client, err = client.New(config, client.Options{Scheme: controllers.NewScheme()}); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	// It outlives the play, and ends after the workers.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	err = controllers.Setup(ctx, mgr, controllers.Options{
		ClusterUID: "record", Workers: workload.Options{Image: "redrive-worker"}, PollInterval: pollEvery,
		Waits: topology.DefaultWaits(), Concurrency: 4, Specs: specs,
	})
	if err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	go func() {
		defer close(c.ended)
		_ = mgr.Start(ctx) // in the end it always says that it has lost the lead
	}()
	return nil
}

func (c *cluster) stop() error {
	if c.cancel != nil {
		c.cancel()
		<-c.ended
	}
	if err := c.environment.Stop(); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	return nil
}

// target is the operator as Prometheus finds it.
func (c *cluster) target() target {
	return target{url: "http://" + c.metrics + "/metrics", labels: map[string]string{
		"namespace": "redrive-system", "pod": "redrive-manager-0", "job": "redrive-manager-metrics", "endpoint": "metrics",
	}}
}

// apply makes the Transports, with a Secret that leads to the broker.
func (c *cluster) apply(ctx context.Context, broker *testbroker.Broker, partner string) error {
	loader, err := manifest.NewLoader()
	if err != nil {
		return fmt.Errorf("read the Transports: %w", err)
	}
	set, err := loader.Load(ctx, strings.NewReader(strings.ReplaceAll(transports, "PARTNER", partner)), manifest.Stdin)
	if err != nil {
		return fmt.Errorf("read the Transports: %w", err)
	}
	address, err := url.Parse(broker.AMQPURL)
	if err != nil {
		return errors.New("the URL of the broker is not a URL") // the cause would show the password
	}
	password, _ := address.User.Password()
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret}, StringData: map[string]string{
			"host": address.Hostname(), "port": address.Port(), "username": address.User.Username(), "password": password,
			"management_uri": broker.ManagementURL,
		}},
	}
	for _, policy := range set.RetryPolicies {
		objects = append(objects, policy)
	}
	for _, transport := range set.Transports {
		objects = append(objects, transport)
	}
	for _, object := range objects {
		if err := c.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	return nil
}
