package controllers

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
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

// secretVersions change with the Secrets that the pods of a worker group see, and tell nothing of them.
func (run *transportRun) secretVersions(worker string) string {
	broker := cmp.Or(run.userVersion, run.source.version())
	return strings.TrimSuffix(broker+"."+run.handlerSecrets[worker], ".")
}
