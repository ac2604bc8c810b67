package message

import (
	"time"

	"redrive.dev/redrive/internal/retry"
)

// DecodeFailed reads what Failed wrote: the work queue that the message failed in, and how it was given up. It is false where no worker
// gave the message up: the broker dead-lettered it, or somebody published it there.
func DecodeFailed(m Message, received time.Time) (queue string, final Final, ok bool) {
	r := reader{headers: m.Headers, now: received}
	reason, queue := r.text(HeaderReason, maxName), r.text(HeaderQueue, maxShort)
	if reason == "" || queue == "" {
		return "", Final{}, false
	}
	status, _ := r.number(HeaderErrorStatus)
	return queue, Final{
		Reason:      retry.Reason(reason),
		Explanation: r.text(HeaderExplanation, MaxText),
		Strategy:    r.text(HeaderStrategy, maxStrategy),
		Failure: retry.Failure{
			Source:  retry.Source(r.text(HeaderErrorSource, maxSource)),
			Class:   r.text(HeaderErrorClass, MaxClass),
			Message: r.text(HeaderErrorMessage, MaxText),
			Status:  int(min(max(status, 0), MaxCount)),
		},
		At:     r.time(HeaderFailedAt),
		ID:     r.text(HeaderFailureID, maxName),
		Exit:   r.text(HeaderCrashExit, maxName),
		Worker: r.text(HeaderWorker, maxShort),
	}, true
}
