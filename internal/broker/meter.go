package broker

import (
	"context"
	"reflect"
)

// Meter is told, while answers are read, how many bytes they take in memory; fewer than none are those that are not kept any more. Where it fails, no more is
// read.
type Meter interface {
	Take(ctx context.Context, bytes int) error
}

type meterKey struct{}

// WithMeter has a meter told of all lists that are read with the context.
func WithMeter(ctx context.Context, meter Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, meter)
}

// metered tells the meter of a context of one row: its fields twice, as they are read and as they are kept, and what they lead to. What counts is
// what was decoded, and not its text: a list of empty strings takes five times its text, and each byte that is no UTF-8 becomes three.
func metered(ctx context.Context, row reflect.Value) error {
	if ctx.Value(meterKey{}) == nil {
		return nil
	}
	return take(ctx, 2*int(row.Type().Size())+beyond(row))
}

// take tells the meter of a context of some bytes.
func take(ctx context.Context, bytes int) error {
	if meter, ok := ctx.Value(meterKey{}).(Meter); ok {
		return meter.Take(ctx, bytes)
	}
	return nil
}

// beyond is what a value leads to, in bytes.
func beyond(v reflect.Value) (bytes int) {
	const entry = 100 // a key, a value, and their places in a map
	switch v.Kind() { //nolint:exhaustive // The others lead to nothing.
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return int(v.Elem().Type().Size()) + beyond(v.Elem())
		}
	case reflect.Slice:
		bytes = v.Cap() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			bytes += beyond(v.Index(i))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			bytes += entry + beyond(key) + beyond(value)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			bytes += beyond(field)
		}
	}
	return bytes
}
