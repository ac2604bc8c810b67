package autoscaling

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"

	"redrive.dev/redrive/internal/workload"
)

// Discovery finds out whether the cluster has KEDA, which may come and go while the operator runs. It is safe for concurrent use.
type Discovery struct {
	server discovery.ServerResourcesInterfaceWithContext
	// age is how long an answer counts as of now.
	age time.Duration

	mu       sync.Mutex
	there    bool
	answered bool
	asked    time.Time
}

// NewDiscovery returns a Discovery whose answers count as of now for so long.
func NewDiscovery(server discovery.ServerResourcesInterfaceWithContext, age time.Duration) *Discovery {
	return &Discovery{server: server, age: age}
}

// Known is true where the cluster serves KEDA's kind. Where the cluster does not say, the last answer holds.
func (k *Discovery) Known(ctx context.Context, now time.Time) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answered && now.Sub(k.asked) < k.age {
		return k.there, nil
	}
	kind := workload.ScaledObjectKind()
	list, err := k.server.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err):
		k.there = false
	case err != nil && !k.answered:
		return false, fmt.Errorf("ask the cluster whether it has KEDA: %w", err)
	case err != nil:
		ctrl.LoggerFrom(ctx).Info("whether the cluster has KEDA is taken to be as before", "cause", err.Error())
	default:
		k.there = false
		for i := range list.APIResources {
			k.there = k.there || list.APIResources[i].Kind == kind.Kind
		}
	}
	k.asked, k.answered = now, true
	return k.there, nil
}

// Doubt has the cluster asked again at once.
func (k *Discovery) Doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = time.Time{}
}
