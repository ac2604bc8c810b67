package broker

import (
	"context"
	"reflect"
)

// Meter is told, while answers are read, how many bytes they take in memory. Where it fails, no more is read.
type Meter interface {
	Take(ctx context.Context, bytes int) error
}

type meterKey struct{}

// WithMeter has a meter told of all lists that are read with the context.
func WithMeter(ctx context.Context, meter Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, meter)
}

// metered tells the meter of a context of one row: its text, its fields twice, as they are read and as they are kept, and what its tables hold.
func metered(ctx context.Context, row reflect.Value, text int) error {
	meter, ok := ctx.Value(meterKey{}).(Meter)
	if !ok {
		return nil
	}
	bytes := text + 2*int(row.Type().Size())
	if tables, ok := reflect.TypeAssert[interface{ entries() int }](row); ok {
		const entry = 100 // a key, a value, and their places in a map
		bytes += entry * tables.entries()
	}
	return meter.Take(ctx, bytes)
}

func (r exchangeRow) entries() int { return len(r.Arguments) }
func (r queueRow) entries() int    { return len(r.Arguments) + len(r.EffectiveDefinition) }
func (r bindingRow) entries() int  { return len(r.Arguments) }
func (r policyRow) entries() int   { return len(r.Definition) }
