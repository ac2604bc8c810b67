package worker_test

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// slowly lets a message go on every four seconds.
func slowly(t *v1alpha1.Transport) {
	limitedTo(v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromString("0.25"), Burst: new(int32(1))})(t)
}

// Messages were handed over seconds after their time was over, and the property expiration was none before the first retry.
func TestExpired_FailsAMessageWhoseTimeEndsWhileItWaits(t *testing.T) {
	t.Parallel()
	expires := amqp091.Publishing{MessageId: "b", Expiration: "2000"}
	cases := map[string]struct {
		change    func(*v1alpha1.Transport)
		immediate int32
		lasts     time.Duration // of each call
		answer    *retry.Failure
		messages  []amqp091.Publishing
		// exchange of the messages; empty stands for the producers'.
		exchange string
		want     []string
	}{
		"for a place": {
			change: func(t *v1alpha1.Transport) { t.Spec.Workers[0].Concurrency = new(int32(1)) },
			lasts:  4 * time.Second, messages: append(letters("a"), expires), want: []string{"a1"},
		},
		"for a rate limit, with a deadline": {
			change: slowly, exchange: "async.return", want: []string{"a1"},
			messages: append(letters("a"), amqp091.Publishing{MessageId: "b", Headers: amqp091.Table{"redrive-deadline": true}}), // in two seconds
		},
		"for a rate limit": {change: slowly, messages: append(letters("a"), expires), want: []string{"a1"}},
		"for a rate limit in a strict queue": {
			change: both(strict(v1alpha1.OnFailureContinue), slowly), messages: append(letters("a"), expires), want: []string{"a1"},
		},
		"in a queue that would block, which goes on": {
			change:   both(strict(v1alpha1.OnFailureBlock), slowly),
			messages: slices.Concat(letters("a"), []amqp091.Publishing{expires}, letters("c")), want: []string{"a1", "c1"},
		},
		"between two tries": {
			immediate: 3, lasts: 3 * time.Second, answer: &retry.Failure{Source: retry.SourceHandler, Class: "Broken"},
			messages: []amqp091.Publishing{expires}, want: []string{"b1"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			policy := testtransport.Explicit(time.Second)
			policy.Immediate = &c.immediate
			r := newRig(t, newPartner(t, always(200)), policy, c.change)
			p := newProgram()
			p.handle = func(context.Context, handler.Request) *retry.Failure {
				time.Sleep(c.lasts)
				return c.answer
			}
			p.started(r)
			for _, m := range c.messages {
				if m.Headers["redrive-deadline"] == true {
					m.Headers["redrive-deadline"] = time.Now().Add(2 * time.Second).UnixMilli()
				}
				r.Publish(cmp.Or(c.exchange, "async"), testtransport.Queue, m)
				testtransport.Eventually(t, "the first one handed over", func() bool { return len(p.called()) > 0 })
			}
			failed := r.Take("async.failed")
			if failed.MessageId != "b" || text(t, failed.Headers, "redrive-reason") != "Expired" {
				t.Errorf("failed: %s with %v", failed.MessageId, failed.Headers)
			}
			if told, _ := failed.Headers["redrive-error-class"].(string); c.answer != nil && told != c.answer.Class {
				t.Errorf("its error is %q, want that of its attempt", told)
			}
			testtransport.Eventually(t, "the others", func() bool { return len(p.called()) >= len(c.want) })
			r.empty()
			if !slices.Equal(p.called(), c.want) {
				t.Errorf("calls %v, want %v", p.called(), c.want)
			}
		})
	}
}

// both changes a Transport twice.
func both(changes ...func(*v1alpha1.Transport)) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) {
		for _, change := range changes {
			change(t)
		}
	}
}

func TestStrict_ExpiredMessagesLeaveAQueueThatBlocks(t *testing.T) {
	r := newRig(t, newPartner(t, always(422)), testtransport.Explicit(), strict(v1alpha1.OnFailureBlock))
	r.publish(letters("a")...)
	testtransport.Eventually(t, "the queue to block", func() bool { return len(r.worker.Status().Troubles) == 1 })
	r.publish(amqp091.Publishing{MessageId: "b", Expiration: "500"})
	if failed := r.Take("async.failed"); failed.MessageId != "b" || failed.Headers["x-death"] == nil {
		t.Errorf("failed: %s with %v", failed.MessageId, failed.Headers)
	}
	if troubles := r.worker.Status().Troubles; len(troubles) != 1 {
		t.Errorf("troubles %v, want a queue that blocks", troubles)
	}
}
