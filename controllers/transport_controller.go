package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/brokersource"
	"redrive.dev/redrive/internal/brokeruser"
	"redrive.dev/redrive/internal/clusterinfo"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/configmaps"
	"redrive.dev/redrive/internal/drift"
	"redrive.dev/redrive/internal/enqueue"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/references"
	"redrive.dev/redrive/internal/scaler"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/transportmemory"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// TransportReconciler brings the broker and the worker Deployments to what a Transport asks for.
type TransportReconciler struct {
	Client client.Client
	// Live reads from the API server itself.
	Live     client.Reader
	Recorder events.EventRecorder
	Options  Options

	brokers      *brokerpool.Pool
	pollSchedule *brokerpool.PollSchedule
	queueMetrics *opmetrics.Queues
	dropMetrics  *opmetrics.Drops
	counts       *status.Counts
	memories     *transportmemory.Store
	outdated     *objectcache.Outdated
	compileCache *compile.Cache
	// configMaps of the workers, as they were last read.
	configMaps *configmaps.Reader
	// admission, processors and reads are what a namespace may take of the operator; asking admits those that use a management API, and deletions the
	// Transports that are deleted without a broker, which must not wait behind those that need theirs.
	admission, asking, deletions *tenancy.Admission
	processors                   *tenancy.Processors
	reads                        tenancy.Reader
	drift                        *drift.Tracker
	scraper                      *workerstatus.Scraper

	restarts   *brokerpool.RestartWatch
	conditions *opmetrics.Conditions

	sidecars *clusterinfo.Question
	scalers  *scaler.Keeper
	users    *brokeruser.Keeper
	admins   *brokeruser.Admins
	writer   *objectwriter.Writer
}

// transportRun is the state of one reconcile of a Transport.
type transportRun struct {
	transport *v1alpha1.Transport
	status    *outcome.Patcher
	// asked is true where the user has changed the Transport since its workers were last brought to what it asks for.
	asked bool
	// live are the workers' objects as the cluster has them.
	live workload.Live
	// unknown are the worker groups that have left the spec and whose configurations were not read, by the names of their ConfigMaps.
	unknown map[string]string
	// weighed is what follows from the spec takes of the operator's memory; nil is not counted.
	weighed *tenancy.Reservation
	// certificates is what those for the broker take, of the last look at its Secret.
	certificates **tenancy.Reservation
	// held is what the ConfigMaps of the look take of the operator's memory; nil is not counted.
	held *tenancy.Reservation
	// scalers are what scales the workers, as the cluster has it; nil before it is read.
	scalers *scaler.Found

	compiled *compile.Result
	// groups are the configurations by the spec alone, with the stand-ins of their queues; those of compiled are as workers are to have them now.
	groups []compile.Config
	// takenOver are the queues that a group is to have and another one still consumes.
	takenOver map[string]bool
	// source is where the broker's address and login were found.
	source brokersource.Source
	// handlerSecrets are the versions of the Secrets of handlers, by worker group.
	handlerSecrets map[string]string
	// guarded are Secrets with a login that is not for pods, of those that workers would show; nil before they are looked for.
	guarded map[string]bool
	// userVersion is that of the Secret with the login of the workers' own user; empty where there is none.
	userVersion string
	// endpoint leads to the broker, and port to what is on it; nil before connect.
	endpoint brokerEndpoint
	port     *brokerpool.View
	// restarted is when the broker was found to be started again; zero where that is not known.
	restarted time.Time
	// admin is the port by which the users of the workers are kept; nil before it is looked for.
	admin *brokerpool.View
	// ending is the namespace of a Transport that is deleted, where it is being deleted too; endingErr says that nobody knows.
	ending    *corev1.Namespace
	endingErr error
	// observed is what the broker had where the look at it came to its end; nil where it did not.
	observed *topology.Observed
	report   apply.Report
	// awaited is a pod that keeps a migration from its next step, and why; empty where none does.
	awaited string

	// findings and warnings are what works, but not as the user may believe.
	findings []topology.Finding
	warnings []string
	// incomplete is the first error of a part without which the others can go on.
	incomplete error
	// due is when the next step on the broker is; zero where none is.
	due time.Duration
}

// partly notes an error that does not keep the following steps from being taken.
func (run *transportRun) partly(err error) {
	if run.incomplete == nil {
		run.incomplete = err
	}
}

// partlyBeside is partly for what keeps a migration waiting: it is told with that.
func (run *transportRun) partlyBeside(err error) {
	if why, known := errors.AsType[*outcome.StepError](run.incomplete); known && why.Reason == v1alpha1.ReasonMigrating {
		run.incomplete = outcome.Waiting(why.Reason, why.After, fmt.Errorf("%w; %w", why.Err, err))
		return
	}
	run.partly(err)
}

// owner is the value of the owner mark of a Transport's objects on the broker.
func (r *TransportReconciler) owner(t *v1alpha1.Transport) string {
	return r.Options.ClusterUID + "/" + t.Namespace + "/" + t.Name
}

// gatherOwned is how long changes of the workers' objects are gathered. A write of ours comes back as one, and a rollout is a
// handful: a look at each would often be at a copy of the Transport that lacks what the last look wrote, and be in vain.
const gatherOwned = 250 * time.Millisecond

// setup registers the reconciler. Of policies, only a change of the spec concerns a Transport.
func (r *TransportReconciler) setup(mgr ctrl.Manager, name string, options controller.Options) error {
	changed := builder.WithPredicates(objectcache.Changed())
	policies := enqueue.UsersOf(r.usersOf)
	err := ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.Transport{}, changed).
		Watches(&appsv1.Deployment{}, enqueue.After(gatherOwned, enqueue.RequestsOf(ownerOf))).
		Watches(&corev1.ConfigMap{}, enqueue.After(gatherOwned, enqueue.RequestsOf(ownerOf)), builder.OnlyMetadata).
		Watches(&appsv1.Deployment{}, r.writer.Rollouts.WhenOneEnds()).
		WatchesRawSource(source.Func(r.restarts.Watch)).
		Watches(&v1alpha1.RetryPolicy{}, policies, changed).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of Transports: %w", err)
	}
	return nil
}

// ownerOf is the Transport that an object of the workers belongs to.
func ownerOf(_ context.Context, object client.Object) ([]types.NamespacedName, error) {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.APIVersion != v1alpha1.GroupVersion.String() || owner.Kind != "Transport" {
		return nil, nil // somebody else's
	}
	return []types.NamespacedName{{Namespace: object.GetNamespace(), Name: owner.Name}}, nil
}

func (r *TransportReconciler) usersOf(ctx context.Context, policies ...types.NamespacedName) ([]types.NamespacedName, error) {
	return references.Users(ctx, r.Client, policies...)
}

var (
	// errNothingToDo ends a reconcile early: the Transport is gone, or the operator is stopping.
	errNothingToDo = errors.New("nothing to do")
	// errBrokerChanged ends a reconcile that queued for a broker which is no longer the Transport's.
	errBrokerChanged = errors.New("the broker of the Transport has changed")
)

// +kubebuilder:rbac:groups=redrive.dev,resources=transports,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=redrive.dev,resources=transports/status,verbs=patch
// +kubebuilder:rbac:groups=redrive.dev,resources=transports/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;create;patch;delete
// +kubebuilder:rbac:groups=keda.sh,resources=scaledobjects,verbs=list;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",resources=secrets;namespaces,verbs=get
// +kubebuilder:rbac:groups=rabbitmq.com,resources=rabbitmqclusters,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings the broker and the worker Deployments to what the Transport asks for. First it gets its share of the operator (reconcile): it loads
// the Transport, enters the admission of its namespace, and takes a processor and a slot at the broker. Then reconcileInSlot bounds its time and memory,
// reconcileSteps takes the steps, each a method of its name, and outcome.Finish writes the status. It implements reconcile.Reconciler.
func (r *TransportReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, req.NamespacedName)
	switch {
	case errors.Is(err, errNothingToDo):
		return ctrl.Result{}, nil
	case errors.Is(err, errBrokerChanged):
		return ctrl.Result{RequeueAfter: outcome.RetryAfterConflict}, nil
	}
	return result, err
}

// reconcile loads the Transport, waits for a slot at its broker where it needs one, and takes the steps.
func (r *TransportReconciler) reconcile(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	run, err := r.load(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	admission, pause := r.admission, crowdPause
	if !run.mayNeedBroker() {
		admission, pause = r.deletions, fullPause // those before it take milliseconds
	}
	leave, err := admission.Enter(name.Namespace, run.isSteady())
	if err != nil {
		return r.requeueLater(ctx, run, pause, err)
	}
	defer leave()
	run, processor, err := r.acquireProcessor(ctx, run)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer processor.Release()
	ctx = broker.WithWaiter(ctx, processor)
	var certificates *tenancy.Reservation
	run.certificates = &certificates
	defer func() { certificates.Release() }()
	r.resolveBroker(ctx, run)
	if run.needsBroker() {
		seated, leave, later, err := r.acquireSlot(ctx, run)
		defer leave()
		if err != nil || seated == nil {
			return later, err
		}
		run = seated
	}
	return r.reconcileInSlot(ctx, run, processor)
}

// reconcileInSlot bounds the time and the memory of a reconcile, and takes its steps.
func (r *TransportReconciler) reconcileInSlot(ctx context.Context, run *transportRun, processor *tenancy.Processor) (ctrl.Result, error) {
	name := client.ObjectKeyFromObject(run.transport)
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	ctx = broker.WithWaiter(ctx, processor)
	go r.cancelWhenGone(ctx, run.transport.UID, name, cancel)
	held := r.brokers.Memory().Reserve(name.Namespace)
	defer held.Release()
	run.weighed = r.brokers.Memory().Reserve(name.Namespace)
	defer run.weighed.Release()
	run.held = r.configMaps.Memory().Reserve(name.Namespace)
	defer run.held.Release()
	defer func() {
		if run.port != nil {
			run.port.Release()
		}
	}()
	return r.reconcileNow(broker.WithMeter(ctx, held), run)
}

// cancelWhenGone ends a reconcile whose Transport is gone, as where its owner took the finalizer off: a broker that answers slowly would keep it busy,
// and its memory taken, until its time is over.
func (r *TransportReconciler) cancelWhenGone(ctx context.Context, uid types.UID, name types.NamespacedName, cancel func()) {
	tick := time.NewTicker(goneInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := &v1alpha1.Transport{}
		err := r.Client.Get(ctx, name, now, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) || err == nil && now.UID != uid {
			cancel()
			return
		}
	}
}

// reconcileNow takes the steps and writes their outcome into the status. The Transport has its slot.
func (r *TransportReconciler) reconcileNow(ctx context.Context, run *transportRun) (ctrl.Result, error) {
	name := client.ObjectKeyFromObject(run.transport)
	err := run.source.Explain(run.transport.Namespace, r.reconcileSteps(ctx, run))
	soon := outcome.Sooner(run.due, r.memories.Requeue(name, len(run.live.Rolling()) > 0, time.Now()))
	next := outcome.Sooner(soon, r.pollSchedule.Next(run.transport.Status.Broker, time.Now(), r.Options.PollInterval))
	result, err := outcome.Finish(ctx, run.status, err, run.warningTexts(), next)
	if version, read, is := run.status.Outdated(); is {
		r.outdated.Note(name, version, read, time.Now())
	}
	r.countConditions(run)
	return result, err
}

// reconcileSteps takes the steps in their order: those of a deletion, or the others.
func (r *TransportReconciler) reconcileSteps(ctx context.Context, run *transportRun) error {
	if !run.transport.DeletionTimestamp.IsZero() {
		return r.delete(ctx, run)
	}
	return runSteps(ctx, run,
		r.addFinalizer,
		r.readWorkers,
		r.bestEffort(r.checkSize),
		r.bestEffort(r.compile),
		r.askWorkers,
		r.lookForSecrets,
		r.connectOrWake,
		r.bestEffort(r.applyTopology),
		r.warnOfSharing,
		r.bestEffort(r.keepUser),
		r.bestEffort(r.applyWorkers),
		r.applyQuarantine,
		r.removeWorkers,
		r.refreshPods,
		r.leaveUsers,
		r.complete,
	)
}

// forget drops everything that is kept in memory about a deleted Transport.
func (r *TransportReconciler) forget(name types.NamespacedName) {
	r.brokers.Forget(name, brokeruser.ClientOf(name))
	r.queueMetrics.Forget(name)
	r.dropMetrics.Forget(name)
	r.conditions.Forget(name)
	r.counts.Forget(name)
	r.memories.Forget(name)
	r.outdated.Forget(name)
	r.compileCache.Forget(name)
	r.configMaps.Forget(name)
	r.drift.Forget(name)
	r.writer.Forget(name)
	r.scraper.Forget(name)
	r.restarts.Forget(name)
	r.scalers.Forget(name)
}

// addFinalizer comes before anything is made that it has to clean up.
func (r *TransportReconciler) addFinalizer(ctx context.Context, run *transportRun) error {
	if controllerutil.AddFinalizer(run.transport, v1alpha1.Finalizer) {
		return run.status.WriteMeta(ctx)
	}
	return nil
}

// checkSize refuses a Transport of which the cache has a part only. What it had made goes on as it is.
func (r *TransportReconciler) checkSize(_ context.Context, run *transportRun) error {
	if err := objectcache.CheckSize(run.transport); err != nil {
		return err
	}
	return r.Options.Specs.Check(run.transport, time.Now())
}

// perStrategy is what a strategy of a compiled policy takes in memory during a reconcile, with its text in configurations, in bytes.
const perStrategy = 1 << 10

// compile turns the spec and the policies into the workers' configuration: Stalled with PolicyNotFound, PolicyInvalid,
// InvalidExpression or Invalid where that cannot be. Then the last good configuration stays in force.
func (r *TransportReconciler) compile(ctx context.Context, run *transportRun) error {
	var err error
	run.compiled, err = r.compileNow(ctx, run)
	if refused, ok := errors.AsType[*compile.Error](err); ok {
		return outcome.Stalled(refused.Reason, err)
	}
	if err == nil {
		if merged := run.compiled.Merged(); merged != "" {
			run.warnings = append(run.warnings, merged)
		}
		run.groups = slices.Clone(run.compiled.Workers)
		run.followReplicas()
	}
	return err
}

// compileNow compiles at the reconcile. What the cache does not know is mostly found out before it has its slot: here it is where a policy has changed
// meanwhile.
func (r *TransportReconciler) compileNow(ctx context.Context, run *transportRun) (*compile.Result, error) {
	t := run.transport
	policies, err := references.Policies(ctx, r.Client, t.Namespace)
	if err != nil {
		return nil, err
	}
	// More than are allowed take nothing.
	if all := compile.Strategies(t, policies); all <= compile.MaxStrategies {
		if err := run.weighed.TakeNow(ctx, perStrategy*all); err != nil {
			return nil, outcome.Waiting(v1alpha1.ReasonProgressing, costlyPause, fmt.Errorf("the policies of the Transport have %d strategies: %w", all, err))
		}
	}
	return r.compileCache.Compile(t, policies)
}

// followReplicas lets the workers divide what they share by the pods that an autoscaler wants at the moment, and by the one of
// their quarantined messages, which calls the same handler.
func (run *transportRun) followReplicas() {
	for i := range run.compiled.Workers {
		worker, config := &run.transport.Spec.Workers[i], &run.compiled.Workers[i]
		if config.Replicas == 0 {
			continue
		}
		config.Replicas = run.shares(worker.Name, worker.Replicas, config.Replicas)
	}
}

// shares is by how many pods the workers of a group divide what they share. spec is the number of its replicas there, nil where its Deployment has the
// last word; otherwise is for a group without one.
func (run *transportRun) shares(group string, spec *int32, otherwise int) int {
	shares := otherwise
	if live := run.live.Deployments[workload.Name(run.transport, group)]; live != nil && spec == nil {
		shares = max(1, int(workload.Replicas(live)))
	}
	if run.live.Quarantine[workload.QuarantineName(run.transport, group)] != nil {
		shares++
	}
	return shares
}

// complete is the last step: Reconciling with Progressing while workers roll out, or what an earlier step could not do. A migration may wait for
// workers, so that what keeps these is told with it.
func (r *TransportReconciler) complete(ctx context.Context, run *transportRun) error {
	rolling := run.live.Rolling()
	why, known := errors.AsType[*outcome.StepError](run.incomplete)
	switch {
	case len(rolling) > 0 && run.incomplete == nil:
		return outcome.Waiting(v1alpha1.ReasonProgressing, 0, r.rolloutError(ctx, rolling))
	case len(rolling) > 0 && known && why.Reason == v1alpha1.ReasonMigrating:
		return outcome.Waiting(why.Reason, why.After, fmt.Errorf("%w; %w", why.Err, r.rolloutError(ctx, rolling)))
	default:
		return run.incomplete
	}
}
