// Package configmaps reads the ConfigMaps of the workers within a bound: whoever may write ConfigMaps in a namespace may give megabytes our label.
package configmaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

const (
	// maxFormer is how many ConfigMaps of workers that are no longer in the spec, and have no Deployment, are looked at in one reconcile; it deletes them.
	maxFormer = 16
	// maxRunning is how many of those are looked at that have one: a spec has 16 worker groups, which may all be renamed, again and again.
	maxRunning = 64
	// maxKept is how many bytes of ConfigMaps are kept of one namespace. What is over it is read again at each look.
	maxKept = 8 << 20
	// maxKeptOfAll is how many are kept of all namespaces. Beyond it, what is kept of the namespace with most is dropped.
	maxKeptOfAll = 32 << 20
)

// ErrMemory is why a look goes no further.
var ErrMemory = errors.New("the configurations of workers that are looked at in this namespace take more memory than the operator has for them: " +
	"this Transport comes later, or never where its own are that large (delete ConfigMaps that the operator has not made, or raise GOMEMLIMIT and " +
	"the memory limit of the operator)")

// Reader reads ConfigMaps and keeps them as they were last read. The cache of the manager has their metadata only. It is safe for concurrent use.
type Reader struct {
	// cache has their metadata, and live is the API server itself.
	cache, live client.Reader
	reads       *tenancy.Reader
	// budget is what all looks take for ConfigMaps at a time, kept or not. It is apart from that of the brokers' answers, for which a look waits:
	// looks that held something of it would wait for each other.
	budget *tenancy.Memory

	mu  sync.Mutex
	all map[types.NamespacedName]map[string]*corev1.ConfigMap
	// kept are the bytes that are kept of each namespace, and keptOfAll of all.
	kept      map[string]int
	keptOfAll int
}

// NewReader returns one that reads metadata from a cache, and contents from the API server, within what reads lets a namespace read at a time.
func NewReader(cache, live client.Reader, reads *tenancy.Reader) *Reader {
	return &Reader{
		cache: cache, live: live, reads: reads, budget: tenancy.NewMemory(tenancy.MemoryOfProcess() / 2),
		all: map[types.NamespacedName]map[string]*corev1.ConfigMap{}, kept: map[string]int{},
	}
}

// Memory is what the looks of all namespaces may hold.
func (r *Reader) Memory() *tenancy.Memory { return r.budget }

// of the workers of a Transport, by name; it is not to be changed.
func (r *Reader) of(transport types.NamespacedName) map[string]*corev1.ConfigMap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[transport]
}

// keep takes the place of what was kept of a Transport. What the spec does not want is about to be deleted, and what somebody else wrote is about
// to be written again.
func (r *Reader) keep(transport types.NamespacedName, configMaps map[string]*corev1.ConfigMap, wanted map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, before := range r.all[transport] {
		r.count(transport.Namespace, -before.Size())
	}
	kept := map[string]*corev1.ConfigMap{}
	for name, configMap := range configMaps {
		if size := configMap.Size(); wanted[name] && workload.IsPublished(configMap) && r.kept[transport.Namespace]+size <= maxKept {
			kept[name] = configMap
			r.count(transport.Namespace, size)
		}
	}
	r.all[transport] = kept
	if r.keptOfAll > maxKeptOfAll {
		r.dropMost()
	}
}

// count adds to what is kept of a namespace.
func (r *Reader) count(namespace string, bytes int) {
	r.keptOfAll += bytes
	if r.kept[namespace] += bytes; r.kept[namespace] == 0 {
		delete(r.kept, namespace)
	}
}

// dropMost drops what is kept of the namespace with most, which is not less than what has just come.
func (r *Reader) dropMost() {
	most := ""
	for namespace, bytes := range r.kept {
		if bytes > r.kept[most] {
			most = namespace
		}
	}
	maps.DeleteFunc(r.all, func(transport types.NamespacedName, _ map[string]*corev1.ConfigMap) bool {
		return transport.Namespace == most
	})
	r.count(most, -r.kept[most])
}

// Forget drops what is kept of a Transport.
func (r *Reader) Forget(transport types.NamespacedName) {
	r.keep(transport, nil, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, transport)
}

// weightOf a ConfigMap is what it takes in memory at most while it is looked at, as text and decoded. An object of two bytes is decoded into
// hundreds, and an element of a list into tens; null, where an object is meant, into as many as that, and the list grows with each.
func weightOf(configMap *corev1.ConfigMap) int {
	const object, element, null = 384, 32, 512
	text := configMap.Data[workload.ConfigKey]
	return configMap.Size() + len(text) + object*strings.Count(text, "{") + element*strings.Count(text, ",") + null*strings.Count(text, "null")
}

// Read gives the ConfigMaps of the workers in the spec, and of those that are not and have a Deployment by a name in running, and some of the others, by
// name. left has the worker groups of those that it has not looked at, by name: what these have to do is not known. One that is kept and has not changed
// since the last look is not read again. It takes what they weigh of a reservation, and fails with ErrMemory where that has not enough.
func (r *Reader) Read(
	ctx context.Context, t *v1alpha1.Transport, wanted, running map[string]bool, held *tenancy.Reservation,
) (found map[string]*corev1.ConfigMap, left map[string]string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := r.cache.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t))); err != nil {
		return nil, nil, fmt.Errorf("list the ConfigMaps: %w", err)
	}
	transport := client.ObjectKeyFromObject(t)
	found, kept := map[string]*corev1.ConfigMap{}, r.of(transport)
	chosen, left := choose(list.Items, t, wanted, running)
	for _, metadata := range chosen {
		configMap := kept[metadata.Name]
		if configMap == nil || configMap.UID != metadata.UID || configMap.ResourceVersion != metadata.ResourceVersion {
			if configMap, err = r.get(ctx, client.ObjectKeyFromObject(metadata)); err != nil {
				return nil, nil, err
			}
		}
		if configMap == nil {
			continue
		}
		if held.TakeNow(ctx, weightOf(configMap)) != nil {
			return nil, nil, ErrMemory
		}
		found[metadata.Name] = configMap
	}
	r.keep(transport, found, wanted)
	return found, left, nil
}

// choose tells which ConfigMaps are read, and of which groups those are that are left.
func choose(
	all []metav1.PartialObjectMetadata, t *v1alpha1.Transport, wanted, running map[string]bool,
) (chosen []*metav1.PartialObjectMetadata, left map[string]string) {
	left = map[string]string{}
	idle, former := maxFormer, maxRunning
	for i := range all {
		metadata, room := &all[i], &idle
		if !metav1.IsControlledBy(metadata, t) {
			continue
		}
		if running[metadata.Name] {
			room = &former
		}
		if !wanted[metadata.Name] {
			if *room == 0 {
				left[metadata.Name] = workload.GroupOf(metadata.Labels)
				continue
			}
			*room--
		}
		chosen = append(chosen, metadata)
	}
	return chosen, left
}

// Get gives the ConfigMap of one worker group of a Transport; nil where there is none. It takes what that weighs of a reservation, as Read does.
func (r *Reader) Get(ctx context.Context, t *v1alpha1.Transport, worker string, held *tenancy.Reservation) (*corev1.ConfigMap, error) {
	configMap, err := r.get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: workload.Name(t, worker)})
	if err != nil || configMap == nil {
		return nil, err
	}
	if held.TakeNow(ctx, weightOf(configMap)) != nil {
		return nil, ErrMemory
	}
	if !metav1.IsControlledBy(configMap, t) {
		return nil, nil //nolint:nilnil // it is somebody else's
	}
	return configMap, nil
}

// get reads from the API server; it gives nil for one that is gone. What others have added is left out, and so is a content that the operator has not
// published: nothing is done by it.
func (r *Reader) get(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
	configMap := &corev1.ConfigMap{}
	err := r.reads.Get(ctx, r.live, key, configMap)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it has gone since
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", key.Name, err)
	}
	configMap.BinaryData = nil
	if !workload.IsPublished(configMap) {
		configMap.Data = nil
	}
	for key := range configMap.Data {
		if key != workload.ConfigKey {
			delete(configMap.Data, key)
		}
	}
	return configMap, nil
}
