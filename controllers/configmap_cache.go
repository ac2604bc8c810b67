package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

const (
	// maxFormerConfigMaps is how many ConfigMaps of workers that are no longer in the spec are looked at in one reconcile; it deletes them.
	maxFormerConfigMaps = 16
	// maxKeptConfigMaps is how many bytes of ConfigMaps are kept of one namespace. What is over it is read anew at each look.
	maxKeptConfigMaps = 8 << 20
	// configMapsPause is when a Transport comes back for whose ConfigMaps there is no memory.
	configMapsPause = 10 * time.Second
)

// errConfigMaps is why a look goes no further.
var errConfigMaps = errors.New("the configurations of workers that are looked at in this namespace take more memory than the operator has for them: " +
	"this Transport comes later, or never where its own are that large (delete ConfigMaps that the operator has not made, or raise GOMEMLIMIT and " +
	"the memory limit of the operator)")

// configMapCache keeps the ConfigMaps of workers as they were last read. The cache of the manager has their metadata only: whoever may write
// ConfigMaps in one namespace could fill it with megabytes that carry our label. It is safe for concurrent use.
type configMapCache struct {
	mu  sync.Mutex
	all map[types.NamespacedName]map[string]*corev1.ConfigMap
	// shares of the namespaces.
	shares map[string]*configMapShare
	// budget is what all looks take for ConfigMaps at a time, kept or not. It is apart from that of the brokers' answers, for which a look waits:
	// looks that held something of it would wait for each other.
	budget *tenancy.Memory
}

// configMapShare is what one namespace has: the bytes that are kept of it.
type configMapShare struct{ kept int }

func newConfigMapCache() *configMapCache {
	return &configMapCache{
		all: map[types.NamespacedName]map[string]*corev1.ConfigMap{}, shares: map[string]*configMapShare{}, budget: tenancy.NewMemory(tenancy.MemoryOfProcess() / 2),
	}
}

// share is to be asked for with the lock.
func (c *configMapCache) share(namespace string) *configMapShare {
	if c.shares[namespace] == nil {
		c.shares[namespace] = &configMapShare{}
	}
	return c.shares[namespace]
}

// of the workers of a Transport, by name; it is not to be changed.
func (c *configMapCache) of(transport types.NamespacedName) map[string]*corev1.ConfigMap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[transport]
}

// keep takes the place of what was kept of a Transport. What the spec does not want is about to be deleted, and what somebody else wrote is about
// to be written again.
func (c *configMapCache) keep(transport types.NamespacedName, configMaps map[string]*corev1.ConfigMap, wanted map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	share := c.share(transport.Namespace)
	for _, before := range c.all[transport] {
		share.kept -= before.Size()
	}
	kept := map[string]*corev1.ConfigMap{}
	for name, configMap := range configMaps {
		if size := configMap.Size(); wanted[name] && isPublished(configMap) && share.kept+size <= maxKeptConfigMaps {
			kept[name] = configMap
			share.kept += size
		}
	}
	c.all[transport] = kept
}

func (c *configMapCache) forget(transport types.NamespacedName) {
	c.keep(transport, nil, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, transport)
}

// weightOf a ConfigMap is what it takes in memory at most while it is looked at, as text and decoded. An object of two bytes is decoded into
// hundreds, and an element of a list into tens; null, where an object is meant, into as many as that, and the list grows with each.
func weightOf(configMap *corev1.ConfigMap) int {
	const object, element, null = 384, 32, 512
	text := configMap.Data[workload.ConfigKey]
	return configMap.Size() + len(text) + object*strings.Count(text, "{") + element*strings.Count(text, ",") + null*strings.Count(text, "null")
}

// readConfigMaps are those of the workers in the spec, and of some that are not, by name. One that is kept and has not changed since the last look
// is not read again. What all looks hold at a time is bounded.
func (r *TransportReconciler) readConfigMaps(ctx context.Context, run *transportRun) (map[string]*corev1.ConfigMap, error) {
	t := run.transport
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
		configMap := kept[metadata.Name]
		if configMap == nil || configMap.UID != metadata.UID || configMap.ResourceVersion != metadata.ResourceVersion {
			var err error
			if configMap, err = r.readConfigMap(ctx, client.ObjectKeyFromObject(metadata)); err != nil {
				return nil, err
			}
		}
		if configMap == nil {
			continue
		}
		if run.held.TakeNow(ctx, weightOf(configMap)) != nil {
			return nil, outcome.Waiting(waitReason(t), brokerpool.Spread(configMapsPause), errConfigMaps)
		}
		found[metadata.Name] = configMap
	}
	r.configMaps.keep(transport, found, wanted)
	return found, nil
}

// waitReason is that of a Transport that comes later.
func waitReason(t *v1alpha1.Transport) string {
	if t.DeletionTimestamp.IsZero() {
		return v1alpha1.ReasonProgressing
	}
	return v1alpha1.ReasonDeleting
}

// readConfigMap is that of the API server; nil where it is gone. What others have added to it is left out, and so is a content that the operator
// has not published: nothing is done by it.
func (r *TransportReconciler) readConfigMap(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
	configMap := &corev1.ConfigMap{}
	err := r.reads.Get(ctx, r.Live, key, configMap)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it has gone since
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", key.Name, err)
	}
	configMap.BinaryData = nil
	if !isPublished(configMap) {
		configMap.Data = nil
	}
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
