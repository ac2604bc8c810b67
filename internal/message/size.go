package message

import (
	"reflect"
	"time"
)

// unknownSize is counted for values of types that are not known here.
const unknownSize = 16

// HeaderSize estimates the bytes that headers take in a frame. It is never below the true size.
func HeaderSize(headers map[string]any) int {
	size := 4
	for name, value := range headers {
		size += entrySize(name, value)
	}
	return size
}

func entrySize(name string, value any) int {
	return 1 + len(name) + valueSize(value)
}

// valueSize includes the byte for the type.
func valueSize(value any) int {
	switch v := value.(type) {
	case nil:
		return 1
	case bool, int8, uint8:
		return 2
	case int16, uint16:
		return 3
	case int32, uint32, float32:
		return 5
	case Decimal:
		return 6
	case int, uint, int64, uint64, float64, time.Time:
		return 9
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case map[string]any:
		return 1 + HeaderSize(v)
	case []any:
		size := 5
		for _, item := range v {
			size += valueSize(item)
		}
		return size
	}
	return otherSize(reflect.ValueOf(value))
}

// otherSize measures a client's own table and array types.
func otherSize(value reflect.Value) int {
	size := 5
	switch value.Kind() {
	case reflect.Map:
		for entries := value.MapRange(); entries.Next(); {
			size += 1 + len(entries.Key().String()) + valueSize(entries.Value().Interface())
		}
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			size += valueSize(value.Index(i).Interface())
		}
	case reflect.String:
		size += value.Len()
	default:
		size = unknownSize
	}
	return size
}
