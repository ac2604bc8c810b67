package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// steady measures polls in which nothing happens.
func (r *operatorRun) steady(ctx context.Context, _ *bareRun) ([]result, error) {
	if err := r.again(ctx, r.poll); err != nil {
		return nil, err
	}
	if err := pause(ctx, 2*r.poll); err != nil {
		return nil, err
	}
	before, err := r.mark()
	if err != nil {
		return nil, err
	}
	sums, _, err := r.manager.metric(ctx, reconcilesMetric, errorsMetric)
	if err != nil {
		return nil, err
	}
	tellf("%d polls, %s each", r.polls, r.poll)
	go r.manager.profile(ctx, r.settings, "profile?seconds=30", "steady-cpu")
	if err := pause(ctx, time.Duration(r.polls)*r.poll); err != nil {
		return nil, err
	}
	after, err := r.mark()
	if err != nil {
		return nil, err
	}
	then, answers, err := r.manager.metric(ctx, reconcilesMetric, errorsMetric)
	if err != nil || !answers {
		return nil, errors.Join(errors.New("the manager does not answer"), err)
	}
	polls := after.at.Sub(before.at).Seconds() / r.poll.Seconds()
	requests, api := after.broker.since(before.broker), after.api.since(before.api)
	tellf("steady: the broker %v, the API server %v, %.0f reconciles, %.0f errors, %.1f s of CPU, %.0f MB", requests, api,
		then[0]-sums[0], then[1]-sums[1], (after.usage.cpu - before.usage.cpu).Seconds(), after.usage.peak)
	r.manager.profile(ctx, r.settings, "heap", "steady-heap")
	return []result{
		limited(fmt.Sprintf("steady state, %d polls: writes to the broker", r.polls), 0, float64(requests.writes()), 0),
		limited("… writes to the API server", 0, float64(api.total()), 0),
		limited("… snapshots, beside one for each vhost and poll", polls*float64(r.load.vhosts), float64(requests[listing]), snapshotsOfAPoll),
		shown("… looks at Transports, beside one for each and poll", polls*float64(r.transports), then[0]-sums[0]),
		shown("… CPU of the manager for a poll (s)", 0, (after.usage.cpu-before.usage.cpu).Seconds()/polls),
		limited("… peak memory of the manager (MB)", memory, after.usage.peak, 1),
	}, nil
}
