package brokeruser

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
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/workload"
)

// SecretType is the type of the Secrets that the operator writes. It cannot be changed, and so tells them from all others.
const SecretType corev1.SecretType = "redrive.dev/rabbitmq-user" //nolint:gosec // a name

// readSecret returns the Secret with the login of a Transport's own user; nil where there is none. One of that name that is
// somebody else's is a conflict.
func (k *Keeper) readSecret(ctx context.Context, t *v1alpha1.Transport) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	name := workload.UserSecretName(t)
	err := k.live.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	case !metav1.IsControlledBy(secret, t) || secret.Type != SecretType:
		return nil, outcome.Stalled(v1alpha1.ReasonConflict, fmt.Errorf(
			"there is a Secret %q in namespace %q already that this Transport did not make: delete it, or leave out spec.broker.scopedUser", name, t.Namespace))
	default:
		return secret, nil
	}
}

// tryToWrite finds out whether the Secret can be written before there is a password that would be lost.
func (k *keeping) tryToWrite(ctx context.Context) error {
	if k.secret == nil {
		return secretError(k.client.Create(ctx, k.empty(), client.DryRunAll))
	}
	return secretError(k.client.Patch(ctx, k.secret.DeepCopy(), client.MergeFrom(k.secret), client.DryRunAll))
}

func (k *keeping) empty() *corev1.Secret {
	t := k.Transport
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: workload.UserSecretName(t), Labels: workload.TransportLabels(t),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("Transport"))},
		},
		Type: SecretType,
	}
}

// writeSecret gives the workers a login, unless they have it so already.
func (k *keeping) writeSecret(ctx context.Context, user, password string) error {
	data := k.Login.ForUser(user, password, k.vhost)
	if k.secret != nil && maps.EqualFunc(k.secret.Data, data, func(a, b []byte) bool { return string(a) == string(b) }) {
		k.kept.SecretVersion = k.secret.ResourceVersion
		return nil
	}
	var err error
	secret := k.empty()
	if k.secret == nil {
		secret.Data = data
		err = k.client.Create(ctx, secret)
	} else {
		secret = k.secret.DeepCopy()
		secret.Data = data
		err = k.client.Patch(ctx, secret, client.MergeFromWithOptions(k.secret, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return secretError(err)
	}
	k.kept.SecretVersion = secret.ResourceVersion
	return nil
}

// removeSecret deletes the Secret of a user that is gone. Without the right to do so it stays until the Transport goes, and
// opens nothing any more.
func (k *Keeper) removeSecret(ctx context.Context, look *Look) error {
	secret, err := k.readSecret(ctx, look.Transport)
	if _, foreign := errors.AsType[*outcome.StepError](err); foreign || err == nil && secret == nil {
		return nil
	}
	if err != nil {
		return err
	}
	err = k.client.Delete(ctx, secret, client.Preconditions{UID: new(secret.UID)})
	if apierrors.IsForbidden(err) {
		look.Status.Event(corev1.EventTypeWarning, v1alpha1.ReasonSecretForbidden,
			"Secret "+secret.Name+" holds the login of a user that is deleted and stays, since the operator may not delete it: delete it")
		return nil
	}
	return secretError(client.IgnoreNotFound(err))
}

// secretError says what is missing where Secrets may not be written.
func secretError(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return outcome.Stalled(v1alpha1.ReasonSecretForbidden, fmt.Errorf("spec.broker.scopedUser needs an operator that may create, patch and delete Secrets: "+
			"install it with config/scoped-users, or with scopedUsers.enabled of the chart, or leave the field out: %w", err))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return outcome.Outdated(outcome.Waiting(v1alpha1.ReasonProgressing, outcome.RetryAfterConflict,
			errors.New("the Secret of the workers' user has changed since it was read")))
	default:
		return fmt.Errorf("write the Secret of the workers' user: %w", err)
	}
}
