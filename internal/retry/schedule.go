package retry

import (
	"fmt"
	"math"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// How a long schedule is shortened: beyond maxRuns different delays, the first headRuns and the last are shown.
const (
	maxRuns  = 5
	headRuns = 3
)

// manyRetries is the largest maxRetries of the API. What goes further is unlimited.
const manyRetries = 1_000_000

// Schedule shows the tries at once and the delays of the policy's own backoff in words: "2 at once, then 1s, 2s, 4s, then
// failed". Equal delays in a row are counted, long schedules are shortened, and jitter is shown as the range that the delay
// is drawn from. Where maxAge ends the retries before maxRetries does, however the draws fall, it says so.
func (p *Policy) Schedule() string {
	schedule, retries := p.backoff.schedule(p.maxRetries, p.maxAge)
	if p.immediate == 0 {
		return schedule
	}
	if retries == 0 {
		schedule = "failed"
	}
	return fmt.Sprintf("%d at once, then %s", p.immediate, schedule)
}

// schedule shows the delays of a backoff in words, and counts the retries.
func (b *backoff) schedule(limit int64, maxAge time.Duration) (text string, retries int64) {
	if limit == 0 {
		return "none: the first failure is final", 0
	}
	unlimited := limit > manyRetries
	limit = min(limit, manyRetries)
	var runs []run
	for s := range b.steps(limit, maxAge) {
		count := int64(1)
		if s.steady {
			count = min(limit-s.n, fitting(maxAge-s.age, s.window.min))
		}
		runs = appendRun(runs, run{text: b.describe(s), count: count})
		retries += count
		if s.steady {
			break
		}
	}
	if retries == 0 {
		return "none: the first delay is longer than maxAge " + short(maxAge), 0
	}
	end := ", then failed"
	if retries < limit || unlimited {
		end = fmt.Sprintf(", then failed (maxAge %s)", short(maxAge))
	}
	return join(runs) + end, retries
}

// fitting is how often a delay fits into a span of time.
func fitting(span, delay time.Duration) int64 {
	if delay <= 0 {
		return math.MaxInt64
	}
	return int64(span / delay)
}

// run is a number of equal delays in a row.
type run struct {
	text  string
	count int64
}

// appendRun keeps the first maxRuns runs and the last one.
func appendRun(runs []run, next run) []run {
	last := len(runs) - 1
	switch {
	case last >= 0 && runs[last].text == next.text:
		runs[last].count += next.count
	case last == maxRuns:
		runs[last] = next
	default:
		runs = append(runs, next)
	}
	return runs
}

func join(runs []run) string {
	texts := make([]string, len(runs))
	for i, r := range runs {
		texts[i] = r.text
		if r.count > 1 {
			texts[i] = fmt.Sprintf("%s (×%d)", r.text, r.count)
		}
	}
	if len(texts) <= maxRuns {
		return strings.Join(texts, ", ")
	}
	return strings.Join(texts[:headRuns], ", ") + ", … " + texts[len(texts)-1]
}

// describe shows the delay of a step, or the range that it is drawn from.
func (b *backoff) describe(s step) string {
	d := b.at(s.n)
	switch {
	case s.window.min == s.window.max:
		return short(s.window.max)
	case b.jitter.kind == v1alpha1.JitterProportional && s.window.max-d == d-s.window.min:
		return fmt.Sprintf("%s ±%d%%", short(d), b.jitter.percent)
	default:
		return short(s.window.min) + " to " + short(s.window.max)
	}
}

// Readable is a span of time for people, without its zero parts: "1h", not "1h0m0s".
func Readable(d time.Duration) string { return short(d) }

// short is a delay without its zero parts.
func short(d time.Duration) string {
	text := readable(d)
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
