package retry

import (
	"cmp"
	"fmt"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// jitter spreads a delay over a window.
type jitter struct {
	kind v1alpha1.JitterType
	// percent of Proportional, 1 to 100.
	percent int64
}

func compileJitter(spec *v1alpha1.Jitter) (jitter, error) {
	if spec == nil {
		return jitter{kind: v1alpha1.JitterNone}, nil
	}
	j := jitter{kind: cmp.Or(spec.Type, v1alpha1.JitterNone)}
	switch j.kind {
	case v1alpha1.JitterNone, v1alpha1.JitterFull, v1alpha1.JitterEqual, v1alpha1.JitterDecorrelated:
		return j, nil
	case v1alpha1.JitterProportional:
		if spec.Percent != nil {
			j.percent = int64(*spec.Percent)
		}
		if j.percent < 1 || j.percent > 100 {
			return j, fmt.Errorf("backoff.jitter.percent is not from 1 to 100: %d", j.percent)
		}
		return j, nil
	default:
		return j, fmt.Errorf("backoff.jitter.type is unknown: %q", j.kind)
	}
}

// window is the range that a delay is drawn from, both ends included.
type window struct {
	min, max time.Duration
}

// window of the n-th delay, never over maxDelay. last is the delay before this one; it matters to Decorrelated only, and
// not to the first delay.
func (b *backoff) window(n int64, last time.Duration) window {
	d := b.at(n)
	w := window{min: d, max: d}
	switch b.jitter.kind {
	case v1alpha1.JitterNone:
	case v1alpha1.JitterProportional:
		// In two parts, so that the product does not overflow.
		spread := d/100*time.Duration(b.jitter.percent) + d%100*time.Duration(b.jitter.percent)/100
		w = window{min: d - spread, max: add(d, spread)}
	case v1alpha1.JitterFull:
		w.min = 0
	case v1alpha1.JitterEqual:
		w.min = d / 2
	case v1alpha1.JitterDecorrelated:
		if n == 0 {
			last = 0
		}
		w = window{min: b.delay, max: times(max(last, b.delay), 3)}
	}
	return window{min: min(w.min, b.maxDelay), max: min(w.max, b.maxDelay)}
}

// draw takes a delay from the window, each with the same chance.
func (w window) draw(rnd Rand) time.Duration {
	if w.max <= w.min {
		return w.min
	}
	return w.min + time.Duration(rnd.Int64N(int64(w.max-w.min)+1))
}
