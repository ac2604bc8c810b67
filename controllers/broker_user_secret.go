package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// UserSecretType is the type of the Secrets that the operator writes. It cannot be changed, and so tells them from all others.
const UserSecretType corev1.SecretType = "redrive.dev/rabbitmq-user" //nolint:gosec // a name

// errOutdated is in the error of a step that worked on an outdated copy of the Transport.
var errOutdated = errors.New("the copy is outdated")

func outdated(err error) error { return &outdatedError{err} }

type outdatedError struct{ error }

func (e *outdatedError) Unwrap() []error { return []error{errOutdated, e.error} }

// userSecret is the Secret with the login of a Transport's own user; nil where there is none. One of that name that is
// somebody else's is a conflict.
func (r *TransportReconciler) userSecret(ctx context.Context, t *v1alpha1.Transport) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	name := workload.UserSecretName(t)
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	case !metav1.IsControlledBy(secret, t) || secret.Type != UserSecretType:
		return nil, stalled(v1alpha1.ReasonConflict, fmt.Errorf(
			"there is a Secret %q in namespace %q already that this Transport did not make: delete it, or leave out spec.broker.scopedUser", name, t.Namespace))
	default:
		return secret, nil
	}
}

// tryToWrite finds out whether the Secret can be written before there is a password that would be lost.
func (k *userReconciler) tryToWrite(ctx context.Context) error {
	if k.secret == nil {
		return k.r.secretError(k.r.Client.Create(ctx, k.empty(), client.DryRunAll))
	}
	return k.r.secretError(k.r.Client.Patch(ctx, k.secret.DeepCopy(), client.MergeFrom(k.secret), client.DryRunAll))
}

func (k *userReconciler) empty() *corev1.Secret {
	t := k.run.transport
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: workload.UserSecretName(t), Labels: workload.TransportLabels(t),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("Transport"))},
		},
		Type: UserSecretType,
	}
}

// writeSecret gives the workers a login, unless they have it so already.
func (k *userReconciler) writeSecret(ctx context.Context, user, password string) error {
	data := k.run.source.login.ForUser(user, password, k.vhost)
	if k.secret != nil && maps.EqualFunc(k.secret.Data, data, func(a, b []byte) bool { return string(a) == string(b) }) {
		k.run.userVersion = k.secret.ResourceVersion
		return nil
	}
	var err error
	secret := k.empty()
	if k.secret == nil {
		secret.Data = data
		err = k.r.Client.Create(ctx, secret)
	} else {
		secret = k.secret.DeepCopy()
		secret.Data = data
		err = k.r.Client.Patch(ctx, secret, client.MergeFromWithOptions(k.secret, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return k.r.secretError(err)
	}
	k.run.userVersion = secret.ResourceVersion
	return nil
}

// removeUserSecret deletes the Secret of a user that is gone. Without the right to do so it stays until the Transport goes, and
// opens nothing any more.
func (r *TransportReconciler) removeUserSecret(ctx context.Context, run *transportRun) error {
	secret, err := r.userSecret(ctx, run.transport)
	if _, foreign := errors.AsType[*stepError](err); foreign || err == nil && secret == nil {
		return nil
	}
	if err != nil {
		return err
	}
	err = r.Client.Delete(ctx, secret, client.Preconditions{UID: new(secret.UID)})
	if apierrors.IsForbidden(err) {
		run.status.event(corev1.EventTypeWarning, v1alpha1.ReasonSecretForbidden,
			"Secret "+secret.Name+" holds the login of a user that is deleted and stays, since the operator may not delete it: delete it")
		return nil
	}
	return r.secretError(client.IgnoreNotFound(err))
}

// secretError says what is missing where Secrets may not be written.
func (r *TransportReconciler) secretError(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return stalled(v1alpha1.ReasonSecretForbidden, fmt.Errorf("spec.broker.scopedUser needs an operator that may create, patch and delete Secrets: "+
			"install it with config/scoped-users, or with scopedUsers.enabled of the chart, or leave the field out: %w", err))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return outdated(waiting(v1alpha1.ReasonProgressing, againAfterConflict, errors.New("the Secret of the workers' user has changed since it was read")))
	default:
		return fmt.Errorf("write the Secret of the workers' user: %w", err)
	}
}
