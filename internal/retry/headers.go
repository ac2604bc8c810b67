package retry

import (
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// keptHeaders is the number of header values that a scope keeps.
const keptHeaders = 8

// headers are the headers of a message as a map of CEL. It does what CEL's own map does, but makes the value of a text once,
// though all strategies of a policy, and one message after the other, ask for the same.
type headers struct {
	schema *schema
	all    map[string]any
	kept   [keptHeaders]keptHeader
}

type keptHeader struct {
	name  string
	value ref.Val
}

var _ traits.Mapper = (*headers)(nil)

// Find implements traits.Mapper.
func (h *headers) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return h.base().Find(key)
	}
	value, ok := h.all[string(name)]
	if !ok {
		return nil, false
	}
	if text, ok := value.(string); ok && len(text) <= maxShortText {
		return h.text(string(name), text), true
	}
	return h.schema.NativeToValue(value), true
}

// text gives the value that is kept for a header, if it is still the same.
func (h *headers) text(name, text string) ref.Val {
	var place *keptHeader
	for i := range h.kept {
		kept := &h.kept[i]
		if kept.name == name || kept.value == nil {
			place = kept
			break
		}
	}
	if place == nil {
		return types.String(text)
	}
	if last, ok := place.value.(types.String); !ok || string(last) != text {
		*place = keptHeader{name: name, value: types.String(text)}
	}
	return place.value
}

// Contains implements traits.Container.
func (h *headers) Contains(key ref.Val) ref.Val {
	if name, ok := key.(types.String); ok {
		_, found := h.all[string(name)]
		return types.Bool(found)
	}
	return h.base().Contains(key)
}

// Get implements traits.Indexer.
func (h *headers) Get(key ref.Val) ref.Val {
	if value, found := h.Find(key); found {
		return value
	}
	return h.base().Get(key)
}

// base is the map as CEL's own, for all that is rare.
func (h *headers) base() traits.Mapper { return types.NewStringInterfaceMap(h.schema, h.all) }

// Iterator implements traits.Iterable.
func (h *headers) Iterator() traits.Iterator { return h.base().Iterator() }

// Size implements traits.Sizer.
func (h *headers) Size() ref.Val { return types.Int(len(h.all)) }

// ConvertToNative implements ref.Val.
func (h *headers) ConvertToNative(t reflect.Type) (any, error) { return h.base().ConvertToNative(t) } //nolint:wrapcheck // CEL's own

// ConvertToType implements ref.Val.
func (h *headers) ConvertToType(t ref.Type) ref.Val { return h.base().ConvertToType(t) }

// Equal implements ref.Val.
func (h *headers) Equal(other ref.Val) ref.Val {
	if same, ok := other.(*headers); ok {
		other = same.base()
	}
	return h.base().Equal(other)
}

// Type implements ref.Val.
func (h *headers) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (h *headers) Value() any { return h.all }
