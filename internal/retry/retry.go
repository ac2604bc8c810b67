// Package retry decides what becomes of a failed message: a policy, a failure, the message, its history, the time and a
// random source go in; a verdict comes out. The package has no side effects and does no input or output.
//
// [Compile] turns a RetryPolicy into a [Policy], [Policy.Decide] gives the verdict, and [PlanLanes] says which delays
// need a fallback queue so that the verdicts can be carried out.
package retry

import (
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// Source says where a failure comes from.
type Source string

const (
	// SourceHandler is an answer of the handler that is not success.
	SourceHandler Source = "Handler"
	// SourceTimeout is a handler that did not answer in time.
	SourceTimeout Source = "Timeout"
	// SourceCrash is a handler that ended, or cut the connection, while it had the message.
	SourceCrash Source = "Crash"
	// SourceConnection is a handler that could not be reached.
	SourceConnection Source = "Connection"
)

// Failure is one failed attempt, as expressions see it in `error`.
type Failure struct {
	// Source says where the failure comes from.
	Source Source
	// Class names the kind of failure in the handler's own terms, such as the type of an RFC 9457 problem; may be empty.
	Class string
	// Message says what happened, for people.
	Message string
	// Logged is what of Message may stand in a log: the words of whoever reports the failure. What Message quotes beside them, such
	// as an answer's body or a program's output, may hold a part of the message that was handled. No expression sees it.
	Logged string
	// Status is the handler's status code, 0 where there is none.
	Status int
	// RetryAfter is the delay that the handler asks for; nil where it asks for none.
	RetryAfter *time.Duration
	// Advice is what the handler asks for to become of the message; empty where it leaves that to the policy.
	Advice Advice
	// Carry is what the handler wants to have back with the next attempt, and policies do not read it; nil leaves what it asked for
	// before, and an empty text takes that back.
	Carry *string
}

// Advice of a handler on a failed attempt.
type Advice string

const (
	// AdviseFail asks for no more retries: the message is bad, however often it is tried.
	AdviseFail Advice = "Fail"
	// AdviseDrop asks for the message to be forgotten.
	AdviseDrop Advice = "Drop"
	// AdviseRetry asks for a retry that does not count against maxRetries, after RetryAfter where that is set.
	AdviseRetry Advice = "Retry"
	// AdviseRelease asks for the message to come again as if there had been no attempt, after RetryAfter where that is set.
	AdviseRelease Advice = "Release"
	// AdviseStop asks for no more retries, as AdviseFail does, by a delay that is negative.
	AdviseStop Advice = "Stop"
)

// Message is what expressions see of a message in `message`. Their message.size is the length of Body in bytes.
type Message struct {
	ID          string
	Type        string
	Exchange    string
	RoutingKey  string
	Queue       string
	ContentType string
	// CorrelationID, ReplyTo, AppID and UserID are the producer's properties; empty where there are none.
	CorrelationID, ReplyTo, AppID, UserID string
	// Expiration is the producer's property; zero where there is none.
	Expiration time.Duration
	// Headers may hold strings, integers and floats of any width, bool, []byte, time.Time, nil, and maps
	// (map[string]any) and lists ([]any) of these. Expressions that read a value of any other type fail at run time.
	Headers   map[string]any
	Priority  int
	Timestamp time.Time
	// Body is decoded as JSON, and only if an expression reads it.
	Body []byte
	// Bodies is the account that decoding takes memory from; nil is no limit.
	Bodies *Bodies
	// Decoded keeps the decoded body from one call to the next, until the caller lets go of it. nil decodes it anew for each call.
	Decoded *Decoded
	// Turns are those that evaluations wait for, but for light ones; nil is no bound.
	Turns *Turns
	// Budget is what the decision about the message may still cost. nil stands for a whole one for each call.
	Budget *Budget
}

// MaxAhead is how far ahead a first failure may be: by a clock that is behind for a while, each is. Taken for now and written down so, it would
// make the message older for good. Who makes one up gains no more than that much time.
const MaxAhead = 24 * time.Hour

// History is what the earlier failures of a message left on it. The zero value is a message that never failed. It comes
// from headers, which anybody can write: numbers out of range are clamped, and a first failure further ahead than
// MaxAhead is now.
type History struct {
	// Attempts that were made and failed.
	Attempts int64
	// Retries that were decided and count against maxRetries: all but those of unlimited strategies and of the handler's advice.
	Retries int64
	// Strategy that decided last; ByHandler where the handler's advice did, empty where neither did.
	Strategy string
	// Streak is the number of consecutive decisions of that strategy, or of the handler, the last one included.
	Streak int64
	// FirstFailure is the time of the first failure, or of the first time that the handler released the message; zero before it.
	FirstFailure time.Time
	// LastDelay is the delay before the last retry, drawn or given by an expression. Decorrelated jitter builds on it,
	// and Due measures by it how early is early.
	LastDelay time.Duration
	// Immediate counts the tries at once that were made before the first retry. It belongs to the process that makes
	// them: no header carries it.
	Immediate int64
}

// Reason is the cause of a verdict, in one word, for headers and metrics.
type Reason string

const (
	// ReasonRetry says that the message is handled again.
	ReasonRetry Reason = "Retry"
	// ReasonMaxRetries says that all retries are used up.
	ReasonMaxRetries Reason = "MaxRetries"
	// ReasonMaxAge says that the message, or its next retry, is too long after the first failure.
	ReasonMaxAge Reason = "MaxAge"
	// ReasonStrategy says that a strategy decided to fail or to drop it.
	ReasonStrategy Reason = "Strategy"
	// ReasonImmediate says that the message is tried again at once, without a retry being counted.
	ReasonImmediate Reason = "Immediate"
	// ReasonUnrecoverable says that the handler asked for no retry.
	ReasonUnrecoverable Reason = "Unrecoverable"
	// ReasonAdvice says that the handler asked for the message to be dropped.
	ReasonAdvice Reason = "Advice"
	// ReasonRelease says that the handler gave the message back: it comes again, and no attempt is counted.
	ReasonRelease Reason = "Release"
	// ReasonUndecodable says that the handler cannot read messages of this kind (status 415), so that no retry would help.
	ReasonUndecodable Reason = "Undecodable"
)

// Verdict is the decision on one failure.
type Verdict struct {
	// Action to take.
	Action v1alpha1.Action
	// Delay before the next attempt; zero unless Action is Retry, and where Reason is ReasonImmediate.
	Delay time.Duration
	// Range that Delay was drawn from.
	Range DelayRange
	// MaxRetries is the limit that held for this failure, NoLimit where there was none, and Retries how many of them are used with
	// this one: those of the policy, or of a strategy that counts its own.
	MaxRetries, Retries int64
	// Strategy that decided, by name; ByHandler where the handler's advice did, empty where the policy's own fields did.
	Strategy string
	// Reason in one word.
	Reason Reason
	// Explanation is the reason in a sentence, such as "3 of 3 retries used".
	Explanation string
	// History of the message after this failure.
	History History
	// Problems are the expressions that failed at run time, each an *ExpressionError. They decided nothing: the caller
	// counts and logs them.
	Problems []error
}

// NoLimit is a Verdict's MaxRetries where retries are not limited in number.
const NoLimit = -1

// DelayRange is what a delay is drawn from, both ends included.
type DelayRange struct {
	// Nominal is the delay before jitter. Decorrelated jitter pays no heed to it.
	Nominal time.Duration
	// Min and Max are the shortest and the longest delay that jitter makes of it.
	Min, Max time.Duration
}

// Rand is a source of random numbers; *math/rand/v2.Rand is one.
type Rand interface {
	// Int64N returns a number in [0, n); n is positive.
	Int64N(n int64) int64
}
