package objectcache

import (
	"strconv"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
)

// tooLarge is an annotation that stands on a Transport in the cache alone, in place of what is not kept of its spec: its value is the size of that. It
// is never written, and annotations that come with an object are not kept. No object comes with this one: the API server takes no name with a space.
const tooLarge = "redrive.dev/too large"

// boundSpec takes off a Transport whose spec is too large what may be long, and notes its size; before is the note of an earlier time, since client-go may
// transform an object twice. What its deletion needs stays, and who handles its quarantined messages.
func boundSpec(t *v1alpha1.Transport, before string) {
	size := compile.SizeOf(&t.Spec)
	if noted, err := strconv.Atoi(before); err == nil {
		size = max(size, noted)
	}
	if size <= compile.MaxSpec {
		return
	}
	t.Annotations = map[string]string{tooLarge: strconv.Itoa(size)}
	cut(&t.Spec, compile.MaxSpec)
}

// cut takes off what may be long, and the workers where they are.
func cut(spec *v1alpha1.TransportSpec, most int) {
	spec.RetryPolicies = nil
	for i := range spec.Queues {
		queue := &spec.Queues[i]
		queue.Bindings, queue.BindingKeys, queue.PreviousNames = nil, nil, nil
	}
	if compile.SizeOf(spec) > most {
		spec.Workers = nil
	}
}

// CheckSize refuses a Transport of which the cache has a part only.
func CheckSize(t *v1alpha1.Transport) error {
	size, err := strconv.Atoi(t.Annotations[tooLarge])
	if err != nil {
		return nil //nolint:nilerr // it is not there
	}
	return outcome.Stalled(v1alpha1.ReasonInvalid, compile.TooLarge(size))
}
