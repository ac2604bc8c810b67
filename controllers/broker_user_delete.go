package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/status"
)

// endOfWorkers is how long workers that stop have after the last attempt is over, with some time for the cluster to notice.
const endOfWorkers = time.Minute

// dropUsers deletes the users of a Transport that goes, once nobody needs them any more.
func (r *TransportReconciler) dropUsers(ctx context.Context, run *transportRun) error {
	for _, user := range slices.Clone(run.transport.Status.BrokerUsers) {
		if err := r.deleteUser(ctx, run, user.Name); err != nil {
			return userError(err)
		}
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
	if len(run.live.configMaps) == 0 {
		if err := r.readWorkers(ctx, run); err != nil {
			return "", err
		}
	}
	pods, err := r.pods(ctx, t)
	if err != nil {
		return "", err
	}
	if len(run.live.all())+len(pods) > 0 && time.Since(t.DeletionTimestamp.Time) < patience(t) {
		if err := r.stopWorkers(ctx, run, pods); interpret(err).outcome != outcomeWaiting {
			return "", err
		}
		return "", waiting(v1alpha1.ReasonDeleting, run.untilWorkersStop(), errors.New("the workers stop, and then their RabbitMQ user goes"))
	}
	err = r.reachUsers(ctx, run)
	if err == nil {
		err = r.dropUsers(ctx, run)
	}
	if errors.Is(err, errOutdated) || err == nil {
		return "", err
	}
	return fmt.Sprintf("the RabbitMQ users %s, which may still exist (%s): delete them",
		userNames(t), status.OneLine(err.Error())), nil
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
