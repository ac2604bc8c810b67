package handler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// result is what a program says about a message: exec's last line of standard output, and a part of the process protocol's
// result frame. Fields that it does not know are passed over, and so is a name in another case: encoding/json would take it for the same.
type result struct {
	Outcome string `json:"outcome"`
	Class   string `json:"class"`
	Message string `json:"message"`
	Status  int32  `json:"status"`
	// RetryAfter is in seconds.
	RetryAfter *float64 `json:"retryAfter"`
	Advice     string   `json:"advice"`
	Carry      *string  `json:"carry"`
}

// The outcomes of a result.
const (
	outcomeAck     = "ack"
	outcomeFailure = "failure"
)

// isResult reports whether a line is meant as a result: a JSON object with an outcome, or a broken one. A script that puts an
// error's text between quotes as it is must not have its failure taken for a success.
func isResult(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("{")) || !bytes.Contains(line, []byte(`"outcome"`)) {
		return false
	}
	var fields struct {
		Outcome json.RawMessage `json:"outcome"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(line, &fields) != nil || fields.Outcome != nil
}

// decodeResult returns nil for a result that is a success, and else its failure. One whose values make no sense is of the class
// MalformedResponse and says which.
func decodeResult(line []byte) *retry.Failure {
	var r result
	if err := kjson.UnmarshalCaseSensitivePreserveInts(line, &r); err != nil {
		return malformedResult(err)
	}
	advice, err := readAdvice(r.Advice)
	switch {
	case err != nil:
		return malformedResult(err)
	case r.Outcome == outcomeAck:
		return nil
	case r.Outcome != outcomeFailure:
		return malformedResult(fmt.Errorf("outcome %q is neither %q nor %q", message.Text(r.Outcome, 40), outcomeAck, outcomeFailure))
	case r.Carry != nil:
		if err := checkCarry(*r.Carry); err != nil {
			return malformedResult(err)
		}
	}
	text := message.Text(r.Message, message.MaxText)
	failure := &retry.Failure{
		Source:  retry.SourceHandler,
		Class:   message.Text(r.Class, message.MaxClass),
		Message: text,
		Logged:  text,
		Status:  int(r.Status),
		Advice:  stopped(advice, r.RetryAfter != nil && *r.RetryAfter < 0),
		Carry:   r.Carry,
	}
	if r.RetryAfter != nil && *r.RetryAfter >= 0 {
		delay := maxRetryAfter
		if *r.RetryAfter < maxRetryAfter.Seconds() {
			delay = time.Duration(*r.RetryAfter * float64(time.Second))
		}
		failure.RetryAfter = &delay
	}
	return failure
}

// readAdvice reads the word, in any case of letters, by which a handler asks for what is to become of a message; empty for none.
func readAdvice(word string) (retry.Advice, error) {
	for _, known := range []retry.Advice{"", retry.AdviseFail, retry.AdviseDrop, retry.AdviseRetry, retry.AdviseRelease} {
		if strings.EqualFold(word, string(known)) {
			return known, nil
		}
	}
	return "", fmt.Errorf("advice %q must be fail, drop, retry or release", message.Text(word, 40))
}

// malformedResult is the failure of a result that cannot be used.
func malformedResult(err error) *retry.Failure {
	text := err.Error()
	if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		text = fmt.Sprintf("%s cannot be a JSON %s", kind.Field, kind.Value)
	}
	return &retry.Failure{
		Source:  retry.SourceHandler,
		Class:   ClassMalformedResponse,
		Message: message.Text("the handler's result: "+text, message.MaxText),
		Logged:  "the handler's result cannot be used",
	}
}
