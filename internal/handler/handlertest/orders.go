package handlertest

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// The headers of a message by which the suite talks to the program.
const (
	// OrderHeader holds the Order.
	OrderHeader = "test-order"
	// SumHeader holds the SHA-256 of the body in hexadecimal digits.
	SumHeader = "test-sum"
	// ReportHeader holds the address that Answer.Hang connects to.
	ReportHeader = "test-report"
)

// FloodSize is how much a flooding program tries to write, in bytes.
const FloodSize = 64 << 20

// Order is what the program does with a message, after it has read the body whole.
type Order string

const (
	// Succeed compares the body with the sum and answers success, or else a failure of the class "Mismatch".
	Succeed Order = "succeed"
	// SucceedUnread answers success without having read the body, where the program can tell the order before it.
	SucceedUnread Order = "succeed unread"
	// Refuse answers the failure that Refusal returns.
	Refuse Order = "refuse"
	// AdviseFail answers the failure that Advised returns for it.
	AdviseFail Order = "advise fail"
	// AdviseDrop likewise.
	AdviseDrop Order = "advise drop"
	// AdviseRetry likewise.
	AdviseRetry Order = "advise retry"
	// AdviseRelease likewise.
	AdviseRelease Order = "advise release"
	// Describe answers a failure of the class "Described" whose message is what Description returns for the request
	// that the program sees.
	Describe Order = "describe"
	// Hang reports to the address in ReportHeader and does not answer before the attempt is over. A program that is told when
	// that is ends then; one that is not would hang for ever.
	Hang Order = "hang"
	// Crash ends without an answer: the process is killed or exits, the connection breaks off, the Go function panics.
	Crash Order = "crash"
	// FloodSuccess answers success, and with it FloodSize bytes on whatever else the program can write to: the body of the
	// answer, its standard output, its standard error. A Go function has nothing of the kind and just succeeds.
	FloodSuccess Order = "flood success"
	// FloodFailure answers a failure of any class, and with it FloodSize bytes, likewise, or in its message.
	FloodFailure Order = "flood failure"
)

// Answer is what an order asks of the program.
type Answer struct {
	// Failure to answer, or success if nil. Its source, and the status where it is 0, are the handler's affair.
	Failure *retry.Failure
	// Flood is how many bytes the program writes beside its answer.
	Flood int
	// Crash asks for an end without an answer.
	Crash bool
	// Hangs asks for a call of Hang in place of an answer.
	Hangs bool

	report string
}

// Obey says what the program has to answer, given what it sees of the message: the headers of the message by their names in
// small letters, the body, and what else it is told.
func Obey(seen handler.Request) Answer {
	order := OrderOf(seen.Headers)
	switch order {
	case Succeed:
		if sum, _ := seen.Headers[SumHeader].(string); !Matches(seen.Body, sum) {
			return failed("Mismatch", "the body is another one")
		}
		return Answer{}
	case SucceedUnread:
		return Answer{}
	case Refuse:
		return Answer{Failure: Refusal()}
	case AdviseFail, AdviseDrop, AdviseRetry, AdviseRelease:
		return Answer{Failure: Advised(order)}
	case Describe:
		return failed("Described", Description(seen))
	case Hang:
		report, _ := seen.Headers[ReportHeader].(string)
		return Answer{Hangs: true, report: report}
	case Crash:
		return Answer{Crash: true}
	case FloodSuccess:
		return Answer{Flood: FloodSize}
	case FloodFailure:
		answer := failed("Flood", "the water rises")
		answer.Flood = FloodSize
		return answer
	}
	return failed("NoOrder", "the order is "+strconv.Quote(string(order)))
}

func failed(class, text string) Answer {
	return Answer{Failure: &retry.Failure{Source: retry.SourceHandler, Class: class, Message: text}}
}

// OrderOf a message with these headers.
func OrderOf(headers map[string]any) Order {
	order, _ := headers[OrderHeader].(string)
	return Order(order)
}

// Result is the answer as the JSON object that programs of exec and process give.
func (a Answer) Result() map[string]any {
	f := a.Failure
	if f == nil {
		return map[string]any{"outcome": "ack"}
	}
	result := map[string]any{"outcome": "failure", "class": f.Class, "message": f.Message}
	if f.Status != 0 {
		result["status"] = f.Status
	}
	if f.RetryAfter != nil {
		result["retryAfter"] = f.RetryAfter.Seconds()
	}
	if f.Advice != "" {
		result["advice"] = strings.ToLower(string(f.Advice))
	}
	return result
}

// Refusal is the failure that the order Refuse stands for.
func Refusal() *retry.Failure {
	delay := 7 * time.Second
	return &retry.Failure{Source: retry.SourceHandler, Class: "OutOfStock", Message: "no flour left", RetryAfter: &delay}
}

// Advised is the failure with which a program gives advice.
func Advised(order Order) *retry.Failure {
	failure, delay := &retry.Failure{Source: retry.SourceHandler, Class: "Advised", Message: "as it asks for"}, 90*time.Second
	switch order { //nolint:exhaustive // the orders that give advice
	case AdviseFail:
		failure.Advice = retry.AdviseFail
	case AdviseDrop:
		failure.Advice = retry.AdviseDrop
	case AdviseRetry:
		failure.Advice, failure.RetryAfter = retry.AdviseRetry, &delay
	case AdviseRelease:
		failure.Advice, failure.RetryAfter = retry.AdviseRelease, &delay
	}
	return failure
}

// Description puts what a program is told about a message into a line.
func Description(r handler.Request) string {
	return strings.Join([]string{
		r.ID, r.IdempotencyKey, strconv.FormatInt(r.Attempt, 10), strconv.FormatInt(r.Retries, 10),
		r.Queue, r.Exchange, r.RoutingKey, r.Type, r.CorrelationID, r.ContentType, r.ContentEncoding,
		r.ReplyTo, r.AppID, r.UserID, strconv.Itoa(int(r.Priority)), r.Expiration,
		r.Timestamp.UTC().Format(time.RFC3339), r.FirstFailure.UTC().Format(time.RFC3339), r.Traceparent, r.Tracestate,
	}, "|")
}

// Matches reports whether a body has the sum.
func Matches(body []byte, sum string) bool {
	return Sum(body) == sum
}

// Sum of a body, as SumHeader holds it.
func Sum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
