// Package objectcache is what the operator's cache of the API server holds: a bounded part of each object, and of Secrets nothing.
package objectcache

import (
	"fmt"
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

// CacheOptions keep the cache to Redrive's own kinds and to objects that carry its label; of ConfigMaps and pods it has the metadata only. Who
// manages which field is kept of Deployments only, of large ones a part: of the others it would be a good part of what they take. Nothing is kept
// that nobody reads and whose size nothing bounds, for whoever may create one of them fills the memory of the operator by it. What the
// cache leaves out of Transports and RetryPolicies is never written back: package outcome sends changes of the rest only. specs bounds what they take.
func CacheOptions(specs *Tally) (cache.Options, error) {
	ours, err := labels.Parse(workload.TransportLabel)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select by label %s: %w", workload.TransportLabel, err)
	}
	pages := tenancy.NewPages()
	strip := func(object any) (any, error) { return strip(specs, object) }
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:    {Label: ours, Transform: strip},
			&corev1.ConfigMap{}:     {Label: ours, Transform: strip},
			&corev1.Pod{}:           {Label: ours, Transform: strip},
			&v1alpha1.Transport{}:   {Transform: strip},
			&v1alpha1.RetryPolicy{}: {Transform: strip},
		},
		NewInformer: func(
			all toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
		) toolscache.SharedIndexInformer {
			informer := toolscache.NewSharedIndexInformer(pages.Of(all, strip), kind, resync, indexers)
			switch kind.(type) {
			case *v1alpha1.Transport, *v1alpha1.RetryPolicy:
				_, _ = informer.AddEventHandler(specs.giveBack()) // It fails only where the informer has ended.
			}
			return informer
		},
	}, nil
}

// strip leaves of an object what the cache keeps. It may be run on one several times: on a page of a list, and by the cache, which has it run twice on what
// the API server streams.
func strip(specs *Tally, object any) (any, error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return stripDeploymentForCache(object)
	case *v1alpha1.Transport:
		specs.strip(o)
		return o, nil
	case *v1alpha1.RetryPolicy:
		specs.strip(o)
		return o, nil
	default:
		return stripAll(object)
	}
}

// stripAll keeps of the metadata of ConfigMaps and pods what tells whose they are and whether they have changed, and what refreshPods has written.
func stripAll(object any) (any, error) {
	metadata, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	own := metav1.ObjectMeta{
		Namespace: metadata.Namespace, Name: metadata.Name, UID: metadata.UID, ResourceVersion: metadata.ResourceVersion, Generation: metadata.Generation,
		CreationTimestamp: metadata.CreationTimestamp, DeletionTimestamp: metadata.DeletionTimestamp, Labels: workload.OwnLabels(metadata.Labels),
	}
	for _, name := range []string{workload.ConfigHashAnnotation, workload.SecretVersionAnnotation} {
		if value, has := metadata.Annotations[name]; has && len(value) <= maxMetadata {
			metav1.SetMetaDataAnnotation(&own, name, value)
		}
	}
	own.OwnerReferences = controllerOnly(metadata)
	metadata.ObjectMeta = own
	return metadata, nil
}

// stripForCache takes off Transports and RetryPolicies what nobody reads and may be large: the copy that kubectl apply keeps in an annotation is as large as
// the object, and a template may have all that the API server takes. Of a spec that is refused for its size it leaves a part.
func stripForCache(object client.Object) {
	size := object.GetAnnotations()[tooLarge]
	object.SetAnnotations(nil)
	object.SetLabels(nil)
	object.SetOwnerReferences(nil)
	object.SetManagedFields(nil)
	object.SetFinalizers(boundFinalizers(object.GetFinalizers()))
	if transport, ok := object.(*v1alpha1.Transport); ok {
		workload.BoundTemplates(transport)
		boundSpec(transport, size)
	}
}

// maxMetadata bounds what the cache keeps of some metadata of others, in bytes. Kubernetes has no bound of its own but the size of the object.
const maxMetadata = 4 << 10

// boundFinalizers leaves a list as it is, unless it is longer than anybody needs: then the operator knows of its own only, and writes no more.
func boundFinalizers(all []string) []string {
	size := 0
	for _, finalizer := range all {
		size += len(finalizer)
	}
	switch {
	case size <= maxMetadata:
		return all
	case slices.Contains(all, v1alpha1.Finalizer):
		return []string{v1alpha1.Finalizer}
	default:
		return nil
	}
}

// ClientOptions let Secrets and Namespaces be read one by one and never be cached.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.Namespace{}}}}
}
