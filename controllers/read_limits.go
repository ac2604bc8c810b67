package controllers

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readsAtOnce is how many Secrets, ConfigMaps, Deployments and pages of pods of one namespace are read at a time: each object may have a megabyte, and
// hundreds of Transports may name it.
const readsAtOnce = 4

// namespaceLimit has slots for each namespace. Its zero value is ready, and it is safe for concurrent use.
type namespaceLimit struct {
	mu    sync.Mutex
	slots map[string]chan struct{}
}

// of are the slots of a namespace, n of them: who sends has one, and gives it back by receiving.
func (l *namespaceLimit) of(namespace string, n int) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots == nil {
		l.slots = map[string]chan struct{}{}
	}
	if l.slots[namespace] == nil {
		l.slots[namespace] = make(chan struct{}, n)
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

func (r *reads) inSlot(ctx context.Context, namespace string, read func() error) error {
	slots := r.of(namespace, readsAtOnce)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
		return read()
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // The caller says what was to be read.
	}
}
