package controllers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// slotsOfNamespace is how many Transports of one namespace may use the processor at a time, and how many Secrets, ConfigMaps, Deployments and pages of
// pods of it the operator reads at a time: each object may have a megabyte, and hundreds of Transports may name it.
const slotsOfNamespace = 4

// namespaceLimit has slots for each namespace. Its zero value is ready, and it is safe for concurrent use.
type namespaceLimit struct {
	mu    sync.Mutex
	slots map[string]chan struct{}
}

// of are the slots of a namespace: a send takes one, and a receive gives it back.
func (l *namespaceLimit) of(namespace string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots == nil {
		l.slots = map[string]chan struct{}{}
	}
	if l.slots[namespace] == nil {
		l.slots[namespace] = make(chan struct{}, slotsOfNamespace)
	}
	return l.slots[namespace]
}

// reads limits who reads what may be large.
type reads struct{ namespaceLimit }

// get reads an object of a namespace when there is a slot.
func (r *reads) get(ctx context.Context, from client.Reader, key client.ObjectKey, object client.Object) error {
	return r.inSlot(ctx, key.Namespace, func() error { return from.Get(ctx, key, object) })
}

// list reads some objects of a namespace when there is a slot.
func (r *reads) list(ctx context.Context, from client.Reader, namespace string, into client.ObjectList, options ...client.ListOption) error {
	return r.inSlot(ctx, namespace, func() error { return from.List(ctx, into, append(options, client.InNamespace(namespace))...) })
}

// pods shows the pods of a namespace with some labels to see, until that wants no more. They are read a few at a time, and none is to be kept: each may
// have more than a megabyte. The cache has their metadata only.
func (r *reads) pods(ctx context.Context, from client.Reader, namespace string, labels map[string]string, see func(*corev1.Pod) (more bool)) error {
	for page := ""; ; {
		var list corev1.PodList
		err := r.list(ctx, from, namespace, &list, client.MatchingLabels(labels), client.Limit(podsPage), client.Continue(page))
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

func (r *reads) inSlot(ctx context.Context, namespace string, read func() error) error {
	slots := r.of(namespace)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
		return read()
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // The caller says what was to be read.
	}
}
