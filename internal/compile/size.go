package compile

import (
	"fmt"
	"reflect"

	"redrive.dev/redrive/api/v1alpha1"
)

// MaxSpec bounds what the spec of a Transport takes of the operator's memory, in bytes, with its templates. That of a Transport with 64 queues of 32
// keys each, and with 256 rules, takes half of it.
const MaxSpec = 512 << 10

// NoRoom is an annotation that stands, in the operator's cache alone, on an object whose spec is not kept because large ones take too much together: its
// value is the size of the spec. No object comes with it: the API server takes no name with a space.
const NoRoom = "redrive.dev/no room"

// SizeOf is what a spec takes of the memory, in bytes.
func SizeOf[S v1alpha1.TransportSpec | v1alpha1.RetryPolicySpec](spec *S) int {
	return sizeOf(reflect.ValueOf(spec).Elem())
}

// TooLarge is the error of a spec that takes more than MaxSpec.
func TooLarge(size int) error {
	return fmt.Errorf("spec: takes %d kB of the operator's memory, and %d are allowed: name fewer or shorter keys in spec.queues, "+
		"such as patterns of a topic exchange, and rules in spec.retryPolicies, or make several Transports of this one", size>>10, MaxSpec>>10)
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
