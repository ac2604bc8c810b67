package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/workload"
)

const (
	// maxFormerConfigMaps is how many ConfigMaps of workers that are no longer in the spec are looked at in one reconcile; it deletes them.
	maxFormerConfigMaps = 16
	// maxConfigMapMetadata is the size, in bytes, of the annotations and managed fields of a ConfigMap that is kept.
	maxConfigMapMetadata = 32 << 10
)

// configMapCache keeps the ConfigMaps of workers as they were last read. The cache of the manager has their metadata only: whoever may write
// ConfigMaps in one namespace could fill it with megabytes that carry our label. It is safe for concurrent use.
type configMapCache struct {
	mu  sync.Mutex
	all map[types.NamespacedName]map[string]*corev1.ConfigMap
}

func newConfigMapCache() *configMapCache {
	return &configMapCache{all: map[types.NamespacedName]map[string]*corev1.ConfigMap{}}
}

// of the workers of a Transport, by name; it is not to be changed.
func (c *configMapCache) of(transport types.NamespacedName) map[string]*corev1.ConfigMap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[transport]
}

// keep takes the place of what was kept of a Transport.
func (c *configMapCache) keep(transport types.NamespacedName, configMaps map[string]*corev1.ConfigMap) {
	kept := map[string]*corev1.ConfigMap{}
	for name, configMap := range configMaps {
		// What somebody else wrote is about to be written again.
		if _, ok := configIn(configMap); ok && metadataSize(configMap) <= maxConfigMapMetadata {
			kept[name] = configMap
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[transport] = kept
}

func (c *configMapCache) forget(transport types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, transport)
}

func metadataSize(configMap *corev1.ConfigMap) int {
	size := 0
	for name, value := range configMap.Annotations {
		size += len(name) + len(value)
	}
	for i := range configMap.ManagedFields {
		if fields := configMap.ManagedFields[i].FieldsV1; fields != nil {
			size += len(fields.GetRawBytes())
		}
	}
	return size
}

// readConfigMaps are those of the workers in the spec, and of some that are not, by name. One that has not changed since the last look is not
// read again.
func (r *TransportReconciler) readConfigMaps(ctx context.Context, t *v1alpha1.Transport) (map[string]*corev1.ConfigMap, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := r.Client.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t))); err != nil {
		return nil, fmt.Errorf("list the ConfigMaps: %w", err)
	}
	found, former, wanted, transport := map[string]*corev1.ConfigMap{}, 0, workerNames(t), client.ObjectKeyFromObject(t)
	kept := r.configMaps.of(transport)
	for i := range list.Items {
		metadata := &list.Items[i]
		if !metav1.IsControlledBy(metadata, t) {
			continue
		}
		if !wanted[metadata.Name] {
			if former++; former > maxFormerConfigMaps {
				continue
			}
		}
		configMap, err := r.readConfigMap(ctx, metadata, kept[metadata.Name])
		if err != nil {
			return nil, err
		}
		if configMap != nil {
			found[metadata.Name] = configMap
		}
	}
	r.configMaps.keep(transport, found)
	return found, nil
}

// readConfigMap is the one that is kept, where it has not changed, else that of the API server; nil where it is gone. What others have added to
// it is left out.
func (r *TransportReconciler) readConfigMap(
	ctx context.Context, metadata *metav1.PartialObjectMetadata, kept *corev1.ConfigMap,
) (*corev1.ConfigMap, error) {
	if kept != nil && kept.UID == metadata.UID && kept.ResourceVersion == metadata.ResourceVersion {
		return kept, nil
	}
	configMap := &corev1.ConfigMap{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(metadata), configMap)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it has gone since
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", metadata.Name, err)
	}
	configMap.BinaryData = nil
	for key := range configMap.Data {
		if key != workload.ConfigKey {
			delete(configMap.Data, key)
		}
	}
	return configMap, nil
}

// configIn is the configuration in a ConfigMap. One that cannot be read or that somebody edited is about to be written anew, and the
// lanes that it names are not made: a worker that has read it takes another for one that is not there.
func configIn(configMap *corev1.ConfigMap) (config compile.Config, ok bool) {
	if !isPublished(configMap) {
		return config, false
	}
	config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
	return config, err == nil
}

// isPublished is true for a ConfigMap whose hash is that of its content.
func isPublished(configMap *corev1.ConfigMap) bool {
	return compile.Hash([]byte(configMap.Data[workload.ConfigKey])) == configMap.Annotations[workload.ConfigHashAnnotation]
}

// withoutContent keeps of the metadata of ConfigMaps in the cache what tells whose they are and whether they have changed.
func withoutContent(object any) (any, error) {
	if metadata, ok := object.(*metav1.PartialObjectMetadata); ok {
		metadata.Annotations, metadata.ManagedFields = nil, nil
	}
	return object, nil
}

// ownQueues are those of some names that are the Transport's own for sure. What a ConfigMap names is not: whoever may write ConfigMaps could have
// the administrator's login give rights on queues of others.
func (run *transportRun) ownQueues(owner string, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		ref := "queue/" + name
		if slices.Contains(run.transport.Status.Created, ref) || slices.Contains(run.transport.Status.Adopted, ref) {
			return false
		}
		return run.observed == nil || run.observed.Queues[name].Arguments.Owner() != owner
	})
}
