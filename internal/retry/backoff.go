package retry

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// What a backoff is where its fields are left out.
const (
	defaultDelay      = time.Second
	defaultMultiplier = 2
	defaultMaxDelay   = time.Minute
)

// longest is the bound of all arithmetic on delays, 146 years: below it no sum of two delays overflows.
const longest = time.Duration(1<<62 - 1)

// backoff is a sequence of delays, counted from 0 for the first retry.
type backoff struct {
	kind  v1alpha1.BackoffType
	delay time.Duration
	// step of Linear.
	step time.Duration
	// multiplier of Exponential, at least 1.
	multiplier float64
	// delays of Explicit, at least one.
	delays []time.Duration
	// maxDelay bounds each delay, jitter included; longest where there is no bound.
	maxDelay time.Duration
	jitter   jitter
}

func compileBackoff(spec *v1alpha1.Backoff) (backoff, error) {
	if spec == nil {
		spec = &v1alpha1.Backoff{Type: v1alpha1.BackoffExponential}
	}
	b := backoff{kind: spec.Type, delay: defaultDelay, multiplier: defaultMultiplier, maxDelay: longest}
	var err error
	if b.jitter, err = compileJitter(spec.Jitter); err != nil {
		return b, err
	}
	if spec.Delay != nil {
		b.delay = spec.Delay.Duration.Duration
	}
	b.step = b.delay
	if spec.Step != nil {
		b.step = spec.Step.Duration.Duration
	}
	for _, d := range spec.Delays {
		b.delays = append(b.delays, d.Duration.Duration)
	}
	if spec.Multiplier != nil {
		if b.multiplier, err = strconv.ParseFloat(*spec.Multiplier, 64); err != nil {
			return b, fmt.Errorf("backoff.multiplier is not a number: %q", *spec.Multiplier)
		}
	}
	switch {
	case spec.MaxDelay != nil:
		b.maxDelay = spec.MaxDelay.Duration.Duration
	case b.bounded():
		b.maxDelay = max(defaultMaxDelay, b.delay)
	}
	return b, b.validate()
}

// bounded says whether the delays grow, so that they need a bound where none is given.
func (b *backoff) bounded() bool {
	return b.kind == v1alpha1.BackoffLinear || b.kind == v1alpha1.BackoffExponential ||
		b.jitter.kind == v1alpha1.JitterDecorrelated
}

// validate refuses what the arithmetic does not stand. The API's own validation is stricter.
func (b *backoff) validate() error {
	switch b.kind {
	case v1alpha1.BackoffConstant, v1alpha1.BackoffLinear, v1alpha1.BackoffExponential:
	case v1alpha1.BackoffExplicit:
		if len(b.delays) == 0 {
			return errors.New("backoff.delays is empty")
		}
		if b.jitter.kind == v1alpha1.JitterDecorrelated {
			return errors.New("backoff.jitter Decorrelated does not go with type Explicit")
		}
	default:
		return fmt.Errorf("backoff.type is unknown: %q", b.kind)
	}
	if math.IsNaN(b.multiplier) || math.IsInf(b.multiplier, 0) || b.multiplier < 1 {
		return fmt.Errorf("backoff.multiplier is not a number from 1 up: %v", b.multiplier)
	}
	for _, d := range append([]time.Duration{b.delay, b.step, b.maxDelay}, b.delays...) {
		if d < 0 || d > longest {
			return fmt.Errorf("backoff has a delay that is negative or too long: %s", d)
		}
	}
	return nil
}

// at is the n-th delay without jitter, for any n that is not negative.
func (b *backoff) at(n int64) time.Duration {
	d := b.delay
	switch b.kind {
	case v1alpha1.BackoffConstant:
	case v1alpha1.BackoffLinear:
		d = add(b.delay, times(b.step, n))
	case v1alpha1.BackoffExponential:
		d = b.exponential(n)
	case v1alpha1.BackoffExplicit:
		d = b.delays[min(n, int64(len(b.delays)-1))]
	}
	return min(d, b.maxDelay)
}

func (b *backoff) exponential(n int64) time.Duration {
	if b.delay == 0 {
		return 0
	}
	exact := float64(b.delay) * math.Pow(b.multiplier, float64(n))
	if exact >= float64(b.maxDelay) {
		return b.maxDelay
	}
	// Rounded, because 1s times 1.1 times 1.1 is not a nanosecond less than 1.21s.
	return time.Duration(math.Round(exact))
}

// steady says whether the n-th delay, with its window, repeats for ever. top is the end of that window, which is what
// Decorrelated jitter grows by.
func (b *backoff) steady(n int64, top time.Duration) bool {
	switch {
	case b.jitter.kind == v1alpha1.JitterDecorrelated:
		return top >= b.maxDelay
	case b.kind == v1alpha1.BackoffConstant:
		return true
	case b.kind == v1alpha1.BackoffExplicit:
		return n >= int64(len(b.delays)-1)
	case b.kind == v1alpha1.BackoffLinear && b.step == 0, b.multiplier == 1 && b.kind == v1alpha1.BackoffExponential:
		return true
	default:
		return b.at(n) >= b.maxDelay
	}
}

// step is one retry of a schedule as it may come at the earliest.
type step struct {
	n int64
	// window of the delay.
	window window
	// age of the message, at the least, when the delay begins.
	age time.Duration
	// steady is true where all further steps are like this one.
	steady bool
}

// steps are the retries that limit and maxAge can reach, with the windows as wide as they can be.
func (b *backoff) steps(limit int64, maxAge time.Duration) iter.Seq[step] {
	return func(yield func(step) bool) {
		var age, last time.Duration
		for n := range limit {
			w := b.window(n, last)
			if add(age, w.min) > maxAge || !yield(step{n: n, window: w, age: age, steady: b.steady(n, w.max)}) {
				return
			}
			age, last = add(age, w.min), w.max
		}
	}
}

// longest is the longest delay of the retries that limit and maxAge can reach.
func (b *backoff) longest(limit int64, maxAge time.Duration) time.Duration {
	var longest time.Duration
	for s := range b.steps(limit, maxAge) {
		longest = max(longest, s.window.max)
		if s.steady {
			break
		}
		if s.n == maxSteps {
			// What still grows here grows to the end.
			longest = max(longest, b.window(limit-1, longest).max)
			break
		}
	}
	return min(longest, maxAge)
}

// add is a + b for two delays from 0 to longest, and longest at the most.
func add(a, b time.Duration) time.Duration {
	return min(a+b, longest)
}

// times is d * n for a delay and a count that are not negative, and longest at the most.
func times(d time.Duration, n int64) time.Duration {
	if n > 0 && d > longest/time.Duration(n) {
		return longest
	}
	return d * time.Duration(n)
}
