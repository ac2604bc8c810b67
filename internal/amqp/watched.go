package amqp

import "sync"

// watched is a value whose changes can be awaited.
type watched[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{}
}

// get returns the value, and a channel that is closed when it changes.
func (w *watched[T]) get() (T, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.value, w.changed
}

// update changes the value and wakes everyone who waits for it, unless change says that it stays as it is.
func (w *watched[T]) update(change func(*T) (changed bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if change(&w.value) && w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
