package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"redrive.dev/redrive/internal/credentials"
)

// What can go wrong, to be told apart with errors.Is.
var (
	// ErrUnreachable says that the management API does not answer, or is not able to.
	ErrUnreachable = errors.New("the management API does not answer")
	// ErrGarbled says that what answers is not the management API, or not in its right mind. It is an ErrUnreachable too: what
	// the broker has and does is not known.
	ErrGarbled error = garbled{}
	// ErrUnauthorized says that user name or password are refused.
	ErrUnauthorized = errors.New("the broker refuses the login")
	// ErrForbidden says that the user lacks a tag or a right.
	ErrForbidden = errors.New("the user may not do this")
	// ErrNotFound says that the object or the whole vhost does not exist.
	ErrNotFound = errors.New("it does not exist")
	// ErrConflict says that an object exists with other arguments, is in use, or is not empty.
	ErrConflict = errors.New("the broker refuses, for what is there already")
	// ErrRefused says that the broker refuses for any other reason, such as a limit on the number of queues.
	ErrRefused = errors.New("the broker refuses")
)

type garbled struct{}

func (garbled) Error() string { return "the answer is not what the management API gives" }

func (garbled) Is(target error) bool { return target == ErrUnreachable }

// maxReason bounds what is repeated of an error's text.
const maxReason = 256

// Error is a failed request. It holds neither a URL nor a password.
type Error struct {
	// Operation that failed, such as "create queue test".
	Operation string
	// Status of HTTP; 0 where there was no answer.
	Status int
	// Reason in the broker's words.
	Reason string

	kind  error
	cause error
}

// Error says what failed and why.
func (e *Error) Error() string {
	text := e.kind.Error()
	if e.Operation != "" {
		text = e.Operation + ": " + text
	}
	if e.Status != 0 {
		text += fmt.Sprintf(" (%d)", e.Status)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Unwrap gives the kind, and what ended the request where that is the context, a certificate, or a name that is not known.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.kind, e.cause}
	}
	return []error{e.kind}
}

// describe adds the operation to an error of the transport, and takes away what net/http put around it: the URL.
func describe(operation string, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*Error](err); ok {
		copied := *known
		copied.Operation = operation
		return &copied
	}
	return unreachable(operation, err)
}

// unreachable is an error without an answer.
func unreachable(operation string, err error) *Error {
	failure := &Error{Operation: operation, kind: ErrUnreachable}
	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, ended) {
			failure.cause = ended
		}
	}
	if certificate, ok := errors.AsType[*credentials.CertificateError](err); ok {
		failure.cause, failure.Reason = certificate, printable(certificate.Error())
		return failure
	}
	if errors.Is(failure.cause, context.DeadlineExceeded) {
		failure.Reason = "no answer in time"
		return failure
	}
	if errors.Is(err, errDenied) {
		failure.Reason = errDenied.Error()
		return failure
	}
	if unknown, ok := errors.AsType[*net.DNSError](err); ok && unknown.IsNotFound {
		failure.cause = unknown
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if socket, ok := errors.AsType[*net.OpError](err); ok {
		// Our own end of the connection has another port each time; a condition would change with it on every try.
		stable := *socket
		stable.Source = nil
		err = &stable
	}
	failure.Reason = printable(err.Error())
	return failure
}

// errorWords are what RabbitMQ puts before a reason. What others say is not repeated: a URL may lead anywhere, and whoever writes it must not
// read by the operator what is there.
var errorWords = []string{ //nolint:gochecknoglobals // a constant
	"bad_request", "not_authorised", "not_authorized", "not_found", "Object Not Found", "Not Found", "not_acceptable", "forbidden",
	"method_not_allowed", "precondition_failed", "conflict", "internal_server_error", "service_unavailable", "vhost_limit_exceeded",
}

// refusal turns an answer that is not success into an error.
func refusal(response *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 16*maxReason))
	var answer struct {
		Error  any `json:"error"`
		Reason any `json:"reason"`
	}
	reason := ""
	known := json.Unmarshal(body, &answer) == nil && answer.Error != nil
	if word, _ := answer.Error.(string); slices.Contains(errorWords, word) {
		if text, ok := answer.Reason.(string); ok {
			reason = printable(text)
		}
	}
	kind := kindOf(response.StatusCode, reason)
	if errors.Is(kind, ErrNotFound) && !known {
		// That something does not exist decides on much. A proxy that knows no such path must not be believed.
		return garbledAnswer(response, "it is "+contentType(response)+", and the management API says in JSON what is not found")
	}
	failure := &Error{Status: response.StatusCode, Reason: reason, kind: kind}
	if command := remedy(response.Request, reason); command != "" && errors.Is(kind, ErrForbidden) {
		failure.Reason += "; the command for it: " + command
	}
	return failure
}

// garbledAnswer is an answer that the management API would not give. What it holds is not repeated.
func garbledAnswer(response *http.Response, why string) *Error {
	return &Error{Status: response.StatusCode, Reason: why, kind: ErrGarbled}
}

// contentType of an answer, in quotes.
func contentType(response *http.Response) string {
	kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	if kind == "" {
		return "of no content type"
	}
	return fmt.Sprintf("%.100q", kind)
}

func kindOf(status int, reason string) error {
	lower := strings.ToLower(reason)
	switch {
	case status == http.StatusUnauthorized && (strings.Contains(lower, "access") || strings.Contains(lower, "not ")):
		// The broker says 401 also to a good login without a tag or without the vhost.
		return ErrForbidden
	case status == http.StatusUnauthorized:
		return ErrUnauthorized
	case status == http.StatusForbidden || strings.Contains(lower, "access_refused"):
		return ErrForbidden
	case status == http.StatusNotFound:
		return ErrNotFound
	case status == http.StatusBadRequest && isConflict(lower):
		return ErrConflict
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return ErrUnreachable
	default:
		return ErrRefused
	}
}

func isConflict(reason string) bool {
	for _, sign := range []string{"inequivalent", "in use", "not empty", "if-empty", "cannot redeclare"} {
		if strings.Contains(reason, sign) {
			return true
		}
	}
	return false
}

// printable bounds a text of others to one line.
func printable(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), " ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
