package main

import (
	"context"
	"time"
)

// watchForStops tells when this process, and so most likely the others too, did not run for a while, as on a machine that was
// suspended: the times that are measured then mean nothing.
func watchForStops(ctx context.Context) {
	const every, late = 100 * time.Millisecond, 2 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if gap := time.Since(last); gap > late {
			tellf("nothing ran for %.1f s: times that are measured now mean nothing", gap.Seconds())
		}
		last = time.Now()
	}
}
