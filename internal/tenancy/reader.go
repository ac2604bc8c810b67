package tenancy

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/broker"
)

const (
	// maxReads is how many Secrets, ConfigMaps, Deployments and pages of pods are read at a time: each object may have a megabyte, and hundreds of Transports
	// may name it.
	maxReads = 12
	// Page is how many pods or scalers are read at a time, for the same reason.
	Page = 5
)

// Reader bounds how many reads go on at a time. A namespace gets no more than it leaves free, so that one alone has six. Its zero value is ready, and it is
// safe for concurrent use.
type Reader struct {
	once  sync.Once
	reads *shares
}

// Get reads an object of a namespace.
func (r *Reader) Get(ctx context.Context, from client.Reader, key client.ObjectKey, object client.Object) error {
	return r.read(ctx, key.Namespace, func() error { return from.Get(ctx, key, object) })
}

// List reads some objects of a namespace.
func (r *Reader) List(ctx context.Context, from client.Reader, namespace string, into client.ObjectList, options ...client.ListOption) error {
	return r.read(ctx, namespace, func() error { return from.List(ctx, into, append(options, client.InNamespace(namespace))...) })
}

// Pods shows the pods of a namespace with some labels to see, until that wants no more. They are read a few at a time, and none is to be kept.
func (r *Reader) Pods(ctx context.Context, from client.Reader, namespace string, labels map[string]string, see func(*corev1.Pod) (more bool)) error {
	for page := ""; ; {
		var list corev1.PodList
		err := r.List(ctx, from, namespace, &list, client.MatchingLabels(labels), client.Limit(Page), client.Continue(page))
		if err != nil {
			return err
		}
		for i := range list.Items {
			if !see(&list.Items[i]) {
				return nil
			}
		}
		if page = list.Continue; page == "" {
			return nil
		}
	}
}

// read waits and reads while others have the processor: who waited for one with its place among those that read would keep all others from reading for as
// long as namespaces that compute have the processors.
func (r *Reader) read(ctx context.Context, namespace string, read func() error) (err error) {
	r.once.Do(func() { r.reads = newShares(maxReads) })
	broker.Await(ctx, func() {
		if !r.reads.take(ctx, namespace, true) {
			err = ctx.Err()
			return
		}
		defer r.reads.give(namespace, 1)
		err = read()
	})
	return err
}
