package clusterinfo

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// UID identifies a cluster by its namespace kube-system, which lives as long as the cluster.
func UID(ctx context.Context, reader client.Reader) (string, error) {
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("read the UID of the cluster: %w", err)
	}
	return string(namespace.UID), nil
}
