package main

import (
	"context"
)

// spread compares a worker with 64 queues with one that has one, with as many messages and places in all. 64 queues have a prefetch of
// 4 each.
func spread(ctx context.Context, b *bench) ([]result, error) {
	const queues = 64
	scene := play{concurrency: 128, handler: inProcess()}
	many := scene
	many.queues = queues
	return versus(ctx, b, &contest{
		name: "queues: 64 in one worker beside 1", messages: b.messages,
		bare: side{play: scene, run: ours(nothing)},
		ours: side{play: many, run: ours(nothing)},
	}, 0)
}
