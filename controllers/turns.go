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
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/workload"
)

var (
	// errNothing ends a reconcile where nothing is to be done: the Transport is gone, or the operator stops.
	errNothing = errors.New("nothing is to be done")
	// errMoved ends one that waited in the line of a broker which is not the Transport's any more.
	errMoved = errors.New("the Transport has another broker by now")
)

// Reconcile implements reconcile.Reconciler.
func (r *TransportReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, req.NamespacedName)
	switch {
	case errors.Is(err, errNothing):
		return ctrl.Result{}, nil
	case errors.Is(err, errMoved):
		return ctrl.Result{RequeueAfter: againAfterConflict}, nil
	}
	return result, err
}

// reconcile looks at a Transport when it is its turn at its broker.
func (r *TransportReconciler) reconcile(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	run, err := r.begin(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if run.mayNeedBroker() {
		seated, leave, later, err := r.seat(ctx, run)
		defer leave()
		if err != nil || seated == nil {
			return later, err
		}
		run = seated
	} else {
		r.lead(ctx, run)
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	held := r.brokers.budget.hold(name.Namespace)
	defer held.release()
	run.weighed = r.brokers.budget.hold(name.Namespace)
	defer run.weighed.release()
	run.held = r.configMaps.budget.hold(name.Namespace)
	defer run.held.release()
	defer func() {
		if run.port != nil {
			run.port.done()
		}
	}()
	return r.look(broker.WithMeter(ctx, held), run)
}

// seat finds the broker of a Transport, and waits for its turn there if it needs it. seated is nil where there is none now, and later says when it
// comes back. leave is to be called in any case.
func (r *TransportReconciler) seat(ctx context.Context, run *transportRun) (seated *transportRun, leave func(), later ctrl.Result, err error) {
	namespace := run.transport.Namespace
	crowd, leaveCrowd, err := r.crowds.enter(namespace, run.settled())
	if err != nil {
		later, err = r.turnAway(ctx, run, crowdPause, err)
		return nil, func() {}, later, err
	}
	r.lead(ctx, run)
	if !run.needsBroker() {
		return run, leaveCrowd, later, nil
	}
	if err := r.warm(ctx, run, crowd); errors.Is(err, errCompiling) {
		later, err = r.turnAway(ctx, run, fullPause, err)
		return nil, leaveCrowd, later, err
	} else if err != nil {
		return nil, leaveCrowd, later, err
	}
	place, err := run.found.port.line.join(run.found.port, namespace, run.settled())
	if err != nil {
		later, err = r.turnAway(ctx, run, fullPause, err)
		return nil, leaveCrowd, later, err
	}
	leave = func() { place.leave(); leaveCrowd() }
	if seated, err = r.await(ctx, run, place); err != nil {
		return nil, leave, later, err
	}
	seated.crowd = crowd
	return seated, leave, later, nil
}

// turnAway has a Transport come back that finds no place, and says so.
func (r *TransportReconciler) turnAway(ctx context.Context, run *transportRun, pause time.Duration, why error) (ctrl.Result, error) {
	if err := r.tellOfLine(ctx, run, why); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: jitter(pause)}, nil
}

// warm does beforehand what costs CPU and not the broker, so that nobody keeps a seat meanwhile: policies are compiled, lanes planned and templates
// merged once, and what comes of it is kept. What is wrong with them is told at the look itself.
func (r *TransportReconciler) warm(ctx context.Context, run *transportRun, crowd *crowd) error {
	if !run.transport.DeletionTimestamp.IsZero() {
		return nil
	}
	if right, err := r.compileOnce(ctx, run.transport, crowd); err != nil || !right || !run.changed() {
		return err
	}
	select {
	case crowd.busy <- struct{}{}:
		defer func() { <-crowd.busy }()
	case <-ctx.Done():
		return errNothing
	}
	run.source = run.found.source
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

// begin reads the Transport. It fails with errNothing.
func (r *TransportReconciler) begin(ctx context.Context, name types.NamespacedName) (*transportRun, error) {
	transport := &v1alpha1.Transport{}
	if err := r.Client.Get(ctx, name, transport); apierrors.IsNotFound(err) {
		r.forget(name)
		return nil, errNothing
	} else if err != nil {
		return nil, fmt.Errorf("read the Transport: %w", err)
	}
	deleted := !transport.DeletionTimestamp.IsZero()
	if deleted && !controllerutil.ContainsFinalizer(transport, v1alpha1.Finalizer) {
		return nil, errNothing
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	run := &transportRun{transport: transport, subject: ofTransport(transport, r.Recorder), asked: askedAnew(transport)}
	if deleted {
		run.ending, run.endingErr = r.endingNamespace(ctx, run)
	}
	return run, nil
}

// lead reads what leads to the Transport's broker. It comes after begin, and only where the namespace has room for the Transport: a Secret may be large.
func (r *TransportReconciler) lead(ctx context.Context, run *transportRun) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	run.found = r.find(ctx, run.transport)
}

// mayNeedBroker is false where the Transport goes whatever is on its broker: it must not wait for others then.
func (run *transportRun) mayNeedBroker() bool {
	t := run.transport
	return t.DeletionTimestamp.IsZero() ||
		t.Status.Broker != nil && t.Spec.DeletionPolicy != v1alpha1.DeletionRetain && run.ending == nil
}

// needsBroker is false where no broker is found, too.
func (run *transportRun) needsBroker() bool { return run.mayNeedBroker() && run.found.err == nil }

// changed is true where the status says nothing yet of the Transport as its user wants it.
func (run *transportRun) changed() bool {
	return run.transport.Status.ObservedGeneration != run.transport.Generation
}

// settled is true where the Transport was ready, as its user wants it, at the last look.
func (run *transportRun) settled() bool {
	ready := run.subject.before
	return ready != nil && ready.Status == metav1.ConditionTrue && !run.changed()
}

// await waits until it is the Transport's turn, and reads it again now and then: it may go without its broker by now, or belong into
// another line. It fails with errMoved and errNothing.
func (r *TransportReconciler) await(ctx context.Context, run *transportRun, place *place) (*transportRun, error) {
	turn := waitFor(ctx, place.turn, freshAge)
	if turn {
		return run, nil
	}
	for first := true; ctx.Err() == nil; first = false {
		anew, err := r.begin(ctx, client.ObjectKeyFromObject(run.transport))
		if err != nil {
			return nil, err
		}
		anew.asked = anew.asked || run.asked
		run = anew
		r.lead(ctx, run)
		switch {
		case run.needsBroker() && run.found.port.line != place.line:
			return nil, errMoved
		case turn || !run.needsBroker():
			return run, nil
		case !first:
			if err := r.tellOfLine(ctx, run, errors.New("waits for its turn: others of its broker came first")); err != nil {
				return nil, err
			}
		}
		// It is read anew after that, and hundreds wait whose specs may be large.
		run.transport.Spec = v1alpha1.TransportSpec{}
		turn = waitFor(ctx, place.turn, lookUp)
	}
	return nil, errNothing
}

// tellOfLine says in the status why nothing is done yet, where that says nothing of the Transport as it is by now.
func (r *TransportReconciler) tellOfLine(ctx context.Context, run *transportRun, why error) error {
	if !run.changed() {
		return nil
	}
	reason := v1alpha1.ReasonProgressing
	if !run.transport.DeletionTimestamp.IsZero() {
		reason, why = v1alpha1.ReasonDeleting, fmt.Errorf("%w; to let the Transport go without its broker, set spec.deletionPolicy to Retain", why)
	}
	var warnings []string
	if standing := meta.FindStatusCondition(run.transport.Status.Conditions, v1alpha1.DegradedCondition); standing != nil {
		run.subject.warning, warnings = standing.Reason, []string{standing.Message}
	}
	_, err := conclude(ctx, r.Client, run.subject, wait(reason, 0, why), warnings, 0)
	r.standings.begin(run)
	return err
}
