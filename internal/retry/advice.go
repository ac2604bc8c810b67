package retry

import (
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// ByHandler stands in place of a strategy's name where the handler's advice decided. No strategy can have this name.
const ByHandler = "(handler)"

// maxAdvisedDelay bounds the delay of AdviseRetry, as a strategy's maxDelay bounds that of delayFrom.
const maxAdvisedDelay = defaultDelayFromMax

// advised decides as the handler asks. It is false where the handler asks for nothing, or for something that is unknown, and
// where the policy does not follow it.
func (d *decision) advised(f Failure, rnd Rand) bool {
	if !d.policy.followsAdvice {
		return false
	}
	switch f.Advice {
	case AdviseFail:
		d.heed()
		d.end(v1alpha1.ActionFail, ReasonUnrecoverable, "the handler asked for no retry")
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
	default:
		return false
	}
	return true
}

// heed writes down that the handler decided.
func (d *decision) heed() {
	d.byHandler = true
	d.count()
}

// InOrder is the failure as a strictly ordered queue takes it. A message that is retried for as long as its handler likes
// would stop such a queue, so AdviseRetry is left to the policy there.
func (f Failure) InOrder() Failure {
	if f.Advice == AdviseRetry {
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
