// Package controllers holds the reconcilers of the two kinds. They are thin: what is wanted is decided by the pure
// packages below, what is on the broker is changed by internal/apply, and a reconciler puts the two together and tells
// of it in the status.
package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/brokeruser"
	"redrive.dev/redrive/internal/clusterinfo"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/configmaps"
	"redrive.dev/redrive/internal/drift"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/quarantinepod"
	"redrive.dev/redrive/internal/references"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/scaler"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/transportmemory"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

const (
	// firstRetry is the first of the growing delays after errors; the poll interval is the longest.
	firstRetry = 500 * time.Millisecond
	// maxReconciles is how many Transports are reconciled at a time, with those that wait in a queue: these cost a few kilobytes each. So brokers that are
	// slow, or do not answer at all, need not be told from others, unless Transports wait for several such by hundreds. One namespace has a quarter of
	// them at most, whatever its brokers.
	maxReconciles = 1024
	// maxDeletions is how many others of them are deleted without their broker.
	maxDeletions = maxReconciles / 4
	// maxConcurrentReconciles has some more, which turn away those that are not admitted: the queue goes on also where all others wait.
	maxConcurrentReconciles = maxReconciles + maxDeletions + 16
	// maxAsking is how many of them, and samples for autoscaling, use management APIs at a time: each takes some hundred kilobytes for its connection and for
	// the beginning of an answer, before any of that is counted.
	maxAsking = 256
	// reconcileTimeout bounds one reconcile, from when it has its slot: a broker that answers slowly must not keep one for ever.
	reconcileTimeout = 2 * time.Minute
	// goneInterval is how often a reconcile that takes long looks whether its Transport is still there.
	goneInterval = 10 * time.Second
)

// Options of the reconcilers.
type Options struct {
	// ClusterUID tells the owner marks of one cluster from those of another; see clusterinfo.UID.
	ClusterUID string
	// Workers are the settings of the Deployments that no Transport decides on.
	Workers workload.Options
	// PollInterval is how often a Transport is compared with its broker when nothing calls for it; it is jittered.
	PollInterval time.Duration
	// Waits between the steps by which a queue is deleted.
	Waits topology.Waits
	// QuarantineStay is how old a quarantine pod becomes at least; zero is 5 minutes.
	QuarantineStay time.Duration
	// SilenceLimit is how long the management API may give no answer until the pods for quarantined messages run whether there are any or not;
	// zero is 5 minutes.
	SilenceLimit time.Duration
	// UnnamedLimit is how long the Secret or RabbitmqCluster of a Transport that is deleted may be missing until it is released; 30 s where it is zero.
	UnnamedLimit time.Duration
	// RotateUsers is how old the password of a Transport's own RabbitMQ user becomes; zero is 30 days.
	RotateUsers time.Duration
	// Concurrency is the number of Transports of one broker that are reconciled at a time.
	Concurrency int
	// RepairWindow is the time within which an object that others change is put right five times at most; zero is that of five polls.
	RepairWindow time.Duration
	// MaxRollouts is how many Deployments roll at a time for an upgrade of the operator; zero is 10. What a user asks for does
	// not wait.
	MaxRollouts int
	// BrokerAdmins are Secrets with logins of RabbitMQ's administrators, one for each broker, by which the users of workers are kept.
	BrokerAdmins []types.NamespacedName
	// Specs bounds what the manager's cache keeps of the specs of all namespaces.
	Specs *objectcache.Tally
	// DenyNetworks are those in which no management API is asked.
	DenyNetworks []netip.Prefix
	// Clock is that of the API server; nil is that of this machine.
	Clock *clusterinfo.Clock
	// Scale is how KEDA asks for the numbers that it scales workers by.
	Scale autoscaling.Server
	// Name follows the names of the controllers in logs and metrics, and Metrics is where the operator's own metrics go; nil is
	// controller-runtime's registry. Where several operators share a process, they are kept apart by these.
	Name    string
	Metrics prometheus.Registerer
}

// Setup registers both reconcilers with a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := references.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	events, processors := tenancy.NewEvents(), tenancy.NewProcessors()
	policies := &RetryPolicyReconciler{
		Client: mgr.GetClient(), Recorder: events.Recorder(mgr.GetEventRecorder("retrypolicy-controller")), specs: options.Specs, processors: processors,
	}
	if err := policies.setup(mgr, "retrypolicy"+options.Name, controllerOptions(options, maxConcurrentPolicies)); err != nil {
		return err
	}
	options.Workers.Templates = workload.NewTemplates()
	options.QuarantineStay = cmp.Or(options.QuarantineStay, quarantinepod.Stay)
	options.SilenceLimit = cmp.Or(options.SilenceLimit, silenceLimit)
	options.UnnamedLimit = cmp.Or(options.UnnamedLimit, unnamedLimit)
	options.RotateUsers = cmp.Or(options.RotateUsers, brokeruser.RotationInterval)
	server, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for the version of the cluster: %w", err)
	}
	age := min(brokerpool.SnapshotAge, options.PollInterval/2)
	brokers := brokerpool.NewPool(age, options.Concurrency, options.DenyNetworks)
	transports := &TransportReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: events.Recorder(mgr.GetEventRecorder("transport-controller")),
		Options:      options,
		brokers:      brokers,
		admission:    tenancy.NewAdmission(maxReconciles),
		deletions:    tenancy.NewAdmission(maxDeletions),
		asking:       tenancy.NewAdmission(maxAsking),
		processors:   processors,
		pollSchedule: brokerpool.NewPollSchedule(),
		queueMetrics: opmetrics.NewQueues(),
		dropMetrics:  opmetrics.NewDrops(),
		counts:       status.NewCounts(),
		memories:     transportmemory.NewStore(),
		outdated:     objectcache.NewOutdated(),
		compileCache: compile.NewCache(),
		drift:        drift.NewTracker(),
		scraper:      workerstatus.NewScraper(age),

		restarts:   brokerpool.NewRestartWatch(options.PollInterval, processors),
		conditions: opmetrics.NewConditions(),

		sidecars: clusterinfo.KnowsSidecars(server),
		admins:   &brokeruser.Admins{Live: mgr.GetAPIReader(), Brokers: brokers, Secrets: options.BrokerAdmins},
		users:    brokeruser.NewKeeper(mgr.GetClient(), mgr.GetAPIReader(), options.RotateUsers, options.Waits.Grace),
	}
	if err := mgr.Add(transports.outdated); err != nil {
		return fmt.Errorf("watch for an outdated cache: %w", err)
	}
	transports.configMaps = configmaps.NewReader(transports.Client, transports.Live, &transports.reads)
	transports.writer = &objectwriter.Writer{
		Client: transports.Client, Live: transports.Live, Reads: &transports.reads,
		Repairs:  ssa.NewRepairs(cmp.Or(options.RepairWindow, ssa.MaxRepairs*options.PollInterval)),
		Rollouts: rollout.NewLimiter(transports.Client, cmp.Or(options.MaxRollouts, rollout.DefaultLimit), options.Clock.Now),
	}
	transports.scalers = scaler.NewKeeper(transports.writer, clusterinfo.HasKEDA(server, age), options.Scale.URL)
	meter := autoscaling.NewMeter(mgr.GetClient(), backlogSource{transports}, age)
	demands := autoscaling.NewCollector(meter, autoscaling.Interval(options.PollInterval))
	registry := cmp.Or[prometheus.Registerer](options.Metrics, metrics.Registry)
	if err := opmetrics.Register(registry, transports.brokers, transports.queueMetrics, transports.conditions, transports.drift.Repairs,
		transports.dropMetrics.Total, demands); err != nil {
		return err
	}
	if err := autoscaling.Add(mgr, options.Scale, meter, demands); err != nil {
		return err
	}
	concurrent := controllerOptions(options, maxConcurrentReconciles)
	concurrent.ReconciliationTimeout = 0 // Most of them wait for their turn at a broker, for as long as that takes.
	return transports.setup(mgr, "transport"+options.Name, concurrent)
}

func controllerOptions(options Options, workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		ReconciliationTimeout:   reconcileTimeout,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			firstRetry, max(options.PollInterval, firstRetry)),
	}
}

// NewScheme returns a scheme that knows Redrive's kinds and Kubernetes' own.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// step is one part of a reconcile. Steps run in order, and the first error ends them. The error is control flow: package
// outcome says what it means.
type step[S any] func(ctx context.Context, state S) error

func runSteps[S any](ctx context.Context, state S, steps ...step[S]) error {
	for _, next := range steps {
		if err := next(ctx, state); err != nil {
			return err
		}
	}
	return nil
}
