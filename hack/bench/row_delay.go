package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	public "redrive.dev/redrive/handler"
)

const (
	// between two messages of the row of the delay there is so much time: that is low load.
	between = 20 * time.Millisecond
	// latest is how much later than the lane's time all but one in a hundred attempts may begin.
	latest = 25 * time.Millisecond
)

// delay measures how much later than asked for the second attempt begins, at low load.
func delay(ctx context.Context, b *bench) (_ []result, err error) {
	s, err := b.broker.setUp(ctx, play{concurrency: 10, handler: inProcess(), delays: []time.Duration{laneDelay}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.tearDown(context.WithoutCancel(ctx))) }()
	messages := 100 * (b.rounds + 1)
	m := newMeter(messages)
	var mu sync.Mutex
	failed, late := map[string]time.Time{}, make([]time.Duration, 0, messages)
	handle := func(_ context.Context, message *public.Message) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if message.Attempt == 1 {
			failed[message.ID] = time.Now()
			return errOnce
		}
		late = append(late, now.Sub(failed[message.ID])-laneDelay)
		return nil
	}
	var publishing sync.WaitGroup
	var published error
	publishing.Go(func() {
		tick := time.NewTicker(between)
		defer tick.Stop()
		for i := 0; i < messages && published == nil; i++ {
			published = s.send(ctx, letter(i))
			<-tick.C
		}
	})
	err = ours(handle)(ctx, s, m)
	publishing.Wait()
	if err = errors.Join(err, published); err != nil {
		return nil, err
	}
	slices.Sort(late)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	earliest, p99 := late[0], late[len(late)*99/100]
	inTime := 0.0
	if earliest >= 0 {
		inTime = 1
	}
	b.tellf("later than the lane's time: least %s, median %s, p99 %s, most %s", earliest, late[len(late)/2], p99, late[len(late)-1])
	return []result{
		{Name: "delay: earliest of a retry after 1 s, never early (ms late)", Ours: ms(earliest), Ratio: inTime, AtLeast: 1},
		cheaper(fmt.Sprintf("delay: p99 of a retry after 1 s, at most %s (ms late)", latest), ms(latest), ms(p99), 1),
	}, nil
}
