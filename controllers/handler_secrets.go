package controllers

import (
	"cmp"
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
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// lookForSecrets warns of Secrets that handlers name and that do not exist: workers that start without them take no messages.
// Of those that exist it notes the versions, so that the pods see a changed one soon. Only their metadata is read, and no more
// is needed: what is in them is between the Secret and the worker.
func (r *TransportReconciler) lookForSecrets(ctx context.Context, run *transportRun) error {
	versions := map[string]string{}
	run.handlerSecrets = map[string]string{}
	for i := range run.transport.Spec.Workers {
		worker := &run.transport.Spec.Workers[i]
		var ofWorker []string
		for _, named := range secretsOfHandler(&worker.Handler) {
			version, known := versions[named.secret]
			if !known {
				var err error
				if version, err = r.secretVersion(ctx, run.transport.Namespace, named.secret); err != nil {
					run.partly(err)
					continue
				}
				versions[named.secret] = version
			}
			if version == "" {
				run.warn([]topology.Finding{{
					Object: topology.Ref{Kind: kindWorker, Name: worker.Name}, Reason: v1alpha1.ReasonSecretNotFound,
					Message: fmt.Sprintf("there is no Secret %q in namespace %q, which %s names: workers that start take no messages until there is",
						named.secret, run.transport.Namespace, named.field),
				}})
			}
			ofWorker = append(ofWorker, version)
		}
		run.handlerSecrets[worker.Name] = strings.Join(ofWorker, ".")
	}
	return nil
}

// namedSecret is a Secret with the field that names it.
type namedSecret struct{ field, secret string }

func secretsOfHandler(handler *v1alpha1.Handler) []namedSecret {
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

// secretVersion is empty for a Secret that does not exist.
func (r *TransportReconciler) secretVersion(ctx context.Context, namespace, name string) (string, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for Secret %s: %w", name, err)
	}
	return secret.ResourceVersion, nil
}

// guardedSecrets are those, of what the workers' handlers and templates show, that hold the login of a Transport or that for the management API:
// who may write Transports must not get it by a pod, or have it sent to a URL.
func (r *TransportReconciler) guardedSecrets(ctx context.Context, run *transportRun) (map[string]bool, error) {
	if run.guarded != nil {
		return run.guarded, nil
	}
	var shown []string
	for i := range run.transport.Spec.Workers {
		shown = append(shown, workload.SecretsShown(&run.transport.Spec.Workers[i])...)
	}
	guarded := map[string]bool{}
	if len(shown) > 0 {
		var transports v1alpha1.TransportList
		if err := r.Client.List(ctx, &transports, client.InNamespace(run.transport.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list the Transports of the namespace: %w", err)
		}
		for i := range transports.Items {
			if ref := transports.Items[i].Spec.Broker.SecretRef; ref != nil {
				guarded[ref.Name] = true
			}
		}
		for _, name := range run.endpoint.source.secrets {
			guarded[name] = true
		}
	}
	slices.Sort(shown)
	for _, name := range slices.Compact(shown) {
		if guarded[name] {
			continue
		}
		secret := &corev1.Secret{}
		err := r.reads.Get(ctx, r.Live, types.NamespacedName{Namespace: run.transport.Namespace, Name: name}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		}
		if _, has := secret.Data[credentials.KeyManagementURI]; has {
			guarded[name] = true
		}
	}
	run.guarded = guarded
	return guarded, nil
}

// secretVersions change with the Secrets that the pods of a worker group see, and tell nothing of them.
func (run *transportRun) secretVersions(worker string) string {
	broker := cmp.Or(run.userVersion, run.source.version())
	return strings.TrimSuffix(broker+"."+run.handlerSecrets[worker], ".")
}
