package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

const (
	// sidecarsSince is the minor version of Kubernetes from which on nodes run an init container on beside the others. An
	// older node would wait for its end, and never start the worker.
	sidecarsSince = 29
	// nodesBehind is by how many minor versions a node may be older than the API server, which is all that can be asked.
	nodesBehind = 3
	// versionAge is how long a cluster that does not know sidecars yet is taken to be as it was.
	versionAge = 10 * time.Minute
)

// sidecarSupport finds out whether every node of the cluster knows sidecars. It is safe for concurrent use.
type sidecarSupport struct {
	server discovery.ServerVersionInterfaceWithContext

	mu    sync.Mutex
	known bool
	asked time.Time
}

// native is true where every node knows sidecars. Once it is, it stays so: while a cluster of several API servers is brought
// up to date they give different answers, and workers must not be made anew with each.
func (s *sidecarSupport) native(ctx context.Context, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known || !s.asked.IsZero() && now.Sub(s.asked) < versionAge {
		return s.known, nil
	}
	info, err := s.server.ServerVersionWithContext(ctx)
	if err != nil {
		return s.unknown(ctx, now, fmt.Errorf("ask the cluster for its version: %w", err))
	}
	found, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return s.unknown(ctx, now, fmt.Errorf("read the version of the cluster: %w", err))
	}
	s.known, s.asked = found.Major() > 1 || found.Minor() >= sidecarsSince+nodesBehind, now
	return s.known, nil
}

// unknown leaves it at the last answer, if there was one.
func (s *sidecarSupport) unknown(ctx context.Context, now time.Time, err error) (bool, error) {
	if s.asked.IsZero() {
		return false, err
	}
	ctrl.LoggerFrom(ctx).Info("the cluster is taken to be of the same version as before", "cause", err.Error())
	s.asked = now
	return s.known, nil
}

// workerOptions are the settings of a worker group's Deployments that the Transport does not decide on.
func (r *TransportReconciler) workerOptions(ctx context.Context, run *transportRun, worker *v1alpha1.Worker) (workload.Options, error) {
	options := r.Options.Workers
	options.Secrets = run.forWorkers()
	var err error
	if options.Guarded, err = r.guardedSecrets(ctx, run); err != nil {
		return options, err
	}
	if worker.Handler.HTTP == nil || worker.Handler.Image == nil {
		return options, nil
	}
	options.NativeSidecars, err = r.sidecars.native(ctx, time.Now())
	return options, err
}
