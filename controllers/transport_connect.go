package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/brokersource"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/tenancy"
)

// brokerEndpoint is what leads to a Transport's broker, or why nothing does.
type brokerEndpoint struct {
	source brokersource.Source
	port   *brokerpool.Port
	err    error
	// held is what its certificates take.
	held *tenancy.Reservation
}

// findBroker looks for the broker's address and login and for a client for it.
func (r *TransportReconciler) findBroker(ctx context.Context, t *v1alpha1.Transport) (f brokerEndpoint) {
	finder := brokersource.Finder{Live: r.Live, Reads: &r.reads}
	if f.source, f.err = finder.Find(ctx, t); f.err != nil {
		return brokerEndpoint{err: f.err}
	}
	if f.port, f.err = r.brokers.Port(client.ObjectKeyFromObject(t), f.source.Login, f.source.Login.VHostOr(t.Spec.Broker.VHost)); f.err != nil {
		f.err = f.source.Invalid(f.err)
		return f
	}
	if f.held, f.err = r.brokers.Use(ctx, t.Namespace, f.port); f.err != nil {
		return brokerEndpoint{err: outcome.Waiting(v1alpha1.ReasonProgressing, costlyPause, f.err)}
	}
	return f
}

// connect is the first step that needs the broker, and fails with the error of resolveBroker.
func (r *TransportReconciler) connect(_ context.Context, run *transportRun) error {
	name := client.ObjectKeyFromObject(run.transport)
	run.source = run.endpoint.source
	if run.endpoint.err != nil {
		return run.endpoint.err
	}
	age := brokerpool.SnapshotAge
	run.restarted = r.restarts.Of(name, run.endpoint.port)
	_, restarted := apply.LookAfterRestart(run.restarted, time.Now())
	if restarted || len(run.live.Rolling()) > 0 {
		// Workers that are not available may have lost their login, and lanes may stand still: what the broker said before that does not count.
		age = brokerpool.FreshAge
	}
	run.port = run.endpoint.port.View(name.String(), age)
	return nil
}

// connectOrWake is connect. Where nothing has led to the broker for long, as while its Secret is wrong, it wakes the worker groups that KEDA has put to sleep:
// KEDA gets no number for them, and pods need AMQP only.
func (r *TransportReconciler) connectOrWake(ctx context.Context, run *transportRun) error {
	err := r.connect(ctx, run)
	if err != nil && r.counts.Lacks(client.ObjectKeyFromObject(run.transport), status.LackOfAnswers, false, time.Now()) >= r.Options.SilenceLimit {
		r.logLeft(ctx, "waking groups that nobody counts for", r.wake(ctx, run, r.scalers.Wake))
	}
	return err
}
