package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// TransportReconciler brings the broker and the worker Deployments to what a Transport asks for.
type TransportReconciler struct {
	Client client.Client
	// Live reads from the API server itself.
	Live     client.Reader
	Recorder events.EventRecorder
	Options  Options

	brokers *brokers
	crowds  *crowds
	polls   *polls
	gauges  *gauges
	drops   *drops
	counts  *statusCounts
	memory  *memories
	// verdicts on the policies of Transports, as they were last compiled.
	verdicts *verdicts
	// configMaps of the workers, as they were last read.
	configMaps *configMapCache
	// reads of what may be large.
	reads  reads
	drift  *drift
	voices *voices
	vigil  *vigil

	restarts  *restarts
	standings *standings

	contests *contests
	sidecars *sidecars
	keda     *keda
	scalers  *scalers
	grants   *grants
	upgrades *upgrades
}

// transportRun is the state of one reconcile of a Transport.
type transportRun struct {
	transport *v1alpha1.Transport
	subject   *subject
	// asked is true where the user has changed the Transport since its workers were last brought to what it asks for.
	asked bool
	// live are the workers' objects as the cluster has them.
	live liveWorkers
	// crowd are the Transports of the namespace that are worked on; nil for one that needs no broker.
	crowd *crowd
	// weighed is what follows from the spec takes of the operator's memory; nil is not counted.
	weighed *stake
	// held is what the ConfigMaps of the look take of the operator's memory; nil is not counted.
	held *stake
	// scaled is what scales the workers; empty where nothing does.
	scaled liveScalers

	compiled *compile.Result
	// source is where the broker's address and login were found.
	source brokerSource
	// handlerSecrets are the versions of the Secrets of handlers, by worker group.
	handlerSecrets map[string]string
	// guarded are Secrets with a login that is not for pods, of those that workers would show; nil before they are looked for.
	guarded map[string]bool
	// userVersion is that of the Secret with the login of the workers' own user; empty where there is none.
	userVersion string
	// found leads to the broker, and port to what is on it; nil before connect.
	found found
	port  *ownPort
	// restarted is when the broker was found to be started again; zero where that is not known.
	restarted time.Time
	// admin is the port by which the users of the workers are kept; nil before it is looked for.
	admin *ownPort
	// ending is the namespace of a Transport that is deleted, where it is being deleted too; endingErr says that nobody knows.
	ending    *corev1.Namespace
	endingErr error
	// observed is what the broker had where the look at it came to its end; nil where it did not.
	observed *topology.Observed
	report   apply.Report

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

// owner is the value of the owner mark of a Transport's objects on the broker.
func (r *TransportReconciler) owner(t *v1alpha1.Transport) string {
	return r.Options.ClusterUID + "/" + t.Namespace + "/" + t.Name
}

// gatherOwned is how long changes of the workers' objects are gathered. A write of ours comes back as one, and a rollout is a
// handful: a look at each would often be at a copy of the Transport that lacks what the last look wrote, and be in vain.
const gatherOwned = 250 * time.Millisecond

// setup registers the reconciler. Of policies, only a change of the spec concerns a Transport.
func (r *TransportReconciler) setup(mgr ctrl.Manager, name string, options controller.Options) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	policies := &waker{users: r.usersOf, changed: map[string]map[types.NamespacedName]bool{}}
	err := ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.Transport{}, changed).
		Watches(&appsv1.Deployment{}, gathered(gatherOwned, requests(ownerOf))).
		Watches(&corev1.ConfigMap{}, gathered(gatherOwned, requests(ownerOf)), builder.OnlyMetadata).
		Watches(&appsv1.Deployment{}, r.upgrades.whenOneEnds()).
		WatchesRawSource(source.Func(r.restarts.watch)).
		Watches(&v1alpha1.RetryPolicy{}, policies.handler(), changed).
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
	return users(ctx, r.Client, policies...)
}

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

// look does what is to be done.
func (r *TransportReconciler) look(ctx context.Context, run *transportRun) (ctrl.Result, error) {
	name := client.ObjectKeyFromObject(run.transport)
	err := run.named(r.take(ctx, run))
	soon := sooner(run.due, r.vigil.next(name, len(run.live.rolling()) > 0, time.Now()))
	next := sooner(soon, r.polls.next(run.transport.Status.Broker, time.Now(), r.Options.PollInterval))
	result, err := conclude(ctx, r.Client, run.subject, err, run.told(), next)
	r.standings.see(run)
	return result, err
}

// take takes the steps, those of a deletion or all others.
func (r *TransportReconciler) take(ctx context.Context, run *transportRun) error {
	if !run.transport.DeletionTimestamp.IsZero() {
		return r.delete(ctx, run)
	}
	return runSteps(ctx, run,
		r.addFinalizer,
		r.readWorkers,
		r.orKeep(r.checkSize),
		r.orKeep(r.compile),
		r.askWorkers,
		r.lookForSecrets,
		r.connect,
		r.orKeep(r.applyTopology),
		r.warnOfSharing,
		r.orKeep(r.keepUser),
		r.orKeep(r.applyWorkers),
		r.applyQuarantine,
		r.removeWorkers,
		r.refreshPods,
		r.leaveUsers,
		r.complete,
	)
}

// forget drops what is kept in memory about a Transport that is gone.
func (r *TransportReconciler) forget(name types.NamespacedName) {
	r.brokers.gone(name)
	r.gauges.forget(name)
	r.drops.forget(name)
	r.standings.forget(name)
	r.counts.forget(name)
	r.memory.forget(name)
	r.verdicts.forget(name)
	r.configMaps.forget(name)
	r.drift.forget(name)
	r.contests.forget(name)
	r.voices.forget(name)
	r.vigil.forget(name)
	r.restarts.forget(name)
	r.scalers.forget(name)
	r.upgrades.forget(name)
}

// addFinalizer comes before anything is made that it has to clean up.
func (r *TransportReconciler) addFinalizer(ctx context.Context, run *transportRun) error {
	if controllerutil.AddFinalizer(run.transport, v1alpha1.Finalizer) {
		return run.subject.writeMeta(ctx, r.Client)
	}
	return nil
}

// compile turns the spec and the policies into the workers' configuration: Stalled with PolicyNotFound, PolicyInvalid,
// InvalidExpression or Invalid where that cannot be. Then the last good configuration stays in force.
func (r *TransportReconciler) compile(ctx context.Context, run *transportRun) error {
	var err error
	run.compiled, err = r.compileNow(ctx, run)
	if refused, ok := errors.AsType[*compile.Error](err); ok {
		return stall(refused.Reason, err)
	}
	if err == nil {
		if merged := run.compiled.Merged(); merged != "" {
			run.warnings = append(run.warnings, merged)
		}
		run.followReplicas()
	}
	return err
}

// followReplicas lets the workers divide what they share by the pods that an autoscaler wants at the moment, and by the one of
// their quarantined messages, which calls the same handler.
func (run *transportRun) followReplicas() {
	for i := range run.compiled.Workers {
		worker, config := &run.transport.Spec.Workers[i], &run.compiled.Workers[i]
		if config.Replicas == 0 {
			continue
		}
		if live := run.live.deployments[workload.Name(run.transport, worker.Name)]; live != nil && worker.Replicas == nil {
			config.Replicas = max(1, int(replicas(live)))
		}
		if run.live.quarantine[workload.QuarantineName(run.transport, worker.Name)] != nil {
			config.Replicas++
		}
	}
}

// complete is the last step: Reconciling with Progressing while workers roll out, or what an earlier step could not do.
func (r *TransportReconciler) complete(ctx context.Context, run *transportRun) error {
	if run.incomplete != nil {
		return run.incomplete
	}
	if rolling := run.live.rolling(); len(rolling) > 0 {
		return wait(v1alpha1.ReasonProgressing, 0, r.rolloutError(ctx, rolling))
	}
	return nil
}

// workerNames are the names that the objects of all worker groups in the spec may have.
func workerNames(t *v1alpha1.Transport) map[string]bool {
	names := make(map[string]bool, 2*len(t.Spec.Workers))
	for i := range t.Spec.Workers {
		names[workload.Name(t, t.Spec.Workers[i].Name)] = true
		names[workload.QuarantineName(t, t.Spec.Workers[i].Name)] = true
	}
	return names
}
