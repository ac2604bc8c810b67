package worker_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// TestHandler_SeesTheProducersMessageOnEachAttempt has one message come by a queue of the producer's that dead-letters it, and one with
// properties that no copy carries.
func TestHandler_SeesTheProducersMessageOnEachAttempt(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), seenByExpressions(), nil)
	requests := make(chan handler.Request, 10)
	p := newProgram()
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		requests <- request
		if request.Attempt < 3 {
			return &retry.Failure{Source: retry.SourceHandler, Message: "not yet"}
		}
		return nil
	}
	p.started(r)
	arguments := amqp091.Table{"x-message-ttl": int32(1), "x-dead-letter-exchange": "async", "x-dead-letter-routing-key": testtransport.Queue}
	if _, err := r.Channel().QueueDeclare("inbox", true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	uri, err := amqp091.ParseURI(r.url)
	if err != nil {
		t.Fatal(err)
	}
	price := amqp091.Table{"price": amqp091.Decimal{Scale: 2, Value: 1999}}
	cases := map[string]struct {
		exchange, key string
		message       amqp091.Publishing
		check         func(r handler.Request) bool
	}{
		"dead-lettered": {"", "inbox", amqp091.Publishing{Headers: price}, func(r handler.Request) bool {
			deaths, _ := r.Headers["x-death"].([]any)
			if len(deaths) != 1 {
				return false
			}
			death, _ := deaths[0].(map[string]any)
			return death["queue"] == "inbox" && death["reason"] == "expired" && r.Headers["x-first-death-queue"] == "inbox"
		}},
		"with properties": {"async", testtransport.Queue, amqp091.Publishing{
			Headers: price, ReplyTo: "replies", AppId: "shop", UserId: uri.Username, Priority: 3, Expiration: "60000", CorrelationId: "c",
		}, func(r handler.Request) bool {
			return r.ReplyTo == "replies" && r.AppID == "shop" && r.UserID == uri.Username && r.Priority == 3 && r.Expiration == "60000" &&
				r.CorrelationID == "c" && r.Headers["x-death"] == nil
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.message.MessageId = name
			r.Publish(c.exchange, c.key, c.message)
			first := <-requests
			first.Deadline, first.Begin = first.Deadline.Truncate(time.Millisecond), nil // as it is carried along
			if first.Headers["price"] != 19.99 || !c.check(first) {
				t.Fatalf("first attempt: %+v", first)
			}
			for attempt := int64(2); attempt <= 3; attempt++ {
				again := <-requests
				if again.Attempt != attempt {
					t.Fatalf("attempt %d, want %d", again.Attempt, attempt)
				}
				again.Attempt, again.Retries, again.FirstFailure, again.Begin = first.Attempt, first.Retries, first.FirstFailure, nil
				if !again.Deadline.Equal(first.Deadline) {
					t.Errorf("attempt %d has the deadline %s, want %s", attempt, again.Deadline, first.Deadline)
				}
				again.Deadline = first.Deadline
				if !reflect.DeepEqual(again, first) {
					t.Errorf("attempt %d\ngot  %+v\nwant %+v", attempt, again, first)
				}
			}
		})
	}
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed: an expression saw something else on a later attempt", failed)
	}
}

// seenByExpressions retries what expressions see as its producer sent it, and gives up the rest.
func seenByExpressions() v1alpha1.RetryPolicySpec {
	policy := testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "expensive", When: "message.headers.price < 10.0", Action: v1alpha1.ActionFail},
		{
			Name: "dead-lettered", When: "message.id == 'dead-lettered' && message.headers['x-death'].size() == 1 && message.headers['x-death'][0].queue == 'inbox'",
		},
		{
			Name: "with-properties", When: "message.replyTo == 'replies' && message.appId == 'shop' && message.userId != '' && message.priority == 3 && " +
				"message.expiration == duration('1m') && !('x-death' in message.headers)",
		},
		{Name: "changed", When: "true", Action: v1alpha1.ActionFail},
	}
	return policy
}
