package handler

import (
	"errors"
	"time"
)

// Advice is what an error asks for to become of its message. The retry policy follows it, unless its handlerAdvice is Ignore.
type Advice string

const (
	// AdviceNone leaves it to the retry policy.
	AdviceNone Advice = ""
	// AdviceFail asks for no more retries. See Fail.
	AdviceFail Advice = "fail"
	// AdviceDrop asks for the message to be forgotten. See Drop.
	AdviceDrop Advice = "drop"
	// AdviceRetry asks for a retry that does not count. See RetryAfter.
	AdviceRetry Advice = "retry"
	// AdviceRelease asks for the message again as if there had been no attempt. See Release.
	AdviceRelease Advice = "release"
)

// Fail returns an error that says: the message itself is wrong, and however often it is tried, it will fail. It goes to the
// failure queue at once, where people find it with its error, and no strategy of the retry policy is asked. err may be nil.
func Fail(err error) error { return &advised{advice: AdviceFail, err: err} }

// Drop returns an error that says: nobody needs this message any more. It is forgotten, and is in no queue from then on; only
// the worker's metrics and log tell of it. err may be nil.
func Drop(err error) error { return &advised{advice: AdviceDrop, err: err} }

// RetryAfter returns an error that says: the message is right, and its time has not come. It is retried after delay, and the
// retry does not count against the maxRetries of the policy; its maxAge still ends it. More than an hour is an hour, and less
// than nothing is nothing. err may be nil.
func RetryAfter(delay time.Duration, err error) error {
	return &advised{advice: AdviceRetry, after: max(0, delay), err: err}
}

// Release returns an error that says: this was no attempt, such as when something that the handler needs is taken by somebody else.
// The message comes again after delay, and neither an attempt nor a retry is counted; the maxAge of the policy, from the first release
// or failure on, still ends it. More than an hour is an hour, and less than nothing is nothing. In a queue with strict order it is
// a failure like others. err may be nil.
func Release(delay time.Duration, err error) error {
	return &advised{advice: AdviceRelease, after: max(0, delay), err: err}
}

// MaxCarry is the longest text that Carry takes, in bytes.
const MaxCarry = 4 << 10

// Carry returns an error that hands a text to the next attempt at the message, in whichever process: it is that one's Message.Carry, such
// as the steps of the work that are done. It has at most MaxCarry bytes of UTF-8; with another one the attempt fails with the class
// MalformedResponse. What failed attempts before have handed on stays until one hands on something else; "" takes it back. What becomes of
// the message is for err to say, which may be one of Fail, RetryAfter, Release and Drop; those may also be around it. err may be nil.
func Carry(text string, err error) error { return &carrying{text: text, err: err} }

// carrying is an error with something for the next attempt.
type carrying struct {
	text string
	err  error
}

// Error is the text of the error that was given.
func (c *carrying) Error() string {
	if c.err == nil {
		return "the handler asked for another attempt without a reason"
	}
	return c.err.Error()
}

// Unwrap gives the error that was given.
func (c *carrying) Unwrap() error { return c.err }

// advised is an error with advice. Its text is that of the error in it.
type advised struct {
	advice Advice
	// after is for AdviceRetry and AdviceRelease.
	after time.Duration
	err   error
}

// Error is the text of the error that was given, or else says what is asked for.
func (a *advised) Error() string {
	if a.err != nil {
		return a.err.Error()
	}
	switch a.advice {
	case AdviceDrop:
		return "the handler drops the message and gives no reason"
	case AdviceRetry:
		return "the handler asks for a retry after " + a.after.String() + " and gives no reason"
	case AdviceRelease:
		return "the handler releases the message for " + a.after.String() + " and gives no reason"
	default:
		return "the handler fails the message and gives no reason"
	}
}

// Unwrap gives the error that was given.
func (a *advised) Unwrap() error { return a.err }

// ClassError is an error that names the class of the failure, for expressions such as error.class == 'OutOfStock' in a retry
// policy. A class is short and the same for all failures of a kind. Where Class gives "" it counts as not told.
type ClassError interface {
	error
	Class() string
}

// StatusError is an error that tells the status of the failure, for expressions such as error.status == 429. 0 stands for none.
type StatusError interface {
	error
	Status() int
}

// DelayError is an error that tells for how long a partner asks to be left alone, such as by the header Retry-After. It is what
// delayFrom: error.retryAfter reads in a strategy. Alone it is no advice: the policy decides whether there is a retry.
type DelayError interface {
	error
	RetryAfter() time.Duration
}

// Failure is what an error says about a failed attempt. Its texts are as long as the error made them.
type Failure struct {
	// Advice is that of the outermost Fail, RetryAfter, Release or Drop around the error.
	Advice Advice
	// RetryAfter is the delay of a RetryAfter or Release where that is the advice, or else of the outermost DelayError; nil where there is
	// neither. It is not negative.
	RetryAfter *time.Duration
	// Class is that of the outermost ClassError, or else the type of the innermost error whose type tells something, such as
	// "json.SyntaxError" or "net.OpError", or else empty: what errors.New and fmt.Errorf make have no telling types.
	Class string
	// Status is that of the outermost StatusError, or else 0.
	Status int
	// Message is the error's text.
	Message string
	// Carry is the text of the outermost Carry around the error; nil where there is none.
	Carry *string
}

// FailureOf reads an error as the worker does, through everything that wraps it as the package errors knows it; of errors that
// were joined, the first that tells something counts. It is for tests of a Handler, and for programs that hand errors on. Of nil
// it is the zero Failure.
func FailureOf(err error) Failure {
	if err == nil {
		return Failure{}
	}
	failure := Failure{Message: err.Error()}
	if told, ok := errors.AsType[DelayError](err); ok {
		failure.RetryAfter = new(max(0, told.RetryAfter()))
	}
	if told, ok := errors.AsType[*advised](err); ok {
		failure.Advice = told.advice
		if told.advice == AdviceRetry || told.advice == AdviceRelease {
			failure.RetryAfter = new(told.after)
		}
	}
	if told, ok := errors.AsType[*carrying](err); ok {
		failure.Carry = &told.text
	}
	if told, ok := errors.AsType[ClassError](err); ok {
		failure.Class = told.Class()
	}
	if failure.Class == "" {
		failure.Class = typeOf(err)
	}
	if told, ok := errors.AsType[StatusError](err); ok {
		failure.Status = told.Status()
	}
	return failure
}
