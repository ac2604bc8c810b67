package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/references"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

const (
	// waitUpdateInterval is how often one that waits sees whether it still has to, and in this queue; the second time its status says that it waits.
	waitUpdateInterval = 10 * time.Second
	// fullPause is when one comes back that found the queue full.
	fullPause = 10 * time.Second
	// crowdPause is when one comes back whose namespace has too many that wait.
	crowdPause = 3 * fullPause
)

// acquireProcessor waits until the namespace of a Transport may compute. Where others were before it the Transport is loaded again, so that those that wait
// hold no specs, which may be large, and none works on an old one.
func (r *TransportReconciler) acquireProcessor(ctx context.Context, run *transportRun) (*transportRun, *tenancy.Processor, error) {
	name, asked := client.ObjectKeyFromObject(run.transport), run.asked
	if processor := r.processors.TryAcquire(name.Namespace); processor != nil {
		return run, processor, nil
	}
	run.transport = nil
	processor, err := r.processors.Acquire(ctx, name.Namespace)
	if err != nil {
		return nil, nil, errNothingToDo
	}
	if run, err = r.load(ctx, name); err != nil {
		processor.Release()
		return nil, nil, err
	}
	run.asked = run.asked || asked
	return run, processor, nil
}

// acquireSlot waits for a slot at the broker of a Transport, and enters the admission of those that ask brokers. seated is nil when no slot is free now; later
// then says when to requeue. The caller must call leave in any case.
func (r *TransportReconciler) acquireSlot(ctx context.Context, run *transportRun) (seated *transportRun, leave func(), later ctrl.Result, err error) {
	if err := r.prepareOutsideSlot(ctx, run); err != nil {
		return nil, func() {}, later, err
	}
	place, err := run.endpoint.port.Join(run.transport.Namespace, run.isSteady())
	if err != nil {
		later, err = r.requeueLater(ctx, run, fullPause, err)
		return nil, func() {}, later, err
	}
	seated, err = r.waitForSlot(ctx, run, place)
	leave = place.Leave
	if seated != nil && err == nil {
		var end func()
		if end, err = r.asking.Enter(seated.transport.Namespace, false); err == nil {
			return seated, func() { end(); place.Leave() }, later, nil
		}
	}
	if errors.Is(err, brokerpool.ErrFull) || errors.Is(err, tenancy.ErrCrowded) {
		later, err = r.requeueLater(ctx, seated, fullPause, err)
		seated = nil
	}
	return seated, leave, later, err
}

// requeueLater requeues a Transport that got no slot, and reports why in the status.
func (r *TransportReconciler) requeueLater(ctx context.Context, run *transportRun, pause time.Duration, why error) (ctrl.Result, error) {
	if err := r.reportQueued(ctx, run, why); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: brokerpool.Spread(pause)}, nil
}

// prepareOutsideSlot does the work that costs CPU and no broker request before the Transport takes a slot: it compiles policies, plans lanes and merges pod
// templates, once for each generation. Errors are reported later, by the steps.
func (r *TransportReconciler) prepareOutsideSlot(ctx context.Context, run *transportRun) error {
	if !run.transport.DeletionTimestamp.IsZero() {
		return nil
	}
	policies, err := references.Policies(ctx, r.Client, run.transport.Namespace)
	if err != nil {
		return err
	}
	if _, err := r.compileCache.Compile(run.transport, policies); err != nil || !run.changed() {
		return nil //nolint:nilerr // The step that compiles reports it.
	}
	run.source = run.endpoint.source
	for i := range run.transport.Spec.Workers {
		worker := &run.transport.Spec.Workers[i]
		options, err := r.workerOptions(ctx, run, worker)
		if err != nil {
			return err
		}
		if _, err := workload.Deployment(run.transport, worker, options); err == nil {
			_, _ = workload.QuarantineDeployment(run.transport, worker, options)
		}
	}
	return nil
}

// load reads the Transport. It fails with errNothingToDo where the Transport is gone.
func (r *TransportReconciler) load(ctx context.Context, name types.NamespacedName) (*transportRun, error) {
	transport := &v1alpha1.Transport{}
	if err := r.Client.Get(ctx, name, transport); apierrors.IsNotFound(err) {
		r.forget(name)
		return nil, errNothingToDo
	} else if err != nil {
		return nil, fmt.Errorf("read the Transport: %w", err)
	}
	deleted := !transport.DeletionTimestamp.IsZero()
	if deleted && !controllerutil.ContainsFinalizer(transport, v1alpha1.Finalizer) {
		return nil, errNothingToDo
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	run := &transportRun{transport: transport, status: outcome.OfTransport(transport, r.Client, r.Recorder), asked: askedAnew(transport)}
	if deleted {
		run.ending, run.endingErr = r.endingNamespace(ctx, run)
	}
	return run, nil
}

// resolveBroker reads the Secret or RabbitmqCluster of the Transport's broker. It comes after load, and only once the namespace has a free slot: a
// Secret may be large.
func (r *TransportReconciler) resolveBroker(ctx context.Context, run *transportRun) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	run.endpoint = r.findBroker(ctx, run.transport)
	*run.certificates = run.endpoint.held
}

// mayNeedBroker is false where the Transport is deleted without its broker: it must not queue behind others then.
func (run *transportRun) mayNeedBroker() bool {
	t := run.transport
	return t.DeletionTimestamp.IsZero() ||
		t.Status.Broker != nil && t.Spec.DeletionPolicy != v1alpha1.DeletionRetain && run.ending == nil
}

// needsBroker is false also where the broker cannot be resolved.
func (run *transportRun) needsBroker() bool { return run.mayNeedBroker() && run.endpoint.err == nil }

// changed is true where the status does not cover the current generation yet.
func (run *transportRun) changed() bool {
	return run.transport.Status.ObservedGeneration != run.transport.Generation
}

// isSteady is true where the Transport was ready at its current generation at the last reconcile.
func (run *transportRun) isSteady() bool {
	ready := run.status.Before
	return ready != nil && ready.Status == metav1.ConditionTrue && !run.changed()
}

// waitForSlot waits for a slot at the broker and reloads the Transport now and then: by now it may be deleted without its broker, or have another one. It
// fails with errBrokerChanged and errNothingToDo, and with brokerpool.ErrFull beside the Transport.
func (r *TransportReconciler) waitForSlot(ctx context.Context, run *transportRun, place *brokerpool.Ticket) (*transportRun, error) {
	turn, err := place.Wait(ctx, brokerpool.FreshAge)
	if turn || err != nil {
		return run, err
	}
	for first := true; ctx.Err() == nil; first = false {
		anew, err := r.load(ctx, client.ObjectKeyFromObject(run.transport))
		if err != nil {
			return nil, err
		}
		anew.asked, anew.certificates = anew.asked || run.asked, run.certificates
		run.endpoint = brokerEndpoint{}
		(*run.certificates).Release()
		run = anew
		r.resolveBroker(ctx, run)
		switch {
		case run.needsBroker() && !place.IsAt(run.endpoint.port):
			return nil, errBrokerChanged
		case turn || !run.needsBroker():
			return run, nil
		case !first:
			if err := r.reportQueued(ctx, run, errors.New("queued: waiting for a free slot on this broker")); err != nil {
				return nil, err
			}
		}
		// It is reloaded after that, and hundreds may wait whose specs are large.
		run.transport.Spec = v1alpha1.TransportSpec{}
		if turn, err = place.Wait(ctx, waitUpdateInterval); err != nil {
			return run, err
		}
	}
	return nil, errNothingToDo
}

// reportQueued says in the status why nothing was done yet, unless the status covers the current generation, or the Transport waits for no broker.
func (r *TransportReconciler) reportQueued(ctx context.Context, run *transportRun, why error) error {
	if !run.changed() || !run.mayNeedBroker() {
		return nil
	}
	reason := v1alpha1.ReasonProgressing
	if !run.transport.DeletionTimestamp.IsZero() {
		reason, why = v1alpha1.ReasonDeleting, fmt.Errorf("%w; to delete the Transport without its broker, set spec.deletionPolicy to Retain", why)
	}
	var warnings []string
	if standing := meta.FindStatusCondition(run.transport.Status.Conditions, v1alpha1.DegradedCondition); standing != nil {
		run.status.Warning, warnings = standing.Reason, []string{standing.Message}
	}
	_, err := outcome.Finish(ctx, run.status, outcome.Waiting(reason, 0, why), warnings, 0)
	if !r.conditions.Knows(client.ObjectKeyFromObject(run.transport)) {
		r.countConditions(run)
	}
	return err
}
