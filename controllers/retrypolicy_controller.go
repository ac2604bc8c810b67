package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/enqueue"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/references"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/tenancy"
)

// gatherUses is how long changes of who uses a policy are gathered before they are counted.
const gatherUses = 2 * time.Second

// RetryPolicyReconciler checks RetryPolicies and shows what they come to. It makes nothing: policies take effect through
// the Transports that refer to them.
type RetryPolicyReconciler struct {
	Client   client.Client
	Recorder events.EventRecorder

	// specs bounds what the cache keeps of policies and Transports.
	specs *objectcache.Tally
	// processors are what the policies of a namespace are compiled on, as its Transports are.
	processors *tenancy.Processors
	// busy has the namespaces of which a policy is worked on, or waits for a processor: one at a time, so that those of another find somebody who looks at
	// them.
	busy sync.Map
}

const (
	// nextPolicy is when a policy comes back while another of its namespace is worked on.
	nextPolicy = 200 * time.Millisecond
	// maxConcurrentPolicies is of how many namespaces a policy is worked on or waits.
	maxConcurrentPolicies = 256
)

// policyRun is the state of one reconcile of a RetryPolicy.
type policyRun struct {
	policy   *v1alpha1.RetryPolicy
	resolved v1alpha1.RetryPolicySpec
}

// setup registers the reconciler. Policies also wake those that include them; who uses a policy is counted at leisure.
func (r *RetryPolicyReconciler) setup(mgr ctrl.Manager, name string, options controller.Options) error {
	changed := builder.WithPredicates(objectcache.Changed())
	err := ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.RetryPolicy{}, changed).
		Watches(&v1alpha1.RetryPolicy{}, handler.EnqueueRequestsFromMapFunc(enqueue.RequestsOf(r.includers)), changed).
		Watches(&v1alpha1.RetryPolicy{}, enqueue.After(gatherUses, enqueue.RequestsOf(r.usedBy)), changed).
		Watches(&v1alpha1.Transport{}, enqueue.After(gatherUses, enqueue.RequestsOf(r.usedBy)), changed).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of RetryPolicies: %w", err)
	}
	return nil
}

// +kubebuilder:rbac:groups=redrive.dev,resources=retrypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=redrive.dev,resources=retrypolicies/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile implements reconcile.Reconciler.
func (r *RetryPolicyReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	if _, busy := r.busy.LoadOrStore(req.Namespace, true); busy {
		return ctrl.Result{RequeueAfter: brokerpool.Spread(nextPolicy)}, nil
	}
	defer r.busy.Delete(req.Namespace)
	processor, err := r.processors.Acquire(ctx, req.Namespace)
	if err != nil {
		return ctrl.Result{RequeueAfter: brokerpool.Spread(nextPolicy)}, nil // Its turn did not come in time.
	}
	defer processor.Release()
	ctx = broker.WithWaiter(ctx, processor)
	policy := &v1alpha1.RetryPolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, policy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !policy.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	s := outcome.OfPolicy(policy, r.Client, r.Recorder)
	defer func() { result, err = outcome.Finish(ctx, s, err, nil, 0) }()

	return ctrl.Result{}, runSteps(ctx, &policyRun{policy: policy},
		r.countUsers,
		r.checkRoom,
		r.resolve,
		r.compile,
	)
}

// countUsers sets status.usedBy.
func (r *RetryPolicyReconciler) countUsers(ctx context.Context, run *policyRun) error {
	found, err := references.Users(ctx, r.Client, client.ObjectKeyFromObject(run.policy))
	if err != nil {
		return err
	}
	run.policy.Status.UsedBy = new(int32(len(found))) //nolint:gosec // nobody has two billion Transports
	return nil
}

// checkRoom refuses a policy whose spec the cache does not have.
func (r *RetryPolicyReconciler) checkRoom(_ context.Context, run *policyRun) error {
	return r.specs.Check(run.policy, time.Now())
}

// resolve adds the strategies of included policies: Stalled with PolicyNotFound where one does not exist, and with PolicyInvalid where it is not read.
func (r *RetryPolicyReconciler) resolve(ctx context.Context, run *policyRun) error {
	run.policy.Status.Schedule = ""
	policies, err := references.Policies(ctx, r.Client, run.policy.Namespace)
	if err != nil {
		return err
	}
	run.resolved, err = compile.Resolve(run.policy, policies)
	if unread, is := errors.AsType[*compile.Error](err); is {
		return outcome.Stalled(unread.Reason, err)
	}
	if err != nil {
		return outcome.Stalled(v1alpha1.ReasonPolicyNotFound, err)
	}
	return nil
}

// compile checks the policy and sets status.schedule: Stalled with InvalidExpression or Invalid where it is wrong.
func (r *RetryPolicyReconciler) compile(_ context.Context, run *policyRun) error {
	policy, err := retry.Compile(run.policy.Name, run.resolved)
	var expression *retry.ExpressionError
	switch {
	case errors.As(err, &expression):
		return outcome.Stalled(v1alpha1.ReasonInvalidExpression, err)
	case err != nil:
		return outcome.Stalled(v1alpha1.ReasonInvalid, err)
	}
	run.policy.Status.Schedule = policy.Schedule()
	return nil
}

func (r *RetryPolicyReconciler) includers(ctx context.Context, object client.Object) ([]types.NamespacedName, error) {
	return references.Includers(ctx, r.Client, client.ObjectKeyFromObject(object))
}

func (r *RetryPolicyReconciler) usedBy(ctx context.Context, object client.Object) ([]types.NamespacedName, error) {
	return references.UsedBy(ctx, r.Client, object)
}
