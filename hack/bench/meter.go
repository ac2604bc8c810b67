package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// longestRun bounds one run of one side.
const longestRun = 5 * time.Minute

// meter times a run by its handled messages. Unless the run says when it began, the first fifth of them is not timed: connections, the
// heap, and the worker's prefetch, which begins small, come to their steady state meanwhile.
type meter struct {
	total, warm  int64
	count        atomic.Int64
	began, ended atomic.Int64
	timed        atomic.Int64
	done         chan struct{}
	told         float64
}

func newMeter(total int) *meter {
	m := &meter{total: int64(total), warm: int64(total / 5), done: make(chan struct{})}
	m.timed.Store(m.total - m.warm - 1)
	return m
}

// begin has all messages timed, from the first call on.
func (m *meter) begin() {
	if m.timed.Swap(m.total) != m.total {
		m.began.Store(time.Now().UnixNano())
	}
}

// tick counts a message.
func (m *meter) tick() {
	switch m.count.Add(1) {
	case m.total:
		m.ended.Store(time.Now().UnixNano())
		close(m.done)
	case m.warm + 1:
		m.began.CompareAndSwap(0, time.Now().UnixNano())
	}
}

// wait returns when all are handled.
func (m *meter) wait(ctx context.Context) error {
	timer := time.NewTimer(longestRun)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%d of %d messages handled after %s", m.count.Load(), m.total, longestRun)
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the user's interrupt
	}
}

// tell is for what measures itself.
func (m *meter) tell(rate float64) { m.told = rate }

// rate is in messages a second.
func (m *meter) rate() float64 {
	if m.told > 0 {
		return m.told
	}
	return float64(m.timed.Load()) / time.Duration(m.ended.Load()-m.began.Load()).Seconds()
}
