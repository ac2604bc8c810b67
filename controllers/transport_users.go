package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokeruser"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

// endOfWorkers is how long workers that stop have after the last attempt is over, with some time for the cluster to notice.
const endOfWorkers = time.Minute

// awaitsUser is true while workers must not be made: those that are to have a user of their own never get the team's login instead.
func (run *transportRun) awaitsUser() bool {
	return brokeruser.Wanted(run.transport) && !brokeruser.Exists(run.transport)
}

// forWorkers are the Secrets that worker pods mount. A user that cannot be made takes nothing from workers that run.
func (run *transportRun) forWorkers() workload.Secrets {
	if brokeruser.Wanted(run.transport) && brokeruser.Exists(run.transport) {
		return workload.Secrets{Login: workload.UserSecretName(run.transport)}
	}
	return run.source.ForWorkers()
}

// keepUser gives the workers their own user, before they are told of queues that it may not consume yet. Where it cannot be made, for a right
// that is missing or a user of somebody else, the workers go on with what they have, and the condition is Stalled with BrokerRefused,
// SecretForbidden or Conflict. While it is not certain that they may consume what the spec has, they are told nothing new.
func (r *TransportReconciler) keepUser(ctx context.Context, run *transportRun) error {
	if !brokeruser.Wanted(run.transport) {
		return nil
	}
	var kept brokeruser.Kept
	look, err := r.lookAtUsers(ctx, run)
	if err == nil {
		look.Queues = look.Consumed(&brokeruser.Consumers{
			// What is to be published has queues that leave as the last ConfigMap describes them, which the namespace's users may write.
			Published: slices.Concat(run.live.Configs(), run.compiled.Workers),
			Wanted:    run.groups, Leaving: run.report.Leaving, Unmade: run.report.Unmade(),
		})
		kept, err = r.users.Keep(ctx, look)
		run.userVersion = kept.SecretVersion
	}
	switch {
	case err == nil:
		run.warnOfAdmin()
		return nil
	case errors.Is(err, outcome.ErrOutdated):
		return err
	case brokeruser.Exists(run.transport) && !kept.Confirmed:
		return userError(err)
	}
	run.partly(userError(err))
	return nil
}

// lookAtUsers is what the reconcile knows, for package brokeruser.
func (r *TransportReconciler) lookAtUsers(ctx context.Context, run *transportRun) (*brokeruser.Look, error) {
	port := run.admin
	if port == nil {
		t := run.transport
		admin, err := r.admins.Port(ctx, client.ObjectKeyFromObject(t), run.source.Login, t.Spec.Broker.VHost)
		if err != nil {
			return nil, err
		}
		port = cmp.Or(admin, run.port)
		run.admin = port
	}
	return &brokeruser.Look{
		Transport: run.transport, Status: run.status, Owner: r.owner(run.transport), Port: port, Login: run.source.Login,
		Observed: run.observed, Steps: run.report.Steps,
	}, nil
}

// warnOfAdmin tells that a team's namespace holds a login that may do everything on the broker.
func (run *transportRun) warnOfAdmin() {
	if run.admin != run.port {
		return
	}
	run.warnings = append(run.warnings, fmt.Sprintf(
		"RabbitMQ's administrator is in the %s, where anyone who may run pods in this namespace can read it: name, with --broker-admin of the operator, a Secret "+
			"of the operator's own namespace with that login, and then take the tag administrator from the login here", run.source))
}

// leaveUsers deletes users that no worker needs any more. Where none is wanted, that is once all workers have rolled out, and a former group never does:
// its pods have the Secret that they were made with. Where one is, all pods see the same Secret, whichever user that holds.
func (r *TransportReconciler) leaveUsers(ctx context.Context, run *transportRun) error {
	t := run.transport
	wanted := brokeruser.Wanted(t)
	inUse := len(run.live.Rolling()) > 0 || run.live.HasFormer(t) || run.incomplete != nil
	if len(t.Status.BrokerUsers) == 0 || !wanted && inUse {
		return nil
	}
	look, err := r.lookAtUsers(ctx, run)
	if err == nil {
		err = r.users.Leave(ctx, look)
	}
	switch {
	case err == nil:
		run.warnOfFormerUsers(r.users.Lingering(t, time.Now()))
		return nil
	case errors.Is(err, outcome.ErrOutdated):
		return err
	case !wanted && look != nil && errors.Is(err, broker.ErrForbidden):
		return r.users.Abandon(ctx, look)
	}
	run.partly(userError(err))
	return nil
}

// warnOfFormerUsers tells of passwords that stay valid, and keep that of today from being changed.
func (run *transportRun) warnOfFormerUsers(names []string) {
	for _, name := range names {
		run.warnings = append(run.warnings, fmt.Sprintf("RabbitMQ user %q, which the workers were to leave, still has connections, so that it is not deleted and "+
			"the password of the workers is not changed again: end them, or the pod that does not see the changed Secret", name))
	}
}

// dropUsers deletes the users of a Transport that goes, once nobody needs them any more.
func (r *TransportReconciler) dropUsers(ctx context.Context, run *transportRun) error {
	if len(run.transport.Status.BrokerUsers) == 0 {
		return nil
	}
	look, err := r.lookAtUsers(ctx, run)
	if err == nil {
		err = r.users.Drop(ctx, look)
	}
	if err != nil {
		return userError(err)
	}
	return nil
}

// releaseUsers deletes the users of a Transport that goes and leaves its objects: a user holds no messages. The workers go first, as long as that
// takes no longer than they have. What cannot be deleted is not waited for: left names it, and says why; empty where nothing is left.
func (r *TransportReconciler) releaseUsers(ctx context.Context, run *transportRun) (left string, err error) {
	t := run.transport
	if len(t.Status.BrokerUsers) == 0 {
		return "", nil
	}
	if len(run.live.ConfigMaps) == 0 {
		if err := r.readWorkers(ctx, run); err != nil {
			return "", err
		}
	}
	pods, err := r.pods(ctx, t)
	if err != nil {
		return "", err
	}
	if len(run.live.All())+len(pods) > 0 && r.Options.Clock.Now().Sub(t.DeletionTimestamp.Time) < patience(t) {
		if err := r.stopWorkers(ctx, run, pods); outcome.Interpret(err).Kind != outcome.KindWaiting {
			return "", err
		}
		return "", outcome.Waiting(v1alpha1.ReasonDeleting, run.untilWorkersStop(), errors.New("the workers stop, and then their RabbitMQ user goes"))
	}
	err = r.reachUsers(ctx, run)
	if err == nil {
		err = r.dropUsers(ctx, run)
	}
	if errors.Is(err, outcome.ErrOutdated) || err == nil {
		return "", err
	}
	return fmt.Sprintf("the RabbitMQ users %s, which may still exist (%s): delete them", brokeruser.Names(t), status.OneLine(err.Error())), nil
}

// reachUsers connects to the broker on which the users are.
func (r *TransportReconciler) reachUsers(ctx context.Context, run *transportRun) error {
	if run.port == nil {
		if err := r.connect(ctx, run); err != nil {
			return err
		}
	}
	identity, err := run.port.Identity(ctx)
	if err != nil {
		return err
	}
	if home := run.transport.Status.Broker; identity.Cluster != home.Cluster {
		return fmt.Errorf("they are on cluster %q, and the Secret leads to %q", home.Cluster, identity.Cluster)
	}
	return nil
}

// patience is how long the workers of a Transport may take to end.
func patience(t *v1alpha1.Transport) time.Duration {
	longest := 30 * time.Second
	for i := range t.Spec.Workers {
		if timeout := t.Spec.Workers[i].Timeout; timeout != nil {
			longest = max(longest, timeout.Duration.Duration)
		}
	}
	return longest + endOfWorkers
}

// userError tells what an error about users means for the Transport.
func userError(err error) error {
	if _, known := errors.AsType[*outcome.StepError](err); known {
		return err
	}
	if errors.Is(err, broker.ErrForbidden) {
		return outcome.Stalled(v1alpha1.ReasonBrokerRefused, fmt.Errorf("spec.broker.scopedUser needs a login of the operator with the tag administrator, "+
			"and the workers keep their present login until it has one (rabbitmqctl set_user_tags USER administrator) or the field is removed: %w", err))
	}
	return brokerError(err)
}
