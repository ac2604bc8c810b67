// Package objectwriter writes the workers' objects into the cluster: by server-side apply, only where the cluster has them otherwise, a few Deployments at
// a time in an upgrade, and not for ever where others change them as often. Events tell what was done.
package objectwriter

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

// Writer writes the objects of all Transports. It is safe for concurrent use.
type Writer struct {
	Client client.Client
	// Live reads from the API server itself, within what Reads lets a namespace read at a time.
	Live  client.Reader
	Reads *tenancy.Reader
	// Repairs knows what was written last, and Rollouts which Deployments roll for an upgrade.
	Repairs  *ssa.Repairs
	Rollouts *rollout.Limiter
}

// Owner is the Transport that an object belongs to, at one reconcile.
type Owner struct {
	Transport types.NamespacedName
	// Asked is true where the user has changed the Transport since its workers were last brought to what it asks for: that waits for no upgrade.
	Asked  bool
	Status *outcome.Patcher
}

// RefusedError is an error of what the user asked for, and not of carrying it out.
type RefusedError struct{ err error }

// Refused makes a RefusedError.
func Refused(err error) error { return &RefusedError{err} }

// Error implements error.
func (e *RefusedError) Error() string { return e.err.Error() }

// Unwrap gives the cause to package errors.
func (e *RefusedError) Unwrap() error { return e.err }

// IsRefused says whether there is a RefusedError in an error.
func IsRefused(err error) bool {
	_, is := errors.AsType[*RefusedError](err)
	return is
}

// Write applies an object unless the cluster has it so already: current is what the cache has of it, nil where that is nothing. result takes what the API
// server made of it; it may be nil, and stays empty where nothing was written. The error is a RefusedError, or ssa.ErrFieldManagerConflict, where
// trying again does not help, rollout.ErrQueued where it has to wait, and Waiting where the object has changed since it was read.
func (w *Writer) Write(ctx context.Context, owner Owner, desired, current, result client.Object) error {
	kind := desired.GetObjectKind().GroupVersionKind().Kind
	form, err := workload.ApplyForm(desired)
	if err != nil {
		return err
	}
	if err := ssa.Stamp(form); err != nil {
		return err
	}
	name, object := owner.Transport, kind+" "+desired.GetName()
	w.Repairs.Want(name, object, form.GetAnnotations()[ssa.StampAnnotation])
	if w.Repairs.IsSame(name, object, current) {
		return nil
	}
	read := current
	current, err = w.whole(ctx, current)
	if err != nil {
		return err
	}
	same, err := ssa.UpToDate(current, form)
	if err != nil {
		return err
	}
	if same {
		w.Repairs.Found(name, object, current)
		return nil
	}
	if !w.Repairs.MayWrite(name, object, time.Now()) {
		return w.Repairs.Conflict(object, current)
	}
	done, err := w.Rollouts.Begin(ctx, name, owner.Asked, current, form)
	if err != nil {
		w.Repairs.Drop(name, object) // Nobody has changed it meanwhile when it is written later.
		return fmt.Errorf("%s: %w", object, err)
	}
	err = w.apply(ctx, form, read)
	done(err)
	if err != nil {
		err = fmt.Errorf("apply %s: %w", object, err)
		if apierrors.IsConflict(err) {
			return outcome.Waiting(v1alpha1.ReasonProgressing, outcome.RetryAfterConflict, fmt.Errorf("%s has changed since it was read", object))
		}
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return Refused(err)
		}
		return err
	}
	w.tell(owner, object, current, form)
	if result == nil {
		return nil
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(form.Object, result); err != nil {
		return fmt.Errorf("read %s %s: %w", kind, desired.GetName(), err)
	}
	return nil
}

// apply applies a form over a configuration or a Deployment as it was read, and fails where it is no longer that. An operator that stood still for a while
// would else put what was wanted before over what its successor has published, and workers would consume queues that are gone.
func (w *Writer) apply(ctx context.Context, form *unstructured.Unstructured, read client.Object) error {
	send := func() error {
		return w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(form), client.FieldOwner(ssa.FieldOwner), client.ForceOwnership)
	}
	switch read := read.(type) {
	case *corev1.ConfigMap:
		form.SetResourceVersion(read.ResourceVersion)
	case *appsv1.Deployment:
		form.SetResourceVersion(read.ResourceVersion)
		err := send()
		now := &appsv1.Deployment{}
		if !apierrors.IsConflict(err) || w.Client.Get(ctx, client.ObjectKeyFromObject(read), now, client.UnsafeDisableDeepCopy) != nil ||
			now.UID != read.UID || now.Generation != read.Generation {
			return err
		}
		form.SetResourceVersion(now.ResourceVersion) // Its status changes with each pod, and is nothing that we write over.
	}
	return send()
}

// tell tells of what was written by an event, and whether it undid what somebody else did.
func (w *Writer) tell(owner Owner, object string, before, after client.Object) {
	switch w.Repairs.Wrote(owner.Transport, object, before, after, time.Now()) {
	case ssa.Repair:
		owner.Status.EventRestored(after, object+" was changed or deleted"+ssa.LastManager(before)+"; restored")
	case ssa.Change:
		reason := "Updated"
		if before == nil {
			reason = "Created"
		}
		owner.Status.EventAbout(after, reason, object)
	case ssa.Nothing:
	}
}

// Delete deletes an object, unless that has begun.
func (w *Writer) Delete(ctx context.Context, owner Owner, kind string, object client.Object) error {
	w.Repairs.Drop(owner.Transport, kind+" "+object.GetName())
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	err := w.Client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is gone, and so is its UID.
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, object.GetName(), err)
	}
	owner.Status.EventAbout(object, "Deleted", kind+" "+object.GetName())
	return nil
}

// Forget forgets a Transport that is gone.
func (w *Writer) Forget(transport types.NamespacedName) {
	w.Repairs.Forget(transport)
	w.Rollouts.Forget(transport)
}

// whole is an object of which the cache may have a part, as the API server has it now; nil where it is gone. It is read by a list, for which the
// operator has the right.
func (w *Writer) whole(ctx context.Context, current client.Object) (client.Object, error) {
	part, is := current.(*appsv1.Deployment)
	if !is || !objectcache.IsPart(part) {
		return current, nil
	}
	var list appsv1.DeploymentList
	if err := w.Reads.List(ctx, w.Live, part.Namespace, &list, client.MatchingFields{"metadata.name": part.Name}); err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", part.Name, err)
	}
	for i := range list.Items {
		if found := &list.Items[i]; found.UID == part.UID {
			return found, nil
		}
	}
	return nil, nil //nolint:nilnil // it is gone
}
