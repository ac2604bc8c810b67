package handler_test

import (
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
)

func TestExec_Conforms(t *testing.T) {
	t.Parallel()
	handlertest.Run(t, func(t *testing.T) handlertest.Subject {
		t.Helper()
		return handlertest.Subject{Handler: execute(t, obedientCommand...)}
	})
}

// execute returns a handler that starts a command for each message. It is closed with the test.
func execute(t testing.TB, command ...string) *handler.Exec {
	t.Helper()
	h, err := handler.NewExec(v1alpha1.ExecHandler{Command: command}, options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// obedientCommand obeys the orders of handlertest.
var obedientCommand = program("exec-obedient", func() int {
	seen := seenInEnvironment()
	if handlertest.OrderOf(seen.Headers) != handlertest.SucceedUnread {
		seen.Body, _ = io.ReadAll(os.Stdin)
	}
	answer := handlertest.Obey(seen)
	if answer.Crash {
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {} // until it comes
	}
	if answer.Hangs {
		answer.Hang(nil)
	}
	part := []byte(strings.Repeat("flood\n", 10_000))
	for left := answer.Flood; left > 0; left -= len(part) {
		_, _ = os.Stdout.Write(part)
		_, _ = os.Stderr.Write(part)
	}
	if json.NewEncoder(os.Stdout).Encode(answer.Result()) != nil {
		return 1
	}
	return 0
})

// seenInEnvironment is the request as a command sees it.
func seenInEnvironment() handler.Request {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(os.Getenv(name), 10, 64)
		return n
	}
	moment := func(name string) time.Time {
		t, _ := time.Parse(time.RFC3339, os.Getenv(name))
		return t
	}
	var headers map[string]any
	_ = json.Unmarshal([]byte(os.Getenv("REDRIVE_HEADERS")), &headers)
	return handler.Request{
		ID: os.Getenv("REDRIVE_MESSAGE_ID"), IdempotencyKey: os.Getenv("REDRIVE_IDEMPOTENCY_KEY"),
		Attempt: number("REDRIVE_ATTEMPT"), Retries: number("REDRIVE_RETRIES"), Queue: os.Getenv("REDRIVE_QUEUE"),
		Exchange: os.Getenv("REDRIVE_EXCHANGE"), RoutingKey: os.Getenv("REDRIVE_ROUTING_KEY"), Type: os.Getenv("REDRIVE_TYPE"),
		ReplyTo: os.Getenv("REDRIVE_REPLY_TO"), AppID: os.Getenv("REDRIVE_APP_ID"), UserID: os.Getenv("REDRIVE_USER_ID"),
		Priority: uint8(number("REDRIVE_PRIORITY")), Expiration: os.Getenv("REDRIVE_EXPIRATION"),
		CorrelationID: os.Getenv("REDRIVE_CORRELATION_ID"), Timestamp: moment("REDRIVE_TIMESTAMP"),
		FirstFailure: moment("REDRIVE_FIRST_FAILURE"), ContentType: os.Getenv("REDRIVE_CONTENT_TYPE"),
		ContentEncoding: os.Getenv("REDRIVE_CONTENT_ENCODING"),
		Traceparent:     os.Getenv("TRACEPARENT"), Tracestate: os.Getenv("TRACESTATE"), Headers: headers,
	}
}
