package controllers

import (
	"context"
	"fmt"
	"reflect"
	"strconv"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	// maxSpec bounds what the spec of a Transport takes of the operator's memory, in bytes, with its templates. That of a Transport with 64 queues of 32
	// keys each, and with 256 rules, takes half of it.
	maxSpec = 512 << 10
	// tooLarge is an annotation that stands on a Transport in the cache alone, in place of what is not kept of its spec: its value is the size of that. It
	// is never written, and annotations that come with an object are not kept.
	tooLarge = "redrive.dev/too-large"
)

// boundSpec takes off a Transport whose spec is too large what may be long, and notes its size. What its deletion needs stays, and who runs its suspects.
func boundSpec(t *v1alpha1.Transport) {
	size := sizeOf(reflect.ValueOf(t.Spec))
	if size <= maxSpec {
		return
	}
	t.Annotations = map[string]string{tooLarge: strconv.Itoa(size)}
	t.Spec.RetryPolicies = nil
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		queue.Bindings, queue.BindingKeys, queue.Formerly = nil, nil, nil
	}
	if sizeOf(reflect.ValueOf(t.Spec)) > maxSpec {
		t.Spec.Workers = nil
	}
}

// checkSize refuses a Transport of which the cache has a part only. What it had made goes on as it is.
func (r *TransportReconciler) checkSize(_ context.Context, run *transportRun) error {
	size, err := strconv.Atoi(run.transport.Annotations[tooLarge])
	if err != nil {
		return nil //nolint:nilerr // it is not there
	}
	return stall(v1alpha1.ReasonInvalid, fmt.Errorf("spec: takes %d kB of the operator's memory, and %d are allowed: name fewer or shorter keys in spec.queues, "+
		"such as patterns of a topic exchange, and rules in spec.retryPolicies, or make several Transports of this one", size>>10, maxSpec>>10))
}

// sizeOf is what a value takes of the memory, with all that it leads to.
func sizeOf(v reflect.Value) int { return int(v.Type().Size()) + sizeBeyond(v) }

// sizeBeyond is what a value leads to.
func sizeBeyond(v reflect.Value) (size int) {
	switch v.Kind() { //nolint:exhaustive // The others lead to nothing.
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return sizeOf(v.Elem())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Len()
		}
		for i := range v.Len() {
			size += sizeOf(v.Index(i))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			size += sizeOf(key) + sizeOf(value)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			size += sizeBeyond(field)
		}
	}
	return size
}
