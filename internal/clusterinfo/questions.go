package clusterinfo

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"

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

// HasKEDA is whether the cluster serves KEDA's kind, which may come and go while the operator runs. An answer counts as of now for so long.
func HasKEDA(server discovery.ServerResourcesInterfaceWithContext, age time.Duration) *Question {
	kind := workload.ScaledObjectKind()
	return newQuestion("whether it has KEDA", age, false, func(ctx context.Context) (bool, error) {
		list, err := server.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersion().String())
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("ask the cluster whether it has KEDA: %w", err)
		}
		for i := range list.APIResources {
			if list.APIResources[i].Kind == kind.Kind {
				return true, nil
			}
		}
		return false, nil
	})
}

// KnowsSidecars is whether every node of the cluster knows sidecars. Once that is so, it stays so: while a cluster of several API servers is brought up to
// date they give different answers, and workers must not be made anew with each.
func KnowsSidecars(server discovery.ServerVersionInterfaceWithContext) *Question {
	return newQuestion("its version", versionAge, true, func(ctx context.Context) (bool, error) {
		info, err := server.ServerVersionWithContext(ctx)
		if err != nil {
			return false, fmt.Errorf("ask the cluster for its version: %w", err)
		}
		found, err := version.ParseGeneric(info.GitVersion)
		if err != nil {
			return false, fmt.Errorf("read the version of the cluster: %w", err)
		}
		return found.Major() > 1 || found.Minor() >= sidecarsSince+nodesBehind, nil
	})
}
