package message

import (
	"slices"
	"strings"
)

// HeaderPrefix starts the name of every header that belongs to Redrive. Bindings with `x-match: all` ignore headers that
// start with `x-`, so ours do not.
const HeaderPrefix = "redrive-"

// Headers that a message carries between its attempts. Times are milliseconds since 1970 as a 64-bit integer, spans of
// time are milliseconds, counts are 64-bit integers, the rest is text.
const (
	// HeaderID is the identity of a message that came without the property message-id.
	HeaderID = HeaderPrefix + "id"
	// HeaderAttempts counts the attempts that failed.
	HeaderAttempts = HeaderPrefix + "attempts"
	// HeaderRetries counts the retries that maxRetries limits.
	HeaderRetries = HeaderPrefix + "retries"
	// HeaderStrategy names the strategy that decided last.
	HeaderStrategy = HeaderPrefix + "strategy"
	// HeaderStreak counts the consecutive decisions of that strategy.
	HeaderStreak = HeaderPrefix + "streak"
	// HeaderFirstFailure is the time of the first failure.
	HeaderFirstFailure = HeaderPrefix + "first-failure"
	// HeaderNotBefore is the time before which the message is not handled.
	HeaderNotBefore = HeaderPrefix + "not-before"
	// HeaderDelay is the delay that was asked for last; the lanes may take a little longer.
	HeaderDelay = HeaderPrefix + "delay"
	// HeaderLane chooses the lane in which the message waits.
	HeaderLane = HeaderPrefix + "lane"
	// HeaderExchange is the exchange that the message was first published to.
	HeaderExchange = HeaderPrefix + "exchange"
	// HeaderRoutingKey is the routing key that the message was first published with.
	HeaderRoutingKey = HeaderPrefix + "routing-key"
	// HeaderDeadline is the time after which the message is not handled any more.
	HeaderDeadline = HeaderPrefix + "deadline"
	// HeaderHistory is the bounded list of failed attempts, as JSON.
	HeaderHistory = HeaderPrefix + "history"
	// HeaderCrashes counts the processes that the message has brought down on its own.
	HeaderCrashes = HeaderPrefix + "crashes"
	// HeaderQuarantine is true on a message that goes back to its work queue because its quarantine queue takes none: it still has to go there.
	HeaderQuarantine = HeaderPrefix + "quarantine"
	// HeaderCarry is what the handler's last failure asked to have back with the next attempt.
	HeaderCarry = HeaderPrefix + "carry"
	// HeaderPriority is the producer's priority of a message that is retried with another one.
	HeaderPriority = HeaderPrefix + "priority"
	// HeaderExpiration is the producer's property expiration, in milliseconds as text: no copy carries it as one.
	HeaderExpiration = HeaderPrefix + "expiration"
	// HeaderUserID is the property user-id of the producer's login: the broker takes no copy that carries it as one. Anybody can
	// write this header, so it proves nothing.
	HeaderUserID = HeaderPrefix + "user-id"
	// HeaderOriginal is the table of the headers that the message had when it first came to its work queue, and that would do harm
	// on a copy under their own names; see isRecord.
	HeaderOriginal = HeaderPrefix + "original-headers"
	// HeaderTraceparent is the span of the last attempt as a W3C traceparent. That of the next attempt links to it.
	HeaderTraceparent = HeaderPrefix + "traceparent"
	// HeaderPublishID belongs to the publisher, which matches returned messages by it. It never outlives one publication.
	HeaderPublishID = HeaderPrefix + "publish-id"
)

// Headers that only a failed message carries.
const (
	// HeaderReason is the cause of the failure in one word.
	HeaderReason = HeaderPrefix + "reason"
	// HeaderExplanation is the cause in a sentence.
	HeaderExplanation = HeaderPrefix + "explanation"
	// HeaderFailedAt is the time at which the message was given up.
	HeaderFailedAt = HeaderPrefix + "failed-at"
	// HeaderFailureID tells this failure of the message from all others: copies of a failed message share it.
	HeaderFailureID = HeaderPrefix + "failure-id"
	// HeaderQueue is the work queue in which the message failed.
	HeaderQueue = HeaderPrefix + "queue"
	// HeaderErrorSource says where the last failure came from.
	HeaderErrorSource = HeaderPrefix + "error-source"
	// HeaderErrorClass is the kind of the last failure.
	HeaderErrorClass = HeaderPrefix + "error-class"
	// HeaderErrorMessage says what the last failure was.
	HeaderErrorMessage = HeaderPrefix + "error-message"
	// HeaderErrorStatus is the status code of the last failure; absent where there was none.
	HeaderErrorStatus = HeaderPrefix + "error-status"
	// HeaderCrashExit says how the last process ended that the message brought down, such as "signal: killed".
	HeaderCrashExit = HeaderPrefix + "crash-exit"
	// HeaderWorker names the worker that gave up a message that brings down workers.
	HeaderWorker = HeaderPrefix + "worker"
)

// isOwn reports whether Redrive alone writes this header. Other headers with our prefix are somebody else's and kept.
func isOwn(name string) bool {
	switch name {
	case HeaderID, HeaderAttempts, HeaderRetries, HeaderStrategy, HeaderStreak, HeaderFirstFailure, HeaderNotBefore,
		HeaderDelay, HeaderLane, HeaderExchange, HeaderRoutingKey, HeaderDeadline, HeaderHistory, HeaderPublishID,
		HeaderReason, HeaderExplanation, HeaderFailedAt, HeaderFailureID, HeaderQueue,
		HeaderErrorSource, HeaderErrorClass, HeaderErrorMessage, HeaderErrorStatus,
		HeaderCrashes, HeaderQuarantine, HeaderCarry, HeaderPriority, HeaderExpiration, HeaderUserID, HeaderOriginal, HeaderTraceparent, HeaderCrashExit,
		HeaderWorker,
		HeaderReplay, HeaderReplaySeq, HeaderLives, HeaderStaged,
		HeaderOutcome, HeaderOutcomeSeq, HeaderOutcomeKind, HeaderOutcomeCause, HeaderOutcomeQueue:
		return true
	}
	return false
}

// Disown takes Redrive's headers off a message that no worker can have published, and returns their names, in order. The header of the
// identity stays: a producer may choose that, by the property message-id as well.
func Disown(headers map[string]any) []string {
	var forged []string
	for name := range headers {
		if isOwn(name) && name != HeaderID {
			forged = append(forged, name)
			delete(headers, name)
		}
	}
	slices.Sort(forged)
	return forged
}

// isStale reports whether a header tells of the message's way so far and would do harm on the next one.
func isStale(name string) bool { return isCount(name) || isRecord(name) }

// isCount reports whether a header counts the deliveries of the queue that the message is in. Only the broker writes it.
func isCount(name string) bool { return name == "x-delivery-count" || name == "x-acquired-count" }

// isRecord reports whether a header is of the producer, or of a dead-lettering before the message came to its work queue, and would
// do harm on a copy: death records that are copied stop messages in lanes on RabbitMQ 3, and CC and BCC duplicate the message on
// each pass.
func isRecord(name string) bool {
	switch name {
	case "x-death", "CC", "BCC":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}
