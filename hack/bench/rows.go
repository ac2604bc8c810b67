package main

import (
	"context"
)

// row is what is measured together; it gives one or more lines of the table.
type row struct {
	// name is what -run selects rows by.
	name string
	// peers rows run another worker, which has to be installed.
	peers   bool
	measure func(ctx context.Context, b *bench) ([]result, error)
}

// rows of the table, in its order.
func rows() []row {
	return []row{
		{name: "consume", measure: consume},
		{name: "http, concurrency 1", measure: post(1)},
		{name: "http, concurrency 10", measure: post(10)},
		{name: "http, concurrency 100", measure: post(100)},
		{name: "exec", measure: execute},
		{name: "process, Python", measure: echo("Python", "python3")},
		{name: "process, PHP", measure: echo("PHP", "php")},
		{name: "retry", measure: retried},
		{name: "delay", measure: delay},
		{name: "expressions", measure: expressions},
		{name: "lateness", measure: lateness},
		{name: "queues", measure: spread},
		{name: "footprint", measure: footprint},
		{name: "framework", measure: framework},
		{name: "Symfony Messenger", peers: true, measure: symfony},
	}
}

// versus runs a contest and compares the rates.
func versus(ctx context.Context, b *bench, c *contest, atLeast float64) ([]result, error) {
	bare, ours, err := b.compare(ctx, c)
	if err != nil {
		return nil, err
	}
	return []result{faster(c.name+" (messages/s)", median(bare, rateOf), median(ours, rateOf), atLeast)}, nil
}

// consume compares with the fastest loop there is on the same library: it handles nothing and acknowledges each message, in one goroutine.
// With more of them it is slower, for they only wait for one another.
func consume(ctx context.Context, b *bench) ([]result, error) {
	c := &contest{
		name: "consume: in-process no-op, quorum queue, prefetch 256", messages: b.messages,
		bare: side{run: bare(256, 1, alike(handleNothing))},
		ours: side{play: play{concurrency: 128, handler: inProcess()}, run: ours(nothing)},
	}
	c.bare.play = c.ours.play
	bare, ours, err := b.compare(ctx, c)
	if err != nil {
		return nil, err
	}
	line := func(name string, of func(*measured) float64) result {
		return cheaper("consume: "+name, median(bare, of), median(ours, of), 0)
	}
	return []result{
		faster(c.name+" (messages/s)", median(bare, rateOf), median(ours, rateOf), 0.90),
		line("CPU for 100,000 messages (s)", cpuOf),
		line("allocations for a message", allocationsOf),
		line("allocated for a message (bytes)", bytesOf),
	}, nil
}
