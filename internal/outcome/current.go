package outcome

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// CheckCurrent asks the API server itself whether the Transport still is what the cache says, before anything is changed on the
// broker. The cache of an operator that was stopped for a while, or that is cut off, may show a Transport that is being
// deleted by now, or one of the same name that is gone: it would make again what another operator takes away, or take away
// what another has made. The version is compared, and not only the generation, since the status holds how far queues are
// on their way out.
func CheckCurrent(ctx context.Context, reader client.Reader, t *v1alpha1.Transport) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Transport"))
	err := reader.Get(ctx, client.ObjectKeyFromObject(t), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the Transport again: %w", err)
	}
	if err == nil && live.UID == t.UID && live.ResourceVersion == t.ResourceVersion {
		return nil
	}
	reason := v1alpha1.ReasonProgressing
	if !t.DeletionTimestamp.IsZero() {
		reason = v1alpha1.ReasonDeleting
	}
	return Waiting(reason, RetryAfterConflict, errors.New("the Transport has changed since it was read"))
}
