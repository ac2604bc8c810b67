// Command manager is the operator: it reconciles RetryPolicies and Transports.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"redrive.dev/redrive/controllers"
	"redrive.dev/redrive/internal/clusterinfo"
	"redrive.dev/redrive/internal/crdcheck"
	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/workload"
)

// workerImageVariable gives the worker's image where no flag does.
const workerImageVariable = "REDRIVE_WORKER_IMAGE"

// settings are the values of the flags.
type settings struct {
	leaderElect     bool
	leaderNamespace string
	metricsAddress  string
	metricsSecure   bool
	metricsCertDir  string
	probeAddress    string
	scaleAddress    string
	scaleURL        string
	pprofAddress    string
	workerImage     string
	imagePullPolicy string
	workerRequests  resources
	workerLimits    resources
	namespaces      namespaces
	denyNetworks    prefixes
	brokerAdmins    secretNames
	restrict        bool
	pollInterval    time.Duration
	waits           topology.Waits
	rotateUsers     time.Duration
	concurrency     int
	maxRollouts     int
	logLevel        slog.Level
	version         bool
}

func main() {
	flags := flag.NewFlagSet("manager", flag.ExitOnError)
	s := parse(flags, os.Args[1:])
	if s.version {
		fmt.Println("redrive-manager", version.Long())
		return
	}
	log := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: s.logLevel})
	ctrl.SetLogger(logr.FromSlogHandler(log))
	slog.SetDefault(slog.New(log)) // for the log of the standard library, too
	httpserver.GuardStandardLog()
	if err := run(ctrl.SetupSignalHandler(), s); err != nil {
		ctrl.Log.Error(err, "the manager ends")
		os.Exit(1)
	}
}

func parse(flags *flag.FlagSet, arguments []string) *settings {
	s := &settings{waits: topology.DefaultWaits(), workerRequests: resources(workload.DefaultRequests())}
	flags.BoolVar(&s.leaderElect, "leader-elect", false, "Let one of several managers work and the others stand by.")
	flags.StringVar(&s.leaderNamespace, "leader-elect-namespace", "", "Namespace of the Lease by which one leads; empty is the manager's own, in the cluster.")
	flags.StringVar(&s.metricsAddress, "metrics-bind-address", ":8443", "Address of the metrics; 0 turns them off.")
	flags.BoolVar(&s.metricsSecure, "metrics-secure", true,
		"Serve the metrics over HTTPS with authentication and authorization by the API server. If false, over plain HTTP without either.")
	flags.StringVar(&s.metricsCertDir, "metrics-cert-dir", "",
		"Folder with tls.crt and tls.key for the metrics server. Default: a self-signed certificate.")
	flags.StringVar(&s.probeAddress, "health-probe-bind-address", ":8081", "Address of /healthz and /readyz.")
	flags.StringVar(&s.scaleAddress, "autoscaling-bind-address", off,
		"Address at which KEDA reads the backlog of worker groups. 0 disables it and the use of KEDA.")
	flags.StringVar(&s.scaleURL, "autoscaling-url", "http://redrive-manager-scale.redrive-system.svc:8082", "URL under which KEDA reaches that address.")
	flags.StringVar(&s.pprofAddress, "pprof-bind-address", "0",
		"Address of Go's profiles, without authentication: use a loopback address. 0 disables them.")
	flags.StringVar(&s.workerImage, "worker-image", os.Getenv(workerImageVariable), "Image of the workers.")
	flags.StringVar(&s.imagePullPolicy, "worker-image-pull-policy", "", "Pull policy of the workers' image; empty leaves it to Kubernetes.")
	flags.Var(&s.workerRequests, "worker-requests", "Resources that each worker pod requests, such as cpu=50m,memory=64Mi; empty: none.")
	flags.Var(&s.workerLimits, "worker-limits", "Limits of each worker pod's resources, such as memory=256Mi. Default: none.")
	flags.Var(&s.namespaces, "watch-namespaces", "Comma-separated list of the namespaces to watch. Default: all.")
	flags.Var(&s.denyNetworks, "deny-broker-networks",
		"Comma-separated list of networks, such as 127.0.0.0/8, in which the operator connects to no management API. Default: none.")
	flags.Var(&s.brokerAdmins, "broker-admin",
		"Secrets, as NAMESPACE/NAME with commas between them, with logins of RabbitMQ's administrators: one for each broker, by which users of workers are made.")
	flags.BoolVar(&s.restrict, "restrict-templates", false, "Reject pod templates that expose Secrets or use a service account.")
	flags.DurationVar(&s.pollInterval, "poll-interval", time.Minute, "How often each Transport is compared with its broker.")
	flags.DurationVar(&s.waits.Grace, "lane-grace", s.waits.Grace, "How long a lane stays bound after no configuration names it any more.")
	flags.DurationVar(&s.waits.Unbound, "drain-settle-period", s.waits.Unbound,
		"How long a queue that is being deleted is unbound before its messages are first counted.")
	flags.DurationVar(&s.waits.Empty, "empty-confirm-period", s.waits.Empty, "Time between the two message counts of a queue that is being deleted.")
	flags.DurationVar(&s.waits.Request, "request-lifetime", s.waits.Request,
		"How long a request to delete something may still be carried out after it was sent, where its answer is not known.")
	flags.DurationVar(&s.rotateUsers, "user-rotation-interval", 30*24*time.Hour,
		"Rotation interval for the passwords of RabbitMQ users that the operator manages (spec.broker.scopedUser).")
	flags.IntVar(&s.concurrency, "max-concurrent-reconciles", 8, "Transports of one broker that are reconciled at a time.")
	flags.IntVar(&s.maxRollouts, "max-concurrent-rollouts", 10, "How many worker Deployments an upgrade of the operator rolls out at a time.")
	flags.BoolVar(&s.version, "version", false, "Print the version and exit.")
	flags.TextVar(&s.logLevel, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR.")
	config.RegisterFlags(flags)
	_ = flags.Parse(arguments) // With flag.ExitOnError it does not return an error.
	return s
}

func (s *settings) check() error {
	switch {
	case s.workerImage == "":
		return errors.New("the image of the workers is missing: set --worker-image or " + workerImageVariable)
	case s.exceedsLimits() != "":
		return fmt.Errorf("--worker-requests has more %s than --worker-limits", s.exceedsLimits())
	case s.pollInterval < time.Second:
		return errors.New("--poll-interval must be at least 1s")
	case s.waits.Grace < 0 || s.waits.Unbound < 0 || s.waits.Empty < 0 || s.waits.Request < 0:
		return errors.New("--lane-grace, --drain-settle-period, --empty-confirm-period and --request-lifetime must not be negative")
	case s.rotateUsers < time.Hour:
		return errors.New("--user-rotation-interval must be at least 1h")
	case s.concurrency < 1:
		return errors.New("--max-concurrent-reconciles must be at least 1")
	case s.maxRollouts < 1:
		return errors.New("--max-concurrent-rollouts must be at least 1")
	}
	if err := s.checkScale(); err != nil {
		return err
	}
	return s.checkMetrics()
}

// exceedsLimits is a resource of which workers would request more than they may have; empty where there is none. The API server would refuse each pod.
func (s *settings) exceedsLimits() corev1.ResourceName {
	for name, limit := range s.workerLimits {
		if request, has := s.workerRequests[name]; has && request.Cmp(limit) > 0 {
			return name
		}
	}
	return ""
}

// namespaces is the value of a flag: names with commas between them. None is all namespaces.
type namespaces []string

// String implements flag.Value.
func (n *namespaces) String() string { return strings.Join(*n, ",") }

// Set implements flag.Value. Given twice, the flag counts as one list.
func (n *namespaces) Set(list string) error {
	if list == "" {
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("%q is not the name of a namespace: %s", name, strings.Join(problems, "; "))
		}
		*n = append(*n, name)
	}
	return nil
}

// cached restricts the cache to the namespaces: what lies elsewhere is neither read nor written.
func (n *namespaces) cached() map[string]cache.Config {
	if len(*n) == 0 {
		return nil
	}
	only := map[string]cache.Config{}
	for _, name := range *n {
		only[name] = cache.Config{}
	}
	return only
}

// secretNames is the value of a flag: names with their namespaces, with commas between them. Given twice, the flag counts as one list.
type secretNames []types.NamespacedName

// String implements flag.Value.
func (n *secretNames) String() string {
	texts := make([]string, len(*n))
	for i, name := range *n {
		texts[i] = name.String()
	}
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (n *secretNames) Set(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		namespace, name, _ := strings.Cut(text, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("%q is not the name of a Secret with its namespace, such as redrive-system/rabbitmq-admin", text)
		}
		*n = append(*n, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return nil
}

// prefixes is the value of a flag: networks with commas between them. Given twice, the last counts.
type prefixes []netip.Prefix

// String implements flag.Value.
func (p *prefixes) String() string {
	texts := make([]string, len(*p))
	for i, prefix := range *p {
		texts[i] = prefix.String()
	}
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (p *prefixes) Set(list string) error {
	*p = nil
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("%q is not a network such as 10.0.0.0/8", text)
		}
		*p = append(*p, prefix)
	}
	return nil
}

// resources is the value of a flag: amounts by the names of resources, with commas between them. Given twice, the last counts.
type resources corev1.ResourceList

// String implements flag.Value.
func (r *resources) String() string {
	texts := make([]string, 0, len(*r))
	for name, amount := range *r {
		texts = append(texts, string(name)+"="+amount.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (r *resources) Set(list string) error {
	*r = resources{}
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		name, amount, _ := strings.Cut(text, "=")
		quantity, err := resource.ParseQuantity(amount)
		if err != nil || name == "" || quantity.Sign() < 0 {
			return fmt.Errorf("%q is not an amount of a resource, such as memory=64Mi", text)
		}
		(*r)[corev1.ResourceName(name)] = quantity
	}
	return nil
}

func run(ctx context.Context, s *settings) error {
	if err := s.check(); err != nil {
		return err
	}
	cluster, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	return runOn(ctx, cluster, s)
}

// runOn runs a manager for a cluster until the context ends.
func runOn(ctx context.Context, cluster *rest.Config, s *settings) error {
	tenancy.BoundPages(cluster)
	tenancy.ShareProcessors(cluster)
	clock := clusterinfo.ClockOf(cluster)
	specs := objectcache.NewTally(objectcache.SpecsOfProcess())
	mgr, err := newManager(ctx, cluster, s, specs)
	if err != nil {
		return err
	}
	if err := checkCRDs(ctx, mgr); err != nil {
		return err
	}
	uid, err := clusterinfo.UID(ctx, mgr.GetAPIReader())
	if err != nil {
		return fmt.Errorf("identify the cluster: %w", err)
	}
	scale, err := s.scale(ctx)
	if err != nil {
		return err
	}
	err = controllers.Setup(ctx, mgr, controllers.Options{
		ClusterUID: uid,
		Workers: workload.Options{
			Image: s.workerImage, ImagePullPolicy: corev1.PullPolicy(s.imagePullPolicy), Restrict: s.restrict,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList(s.workerRequests), Limits: corev1.ResourceList(s.workerLimits)},
		},
		PollInterval: s.pollInterval,
		Waits:        s.waits,
		RotateUsers:  s.rotateUsers,
		Concurrency:  s.concurrency,
		MaxRollouts:  s.maxRollouts,
		DenyNetworks: s.denyNetworks,
		BrokerAdmins: s.brokerAdmins,
		Specs:        specs,
		Clock:        clock,
		Scale:        scale,
	})
	if err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	ctrl.Log.Info("starting", "version", version.Version(), "workerImage", s.workerImage, "namespaces", s.namespaces.String())
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// checkCRDs fails where the cluster's CRDs are older than the operator.
func checkCRDs(ctx context.Context, mgr manager.Manager) error {
	server, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for the schema of the cluster: %w", err)
	}
	return crdcheck.Check(ctx, server.OpenAPIV3())
}

func newManager(ctx context.Context, cluster *rest.Config, s *settings, specs *objectcache.Tally) (manager.Manager, error) {
	cached, err := objectcache.CacheOptions(specs)
	if err != nil {
		return nil, fmt.Errorf("restrict the cache: %w", err)
	}
	cached.DefaultNamespaces = s.namespaces.cached()
	mgr, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme:                 controllers.NewScheme(),
		Cache:                  cached,
		Client:                 objectcache.ClientOptions(),
		Metrics:                metricsserver.Options{BindAddress: off},
		HealthProbeBindAddress: off,
		PprofBindAddress:       s.pprofAddress,
		LeaderElection:         s.leaderElect,
		LeaderElectionID:       "redrive-manager.redrive.dev",
		// A manager that is no pod has no namespace of its own.
		LeaderElectionNamespace: s.leaderNamespace,
		// The process ends when the manager does, so that another may take over at once.
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, errors.Join(s.addMetrics(ctx, mgr), s.addProbes(ctx, mgr))
}
