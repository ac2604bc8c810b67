package handler

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/message"
)

const (
	// maxVariable bounds a variable that describes the message, and maxVariableHeader and maxVariableHeaders one header and all
	// together: the system limits what a program may be started with. What is too long is left out whole, for half a value misleads.
	maxVariable        = 1 << 10
	maxVariableHeader  = 8 << 10
	maxVariableHeaders = 32 << 10
)

// The variables of a message. No message sets any other.
const (
	envID              = "REDRIVE_MESSAGE_ID"
	envIdempotencyKey  = "REDRIVE_IDEMPOTENCY_KEY"
	envAttempt         = "REDRIVE_ATTEMPT"
	envRetries         = "REDRIVE_RETRIES"
	envQueue           = "REDRIVE_QUEUE"
	envExchange        = "REDRIVE_EXCHANGE"
	envRoutingKey      = "REDRIVE_ROUTING_KEY"
	envType            = "REDRIVE_TYPE"
	envCorrelationID   = "REDRIVE_CORRELATION_ID"
	envReplyTo         = "REDRIVE_REPLY_TO"
	envAppID           = "REDRIVE_APP_ID"
	envUserID          = "REDRIVE_USER_ID"
	envPriority        = "REDRIVE_PRIORITY"
	envExpiration      = "REDRIVE_EXPIRATION"
	envTimestamp       = "REDRIVE_TIMESTAMP"
	envFirstFailure    = "REDRIVE_FIRST_FAILURE"
	envCarry           = "REDRIVE_CARRY"
	envContentType     = "REDRIVE_CONTENT_TYPE"
	envContentEncoding = "REDRIVE_CONTENT_ENCODING"
	envDeadline        = "REDRIVE_DEADLINE"
	envHeaders         = "REDRIVE_HEADERS"
	envTraceparent     = "TRACEPARENT"
	envTracestate      = "TRACESTATE"
)

// messageVariables are all of them.
var messageVariables = []string{ //nolint:gochecknoglobals // a constant, if Go had lists of those
	envID, envIdempotencyKey, envAttempt, envRetries, envQueue, envExchange, envRoutingKey, envType, envCorrelationID,
	envReplyTo, envAppID, envUserID, envPriority, envExpiration, envTimestamp, envFirstFailure, envCarry,
	envContentType, envContentEncoding, envDeadline, envHeaders, envTraceparent, envTracestate,
}

// inherited returns the worker's own environment without what is withheld, and without variables that a command would take for those of
// its message.
func inherited(own, withheld []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(messageVariables, name) || slices.Contains(withheld, name)
	})
}

// variables build a command's environment. They are used again for other commands, so that it takes one allocation.
type variables struct {
	// text is one variable after the other, and ends are where each ends.
	text []byte
	ends []int
	// names of the headers, in order.
	names []string
	all   []string
}

// of returns what a command gets: what it inherits, and the message's variables. One of which nothing is known is not set. It is
// good until the next call.
func (v *variables) of(ctx context.Context, r *Request, inherited []string) []string {
	v.text, v.ends = v.text[:0], v.ends[:0]
	v.add(envID, r.ID)
	v.add(envIdempotencyKey, r.IdempotencyKey)
	v.number(envAttempt, r.Attempt)
	v.number(envRetries, r.Retries)
	v.add(envQueue, r.Queue)
	v.add(envExchange, r.Exchange)
	v.add(envRoutingKey, r.RoutingKey)
	v.add(envType, r.Type)
	v.add(envCorrelationID, r.CorrelationID)
	v.add(envReplyTo, r.ReplyTo)
	v.add(envAppID, r.AppID)
	v.add(envUserID, r.UserID)
	v.add(envExpiration, r.Expiration)
	if r.Priority > 0 {
		v.number(envPriority, int64(r.Priority))
	}
	v.add(envContentType, r.ContentType)
	v.add(envContentEncoding, r.ContentEncoding)
	v.add(envTraceparent, r.Traceparent)
	v.add(envTracestate, r.Tracestate)
	v.moment(envTimestamp, time.RFC3339, r.Timestamp)
	v.moment(envFirstFailure, time.RFC3339Nano, r.FirstFailure)
	deadline, _ := ctx.Deadline()
	v.moment(envDeadline, "2006-01-02T15:04:05.000Z07:00", deadline)
	v.addUpTo(message.MaxCarry, envCarry, r.Carry)
	v.headers(r.Headers)

	v.all = append(v.all[:0], inherited...)
	text, begin := string(v.text), 0
	for _, end := range v.ends {
		v.all = append(v.all, text[begin:end])
		begin = end
	}
	return v.all
}

func (v *variables) begin(name string) { v.text = append(append(v.text, name...), '=') }
func (v *variables) end()              { v.ends = append(v.ends, len(v.text)) }

// add adds a variable whose value is known and can be in an environment.
func (v *variables) add(name, value string) { v.addUpTo(maxVariable, name, value) }

// addUpTo is add with a bound on the value.
func (v *variables) addUpTo(longest int, name, value string) {
	if value == "" || len(value) > longest || strings.IndexByte(value, 0) >= 0 {
		return
	}
	v.begin(name)
	v.text = append(v.text, value...)
	v.end()
}

func (v *variables) number(name string, value int64) {
	v.begin(name)
	v.text = strconv.AppendInt(v.text, value, 10)
	v.end()
}

func (v *variables) moment(name, format string, value time.Time) {
	if value = value.UTC(); value.IsZero() || !hasDate(value) {
		return
	}
	v.begin(name)
	v.text = value.AppendFormat(v.text, format)
	v.end()
}

// headers adds a message's headers as a JSON object, in the order of their names so that the same ones are left out at every attempt.
func (v *variables) headers(headers map[string]any) {
	v.begin(envHeaders)
	object := len(v.text)
	v.text = append(v.text, '{')
	v.names = v.names[:0]
	for name := range headers {
		v.names = append(v.names, name)
	}
	slices.Sort(v.names)
	for _, name := range v.names {
		before := len(v.text)
		if before > object+1 {
			v.text = append(v.text, ',')
		}
		v.text = append(appendText(v.text, name), ':')
		v.text = appendHeader(v.text, headers[name], 1)
		if len(v.text)-before > maxVariableHeader || len(v.text)-object >= maxVariableHeaders {
			v.text = v.text[:before]
		}
	}
	v.text = append(v.text, '}')
	v.end()
}
