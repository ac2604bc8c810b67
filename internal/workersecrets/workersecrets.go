// Package workersecrets tells of the Secrets that worker pods see: those that their handlers name, and those with a login that no pod may get.
package workersecrets

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// Versions are those of the Secrets that the handlers of a Transport name, by worker group, so that the pods see a changed one soon. missing warns of
// Secrets that do not exist: workers that start without them take no messages. One that cannot be read is in the error, and the others are returned
// all the same. Only metadata is read, and no more is needed: what is in them is between the Secret and the worker.
func Versions(ctx context.Context, live client.Reader, t *v1alpha1.Transport) (byWorker map[string]string, missing []topology.Finding, err error) {
	versions, byWorker := map[string]string{}, map[string]string{}
	for i := range t.Spec.Workers {
		worker := &t.Spec.Workers[i]
		var its []string
		for _, named := range ofHandler(&worker.Handler) {
			version, known := versions[named.secret]
			if !known {
				var failed error
				if version, failed = versionOf(ctx, live, types.NamespacedName{Namespace: t.Namespace, Name: named.secret}); failed != nil {
					err = failed
					continue
				}
				versions[named.secret] = version
			}
			if version == "" {
				missing = append(missing, topology.Finding{
					Object: topology.Ref{Kind: topology.KindWorker, Name: worker.Name}, Reason: v1alpha1.ReasonSecretNotFound,
					Message: fmt.Sprintf("there is no Secret %q in namespace %q, which %s names: workers that start take no messages until there is",
						named.secret, t.Namespace, named.field),
				})
			}
			its = append(its, version)
		}
		byWorker[worker.Name] = strings.Join(its, ".")
	}
	return byWorker, missing, err
}

// namedSecret is a Secret with the field that names it.
type namedSecret struct{ field, secret string }

func ofHandler(handler *v1alpha1.Handler) []namedSecret {
	var found []namedSecret
	if http := handler.HTTP; http != nil {
		if http.HeadersSecretRef != nil {
			found = append(found, namedSecret{"handler.http.headersSecretRef", http.HeadersSecretRef.Name})
		}
		if http.TLS != nil {
			found = append(found, namedSecret{"handler.http.tls.caSecretRef", http.TLS.CASecretRef.Name})
		}
	}
	return found
}

// versionOf is empty for a Secret that does not exist.
func versionOf(ctx context.Context, live client.Reader, name types.NamespacedName) (string, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := live.Get(ctx, name, secret)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for Secret %s: %w", name.Name, err)
	}
	return secret.ResourceVersion, nil
}

// Guard finds the Secrets that are guarded. Transports are those of the cache.
type Guard struct {
	Transports, Live client.Reader
	Reads            *tenancy.Reader
}

// Guarded are those, of what the workers' handlers and templates show, that hold the login of a Transport or that for the management API: who may write
// Transports must not get it by a pod, or have it sent to a URL. own are the Secrets with the Transport's own login.
func (g *Guard) Guarded(ctx context.Context, t *v1alpha1.Transport, own []string) (map[string]bool, error) {
	shown := make([]string, 0, len(t.Spec.Workers))
	for i := range t.Spec.Workers {
		shown = append(shown, workload.SecretsShown(&t.Spec.Workers[i])...)
	}
	guarded := map[string]bool{}
	if len(shown) == 0 {
		return guarded, nil
	}
	var transports v1alpha1.TransportList
	if err := g.Transports.List(ctx, &transports, client.InNamespace(t.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Transports of the namespace: %w", err)
	}
	for i := range transports.Items {
		if ref := transports.Items[i].Spec.Broker.SecretRef; ref != nil {
			guarded[ref.Name] = true
		}
	}
	for _, name := range own {
		guarded[name] = true
	}
	slices.Sort(shown)
	for _, name := range slices.Compact(shown) {
		if guarded[name] {
			continue
		}
		secret := &corev1.Secret{}
		err := g.Reads.Get(ctx, g.Live, types.NamespacedName{Namespace: t.Namespace, Name: name}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		}
		if _, has := secret.Data[credentials.KeyManagementURI]; has {
			guarded[name] = true
		}
	}
	return guarded, nil
}
