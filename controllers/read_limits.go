package controllers

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readsAtOnce is how many Secrets and ConfigMaps of one namespace are read at a time: each may have a megabyte, and hundreds of Transports name it.
const readsAtOnce = 4

// reads has the places of those who read, by namespace. Its zero value is ready, and it is safe for concurrent use.
type reads struct {
	mu     sync.Mutex
	places map[string]chan struct{}
}

// get reads an object of a namespace when there is a place.
func (r *reads) get(ctx context.Context, from client.Reader, key client.ObjectKey, object client.Object) error {
	places := r.of(key.Namespace)
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
		return from.Get(ctx, key, object) //nolint:wrapcheck // The caller says what was to be read.
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // The caller says what was to be read.
	}
}

func (r *reads) of(namespace string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places == nil {
		r.places = map[string]chan struct{}{}
	}
	if r.places[namespace] == nil {
		r.places[namespace] = make(chan struct{}, readsAtOnce)
	}
	return r.places[namespace]
}
