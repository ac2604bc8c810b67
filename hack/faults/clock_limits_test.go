package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// visits are the calls of a partner in their order.
type visits struct {
	mu    sync.Mutex
	times []time.Time
	calls []call
}

// note a call.
func (v *visits) note(c call) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.times, v.calls = append(v.times, time.Now()), append(v.calls, c)
}

// count the calls of the n-th attempt and later ones.
func (v *visits) count(attempt int) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, c := range v.calls {
		if c.attempt >= attempt {
			n++
		}
	}
	return n
}

// within checks that there were never more calls of an attempt since a time than a burst and a rate allow. A turn is given before its call
// comes, so that the machine's being busy makes them fewer.
func (v *visits) within(t *testing.T, attempt int, began time.Time, burst, perSecond float64) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0.0
	for i, c := range v.calls {
		if c.attempt < attempt {
			continue
		}
		n++
		if most := burst + perSecond*v.times[i].Sub(began).Seconds(); n > most {
			t.Fatalf("%.0f calls within %s, at most %.1f are allowed", n, v.times[i].Sub(began), most)
		}
	}
}

// attempts of each message are numbered one after the other.
func (v *visits) numbered(t *testing.T) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	last := map[int]int{}
	for _, c := range v.calls {
		if last[c.id]++; c.attempt != last[c.id] {
			t.Fatalf("call %d for message %d is its attempt %d", last[c.id], c.id, c.attempt)
		}
	}
}

// longestPause between two calls.
func (v *visits) longestPause() (longest time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.times[1:] {
		longest = max(longest, v.times[i+1].Sub(v.times[i]))
	}
	return longest
}

// hours are the ways of a clock: back and forward again, and on, and back.
var hours = []time.Duration{-time.Hour, 0, time.Hour, 0, time.Hour}

// The limiter goes on at its rate: it neither waits for an hour to come again, nor takes one that was put in for time that has passed, in
// which its bucket would have filled. With a key, what has no turn yet waits in lanes of up to an hour.
func TestRateLimit_HoldsWhenTheClockStepsAnHour(t *testing.T) {
	testtransport.Long(t)
	for name, key := range map[string]*string{"without a key": nil, "with a key": new("message.routingKey")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds(t, func(t *testing.T) { stepUnderRateLimit(t, key) })
		})
	}
}

func stepUnderRateLimit(t *testing.T, key *string) {
	t.Helper()
	const perSecond, burst, messages = 20, 40, 240
	calls := &visits{}
	s := newScene(t, testbroker.Shared(t), plan{
		policy: testtransport.Explicit(time.Second), steppedClock: true,
		answer: func(c call) int {
			calls.note(c)
			return http.StatusOK
		},
		change: func(worker *v1alpha1.Worker) {
			worker.RateLimits = []v1alpha1.RateLimit{{Name: "partner", PerSecond: intstr.FromInt32(perSecond), Burst: new(int32(burst)), Key: key}}
		},
	})
	began := time.Now()
	s.publish(messages)
	for i, offset := range hours {
		due := messages * (i + 1) / (len(hours) + 1)
		s.await(atOnceWithin, fmt.Sprint(due, " calls"), func() bool { return calls.count(1) >= due })
		s.stepClock(offset)
	}
	s.hasEnded(atOnceWithin, 0)
	calls.within(t, 1, began, burst, perSecond)
	calls.numbered(t)
	s.settle(bounds{faults: len(hours)})
}

// Retries that the budget sends away wait in lanes, by the clock. Those that come are no more than without a step.
func TestRetryBudget_HoldsWhenTheClockStepsAnHour(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const perSecond, messages = 10, 120
		window := 10 * time.Second
		calls := &visits{}
		s := newScene(t, testbroker.Shared(t), plan{
			policy: testtransport.Explicit(time.Second), steppedClock: true,
			answer: func(c call) int {
				calls.note(c)
				return failsFirst(c)
			},
			change: func(worker *v1alpha1.Worker) {
				worker.RetryBudget = &v1alpha1.RetryBudget{Percent: 1, Window: v1alpha1.NewDuration(window), MinPerSecond: new(int32(perSecond))}
			},
		})
		began := time.Now()
		s.publish(messages)
		// The clock is right from zero on, and once it has been put forward, from there.
		for i, offset := range []time.Duration{-time.Hour, 0, time.Hour} {
			due := messages * (i + 1) / 5
			if offset == 0 { // what was sent away waits for the clock to be right
				due = 0
			}
			s.await(atOnceWithin, fmt.Sprint(due, " retries"), func() bool { return calls.count(2) >= due })
			s.stepClock(offset)
		}
		s.hasEnded(atOnceWithin, 0)
		// The floor is a bucket that holds a tenth of what the window allows; the share of the first attempts is one retry.
		calls.within(t, 2, began, window.Seconds()/10*perSecond+1, perSecond)
		calls.numbered(t)
		if first, retries := calls.count(1)-calls.count(2), calls.count(2); first != messages || retries != messages {
			t.Errorf("%d first attempts and %d retries of %d messages", first, retries, messages)
		}
		s.settle(bounds{faults: 3})
	})
}

// An open breaker neither probes at once because an hour seems to have passed, nor stays open for one more.
func TestBreaker_KeepsToItsTimeWhenTheClockStepsAnHour(t *testing.T) {
	testtransport.Long(t)
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			rounds(t, func(t *testing.T) {
				const openFor, messages = 4 * time.Second, 40
				var broken atomic.Bool
				calls := &visits{}
				s := newScene(t, testbroker.Shared(t), plan{
					policy: testtransport.Explicit(slices.Repeat([]time.Duration{time.Second}, 10)...), steppedClock: true,
					answer: func(c call) int {
						calls.note(c)
						if broken.Load() {
							return http.StatusServiceUnavailable
						}
						return http.StatusOK
					},
					change: func(worker *v1alpha1.Worker) {
						worker.CircuitBreaker = &v1alpha1.CircuitBreaker{
							MinimumCalls: new(int32(2)), OpenFor: v1alpha1.NewDuration(openFor), MaxOpenFor: v1alpha1.NewDuration(openFor),
						}
					},
				})
				broken.Store(true)
				s.publish(messages)
				s.await(atOnceWithin, "the breaker to open", func() bool {
					return strings.Contains(string(s.group.workers[0].log.end()), "breaker opens")
				})
				s.stepClock(step)
				broken.Store(false)
				// What has failed before a step back waits for the clock to be right; the others show that the handler works.
				failed := s.Waiting()
				s.await(worksWithin, "the others to be handled", func() bool { return len(s.ends()) >= messages-failed-2*concurrency })
				s.stepClock(max(step, 0))
				s.hasEnded(atOnceWithin, 0)
				if pause := calls.longestPause(); pause < openFor*8/10 { // a tenth less is drawn, and a call takes its time
					t.Errorf("the longest time without a call is %s, and the breaker is open for %s", pause, openFor)
				}
				calls.numbered(t)
				s.settle(bounds{faults: 1})
			})
		})
	}
}
