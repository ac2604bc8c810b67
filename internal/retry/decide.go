package retry

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// statusUnsupportedMediaType is HTTP's, RFC 9110, 15.5.16.
const statusUnsupportedMediaType = 415

// Decide gives the verdict on a failure. It never fails: an expression that fails at run time does not match, or gives no
// delay, and is reported in Verdict.Problems.
//
// What the handler advises comes first, where the policy follows it; then the strategies, then the policy's own fields.
//
// The verdict's History counts this failure as an attempt, and its retry, if it gets one, against maxRetries unless an
// unlimited strategy or the handler's advice decided. Decide reads rnd only where the backoff has jitter, and keeps none of its arguments.
func (p *Policy) Decide(f Failure, m Message, h History, now time.Time, rnd Rand) Verdict {
	h = h.clamped(now)
	d := decision{policy: p, before: h, age: max(0, now.Sub(h.FirstFailure))}
	d.verdict.History = h
	d.verdict.History.Attempts = increment(h.Attempts)
	if d.advised(f, rnd) {
		d.tally()
		return d.verdict
	}
	asked, given := d.ask(f, m, now)
	d.count()
	switch {
	case d.strategy != nil && d.strategy.action != v1alpha1.ActionRetry:
		d.end(d.strategy.action, ReasonStrategy, "strategy "+strconv.Quote(d.strategy.name)+" decided "+string(d.strategy.action))
	case d.strategy == nil && f.Source == SourceHandler && f.Status == statusUnsupportedMediaType:
		d.end(v1alpha1.ActionFail, ReasonUndecodable, "the handler cannot read messages of this kind: it answered 415")
	case d.immediate():
		d.end(v1alpha1.ActionRetry, ReasonImmediate, fmt.Sprintf("try %d of %d at once", d.before.Immediate+1, p.immediate))
		d.verdict.History.Immediate++
	case d.exhausted():
		d.end(v1alpha1.ActionFail, ReasonMaxRetries, d.explainExhausted())
	case given:
		d.retryAfter(asked)
	default:
		d.retryByBackoff(rnd)
	}
	d.tally()
	return d.verdict
}

// tally writes down the limit that held, and how much of it is used.
func (d *decision) tally() {
	allowed, used := d.limit()
	if d.unlimited() || allowed == unlimitedRetries {
		allowed = NoLimit
	}
	if d.verdict.Reason == ReasonRetry {
		used = increment(used)
	}
	d.verdict.MaxRetries, d.verdict.Retries = allowed, used
}

// decision is the work on one failure.
type decision struct {
	policy *Policy
	// before is the history without this failure, clamped.
	before History
	age    time.Duration
	// byHandler is true where the handler's advice decides.
	byHandler bool
	// strategy that decides; nil where the handler's advice or the policy's own fields do.
	strategy *strategy
	// streak is the number of decisions of that strategy, or of the handler, just before this one.
	streak  int64
	verdict Verdict
}

// ask finds the strategy that decides and the delay that its expression gives, if it gives one.
func (d *decision) ask(f Failure, m Message, now time.Time) (delay time.Duration, given bool) {
	if len(d.policy.strategies) == 0 {
		return 0, false
	}
	s := d.policy.schema.scope(d.policy.decode, m)
	defer s.release()
	s.setFailure(f, d.before, d.age, now)
	for i := range d.policy.strategies {
		candidate := &d.policy.strategies[i]
		matches, err := candidate.when.matches(s)
		if err != nil {
			d.verdict.Problems = append(d.verdict.Problems, err)
			continue
		}
		if !matches {
			continue
		}
		d.strategy = candidate
		if candidate.delayFrom == nil {
			return 0, false
		}
		delay, given, err = candidate.delayFrom.duration(s)
		if err != nil {
			d.verdict.Problems = append(d.verdict.Problems, err)
		}
		return min(max(delay, 0), candidate.maxDelay), given
	}
	return 0, false
}

// count writes down who decided, and for which time in a row.
func (d *decision) count() {
	h := &d.verdict.History
	var name string
	switch {
	case d.byHandler:
		name = ByHandler
	case d.strategy != nil:
		name = d.strategy.name
	default:
		h.Strategy, h.Streak = "", 0
		return
	}
	if d.before.Strategy == name {
		d.streak = d.before.Streak
	}
	h.Strategy, h.Streak = name, increment(d.streak)
	d.verdict.Strategy = name
}

// immediate is true where the message is tried again at once: on its first delivery, whose tries at once are all the attempts
// that were made, and for a failure that no strategy decides on. A strategy that asks for a delay, such as one for throttling,
// would be ignored by a try at once.
func (d *decision) immediate() bool {
	return d.strategy == nil && d.before.Attempts == d.before.Immediate && d.before.Immediate < d.policy.immediate
}

// limit is the number of retries that are allowed, and the number of those used.
func (d *decision) limit() (allowed, used int64) {
	if d.strategy != nil && d.strategy.maxRetries != nil {
		return *d.strategy.maxRetries, d.streak
	}
	return d.policy.maxRetries, d.before.Retries
}

func (d *decision) unlimited() bool {
	return d.byHandler || d.strategy != nil && d.strategy.unlimited
}

func (d *decision) exhausted() bool {
	allowed, used := d.limit()
	return !d.unlimited() && used >= allowed
}

// backoff is the one that holds, and the index that it counts by.
func (d *decision) backoff() (b *backoff, n int64) {
	switch {
	case d.strategy != nil && d.strategy.backoff != nil:
		return d.strategy.backoff, d.streak
	case d.unlimited():
		return &d.policy.backoff, d.streak
	default:
		return &d.policy.backoff, d.before.Retries
	}
}

func (d *decision) end(action v1alpha1.Action, reason Reason, explanation string) {
	d.verdict.Action, d.verdict.Reason, d.verdict.Explanation = action, reason, explanation
}

// retryAfter decides for a retry after a delay that is not the backoff's.
func (d *decision) retryAfter(delay time.Duration) {
	d.retry(delay, DelayRange{Nominal: delay, Min: delay, Max: delay})
}

// retryByBackoff decides for a retry after the delay of the backoff that holds.
func (d *decision) retryByBackoff(rnd Rand) {
	b, n := d.backoff()
	w := b.window(n, d.before.LastDelay)
	d.retry(w.draw(rnd), DelayRange{Nominal: b.at(n), Min: w.min, Max: w.max})
}

// retry decides for a retry after delay, unless the message is too old, or would be by then.
func (d *decision) retry(delay time.Duration, drawnFrom DelayRange) {
	if d.age > d.policy.maxAge {
		d.end(v1alpha1.ActionFail, ReasonMaxAge, fmt.Sprintf("%s since the first failure, maxAge is %s", readable(d.age), d.policy.maxAge))
		return
	}
	if delay > d.policy.maxAge-d.age {
		d.end(v1alpha1.ActionFail, ReasonMaxAge, fmt.Sprintf(
			"the next retry, in %s, would be later than maxAge %s after the first failure", readable(delay), d.policy.maxAge))
		return
	}
	d.end(v1alpha1.ActionRetry, ReasonRetry, d.explainRetry(delay))
	d.verdict.Delay, d.verdict.Range = delay, drawnFrom
	d.verdict.History.LastDelay = delay
	if !d.unlimited() {
		d.verdict.History.Retries = increment(d.before.Retries)
	}
}

func (d *decision) explainExhausted() string {
	allowed, used := d.limit()
	switch {
	case allowed == 0 && used == 0:
		return "maxRetries is 0: the first failure is final"
	case used == allowed:
		return fmt.Sprintf("%d of %d retries used", used, allowed)
	default:
		return fmt.Sprintf("%d retries used, maxRetries is %d", used, allowed)
	}
}

func (d *decision) explainRetry(delay time.Duration) string {
	switch {
	case d.byHandler:
		return "retry in " + readable(delay) + ", which the handler asked for and does not count against maxRetries"
	case d.unlimited():
		return "retry in " + readable(delay) + ", which does not count against maxRetries"
	}
	allowed, used := d.limit()
	if allowed == unlimitedRetries {
		return fmt.Sprintf("retry %d, without a limit, in %s", increment(used), readable(delay))
	}
	// One allocation instead of four: this is written for every retry.
	text := append(make([]byte, 0, 96), "retry "...)
	text = append(strconv.AppendInt(text, increment(used), 10), " of "...)
	text = append(strconv.AppendInt(text, allowed, 10), " in "...)
	return string(append(text, delay.Truncate(time.Millisecond).String()...))
}

// clamped is the history with every number in range.
func (h History) clamped(now time.Time) History {
	h.Attempts = max(h.Attempts, 0)
	h.Retries = max(h.Retries, 0)
	h.Streak = max(h.Streak, 0)
	h.Immediate = max(h.Immediate, 0)
	h.LastDelay = min(max(h.LastDelay, 0), longest)
	if h.FirstFailure.IsZero() || h.FirstFailure.After(now.Add(MaxAhead)) {
		// Without the monotonic clock, which no header carries.
		h.FirstFailure = now.Round(0)
	}
	return h
}

// increment is n + 1, without overflow.
func increment(n int64) int64 {
	if n == math.MaxInt64 {
		return n
	}
	return n + 1
}

// readable is a delay in words, without digits that nobody reads.
func readable(d time.Duration) string {
	return d.Truncate(time.Millisecond).String()
}
