package retry

import (
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// ByHandler stands in place of a strategy's name where the handler's advice decided. No strategy can have this name.
const ByHandler = "(handler)"

// maxAdvisedDelay bounds the delay of AdviseRetry and AdviseRelease, as a strategy's maxDelay bounds that of delayFrom.
const maxAdvisedDelay = defaultDelayFromMax

// advised decides as the handler asks. It is false where the handler asks for nothing, or for something that is unknown, and
// where the policy does not follow it.
func (d *decision) advised(f Failure, rnd Rand) bool {
	f = d.policy.Heeded(f)
	switch f.Advice {
	case AdviseFail:
		d.heed()
		d.end(v1alpha1.ActionFail, ReasonUnrecoverable, "the handler asked for no retry")
	case AdviseStop:
		d.heed()
		d.end(v1alpha1.ActionFail, ReasonUnrecoverable, "the handler asked for no retry, by a negative Retry-After")
	case AdviseDrop:
		d.heed()
		d.end(v1alpha1.ActionDrop, ReasonAdvice, "the handler asked for the message to be dropped")
	case AdviseRetry:
		d.heed()
		if f.RetryAfter != nil {
			d.retryAfter(min(max(*f.RetryAfter, 0), maxAdvisedDelay))
			break
		}
		d.retryByBackoff(rnd)
	case AdviseRelease:
		d.release(f)
	default:
		return false
	}
	return true
}

// release gives the message back without an attempt being counted, until it is older than maxAge. Where the handler asks for no
// delay it is the first of the policy's backoff, without jitter.
func (d *decision) release(f Failure) {
	delay := d.policy.backoff.at(0)
	if f.RetryAfter != nil {
		delay = min(max(*f.RetryAfter, 0), maxAdvisedDelay)
	}
	d.byHandler = true
	d.verdict.Strategy = ByHandler
	d.retry(delay, DelayRange{Nominal: delay, Min: delay, Max: delay})
	if d.verdict.Action != v1alpha1.ActionRetry {
		return
	}
	d.verdict.Reason = ReasonRelease
	d.verdict.Explanation = "again in " + readable(delay) + ", because the handler released the message; no attempt is counted"
	d.verdict.History = d.before
	// How early a message may be is told by the delay that it waits for, and not by a longer one before.
	d.verdict.History.LastDelay = min(d.before.LastDelay, delay)
}

// heed writes down that the handler decided.
func (d *decision) heed() {
	d.byHandler = true
	d.count()
}

// Heeded is the failure without the handler's advice where the policy does not follow it.
func (p *Policy) Heeded(f Failure) Failure {
	if !p.followsAdvice {
		f.Advice = ""
	}
	return f
}

// InOrder is the failure as a strictly ordered queue takes it. A message that is retried for as long as its handler likes
// would stop such a queue, so AdviseRetry and AdviseRelease are left to the policy there.
func (f Failure) InOrder() Failure {
	if f.Advice == AdviseRetry || f.Advice == AdviseRelease {
		f.Advice = ""
	}
	return f
}

// advisedLanes are those of the Ladder that carry out any delay of AdviseRetry in few hops: they cost a Transport three or
// four queues, where the whole ladder would cost each one eleven for what few handlers ask for.
func advisedLanes(maxAge time.Duration) Lanes {
	lanes := Lanes{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute}
	for i, lane := range lanes {
		if lane > maxAge {
			return lanes[:i]
		}
	}
	return lanes
}
