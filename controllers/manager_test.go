package controllers_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/clusterinfo"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/controllers"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// shortWaits come to a second or so each, since the status keeps whole seconds.
func shortWaits() topology.Waits {
	return topology.Waits{Grace: 100 * time.Millisecond, Unbound: 100 * time.Millisecond, Empty: 100 * time.Millisecond}
}

// operator is a manager with the controllers in it.
type operator struct {
	// poll is how often it looks at each Transport; pollInterval where it is zero.
	poll time.Duration
	// silence is how long a management API may give no answer until quarantine pods run for that; 5 minutes where it is zero.
	silence time.Duration
	// young is how old a queue becomes before anything leads into it.
	young time.Duration
	// image of the workers, workerImage where it is empty; maxRollouts is how many Deployments another one rolls at a time.
	image       string
	maxRollouts int
	// uid is what it takes for its cluster's, where it is set: so it stands for the operator of another cluster.
	uid string
	// keda is true where it sees whether the cluster has KEDA. The others see none: it comes and goes while they run.
	keda bool
	// wrap stands between it and the API server, where it is set.
	wrap func(http.RoundTripper) http.RoundTripper
	// stay is how old a quarantine pod becomes at least; zero is a second.
	stay time.Duration
	// unnamed is how long a broker's Secret may be missing in a deletion; zero is a second.
	unnamed time.Duration
	// namespaces are the only ones that it sees; none is all but the private ones.
	namespaces []string

	// room is how many bytes the large specs take in its cache, as many as in a process of its own where it is zero; specs counts them.
	room  int
	specs *objectcache.Tally

	// admins are the Secrets of its --broker-admin, and request is for how long a request may be carried out late.
	admins  []types.NamespacedName
	request time.Duration

	// scale is the URL at which it tells how many messages there are.
	scale string
	// name tells its controllers from those of other operators in this process, and registry holds its metrics; of the operator that
	// tests share both are what they are in a process of its own.
	name     string
	registry *prometheus.Registry

	cancel context.CancelFunc
	ended  chan error
	writes writeCounter
	// dead is true once it was killed: nothing that it still says reaches the API server.
	dead atomic.Bool
}

var (
	// theOperator is the one that most tests share. They share a process, and TestMain ends it.
	theOperator operator
	// theRights are given, and theOperator is started, by the first test that needs it.
	theRights, theStart sync.Once
	// theLog is what all operators of this process log.
	theLog lockedBuffer
)

// privateNamespaces is how many namespaces the operator that tests share does not see. A test whose operator is to be stopped, killed or
// replaced takes one of them for an operator of its own, and so can run beside all others.
const privateNamespaces = 512

var privateTaken, operatorsNamed atomic.Int64

func privateName(i int64) string { return fmt.Sprintf("private-%03d", i) }

// privateNamespace makes the next namespace that the operator that tests share does not see.
func privateNamespace(t *testing.T, cluster *testcluster.Cluster) string {
	t.Helper()
	taken := privateTaken.Add(1)
	if taken > privateNamespaces {
		t.Fatalf("this run needs more than %d private namespaces: run fewer rounds, or raise the bound", privateNamespaces)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: privateName(taken)}}
	must(t, cluster.Client.Create(t.Context(), namespace))
	return namespace.Name
}

// sight is what of the cluster an operator sees.
func (o *operator) sight(t *testing.T) cache.Options {
	t.Helper()
	o.specs = objectcache.NewTally(cmp.Or(o.room, objectcache.SpecsOfProcess()))
	cached, err := objectcache.CacheOptions(o.specs)
	must(t, err)
	if len(o.namespaces) > 0 {
		cached.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range o.namespaces {
			cached.DefaultNamespaces[namespace] = cache.Config{}
		}
		return cached
	}
	var others []fields.Selector
	for i := int64(1); i <= privateNamespaces; i++ {
		others = append(others, fields.OneTermNotEqualSelector("metadata.namespace", privateName(i)))
	}
	cached.DefaultFieldSelector = fields.AndSelectors(others...)
	return cached
}

// registerer is where the metrics go; nil is where they go by default.
func (o *operator) registerer() prometheus.Registerer {
	if o == &theOperator {
		return nil
	}
	// As in a process that starts: a counter begins with nothing.
	o.registry = prometheus.NewRegistry()
	return o.registry
}

// metrics are all of this operator.
func (o *operator) metrics(t testing.TB) []*dto.MetricFamily {
	t.Helper()
	var from prometheus.Gatherer = metrics.Registry
	if o.registry != nil {
		from = o.registry
	}
	families, err := from.Gather()
	must(t, err)
	return families
}

func (o *operator) start(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	theRights.Do(func() { grant(t, cluster) })
	if o != &theOperator && o.name == "" {
		o.name = fmt.Sprintf("-%d", operatorsNamed.Add(1))
	}
	cfg := rest.CopyConfig(cluster.Config)
	cfg.Impersonate.UserName = managerUser
	cfg.Wrap(o.writes.wrap)
	cfg.Wrap(thePasswords.watch)
	cfg.Wrap(o.cutOff)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return hideKEDA(next, func() bool { return o.keda }) })
	if o.wrap != nil {
		cfg.Wrap(o.wrap)
	}
	clock := clusterinfo.ClockOf(cfg)
	tenancy.ShareProcessors(cfg) // as cmd/manager does: a reconcile that waits for the API server keeps no other of its namespace waiting
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: controllers.NewScheme(), Cache: o.sight(t), Client: objectcache.ClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		// One that is started again has controllers of the same names.
		Controller: config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: testtransport.Patience},
	})
	must(t, err)
	uid := ""
	testtransport.Eventually(t, "the API server to know the operator's rights", func() bool {
		uid, err = clusterinfo.UID(context.Background(), mgr.GetAPIReader())
		return err == nil
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	o.scale = "http://" + listener.Addr().String()
	waits := shortWaits()
	waits.Young, waits.Request = o.young, cmp.Or(o.request, waits.Request)
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel, o.ended = cancel, make(chan error, 1)
	must(t, controllers.Setup(ctx, mgr, controllers.Options{
		ClusterUID: cmp.Or(o.uid, uid), Workers: workload.Options{Image: cmp.Or(o.image, workerImage)}, MaxRollouts: o.maxRollouts,
		PollInterval: cmp.Or(o.poll, pollInterval), Waits: waits, QuarantineStay: cmp.Or(o.stay, time.Second), RepairWindow: repairWindow, Concurrency: 8,
		BrokerAdmins: o.admins, Scale: autoscaling.Server{Listener: listener, URL: o.scale}, Name: o.name, Metrics: o.registerer(),
		Specs: o.specs, Clock: clock, SilenceLimit: o.silence, UnnamedLimit: cmp.Or(o.unnamed, time.Second),
	}))
	go func() { o.ended <- mgr.Start(ctx) }()
}

// grant gives the operator the rights that it is deployed with, and no other.
func grant(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	file, err := os.ReadFile("../config/rbac/role.yaml")
	must(t, err)
	role := &rbacv1.ClusterRole{}
	must(t, yaml.UnmarshalStrict(file, role))
	must(t, cluster.Client.Create(t.Context(), role))
	must(t, cluster.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}},
	}))
}

// restart ends the operator and starts another, as a new pod would. A test does so with an operator of its own only.
func (o *operator) restart(t *testing.T) {
	t.Helper()
	o.stop()
	o.start(t, testcluster.Start(t))
}

// kill ends the operator as SIGKILL does: it writes nothing more to anybody.
func (o *operator) kill() {
	o.dead.Store(true)
	o.stop()
	o.dead.Store(false)
}

func (o *operator) cutOff(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if o.dead.Load() {
			return nil, errors.New("the operator is dead")
		}
		return next.RoundTrip(r)
	})
}

// stop ends the operator, if it runs.
func (o *operator) stop() {
	if o.cancel == nil {
		return
	}
	o.cancel()
	o.cancel = nil
	if err := <-o.ended; err != nil {
		fmt.Fprintln(os.Stderr, "the operator ended:", err)
	}
}

// newPrivateWorld is a world with an operator of its own: it sees nothing else, and the one that other tests share does not see this world.
// So the test may stop, kill and replace it while others run.
func newPrivateWorld(t *testing.T, o *operator) *world {
	t.Helper()
	w := newUnattendedWorld(t, o)
	o.start(t, testcluster.Start(t))
	t.Cleanup(o.stop)
	return w
}

// startBeside starts one more operator for the namespaces of a world, until the test ends.
func (w *world) startBeside(second *operator) {
	w.Helper()
	second.namespaces = slices.Clone(w.operator.namespaces)
	second.start(w.T, testcluster.Start(w.T))
	w.Cleanup(second.stop)
}

// reconciles is how often a controller of this operator has reconciled, since the process began.
func (o *operator) reconciles(t *testing.T, controller string) (total int) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if label(metric, "controller") == controller+o.name {
				total += int(metric.GetCounter().GetValue())
			}
		}
	}
	return total
}
