package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/worker"
)

const (
	// heavyQueue is the second queue, whose messages are decided by an expression over their items; heavyItems is the number of these.
	heavyQueue = key + "-1"
	heavyItems = 5_000
	// lightMessages are timed, and heavyMessages go beside them.
	lightMessages, heavyMessages = 3_000, 100
	// answerTime is how long a partner takes for a message.
	answerTime = 5 * time.Millisecond
	// longItems is the number of elements in the row that measures one decision, which may take longestDecision.
	longItems       = 20_000
	longestDecision = 50 * time.Millisecond
)

// itemsOf is a body with a list of n objects, about 20 bytes each.
func itemsOf(n int) []byte {
	return []byte(`{"items":[` + strings.TrimSuffix(strings.Repeat(`{"sku":"B","qty":1},`, n), ",") + `]}`)
}

// expressions measures what expressions over lists cost others, and what one such decision costs.
func expressions(ctx context.Context, b *bench) ([]result, error) {
	beside, err := heavyBesideLight(ctx, b)
	if err != nil {
		return nil, err
	}
	decision, err := oneDecision(b.rounds)
	return append(beside, decision...), err
}

// heavyBesideLight times messages of one queue, each of which fails once, alone and with those of another queue beside them, whose failures
// are decided by an expression over a list of 100 kB.
func heavyBesideLight(ctx context.Context, b *bench) ([]result, error) {
	scene := play{
		concurrency: 10, queues: 2, handler: inProcess(), delays: []time.Duration{laneDelay},
		strategies: []v1alpha1.Strategy{{
			Name: "large", Action: v1alpha1.ActionFail, When: `message.queue == "` + heavyQueue + `" && message.body.items.exists(i, i.qty > 100)`,
		}},
	}
	return versus(ctx, b, &contest{
		name: "expressions: 3,000 messages, beside 100 with an expression over 100 kB", messages: lightMessages,
		bare: side{play: scene, unfilled: true, run: withHeavy(0)},
		ours: side{play: scene, unfilled: true, run: withHeavy(heavyMessages)},
	}, 0.8)
}

// withHeavy fills the queues with messages that are timed and so many that are not, and runs the worker until all are handled.
func withHeavy(heavy int) runner {
	large := itemsOf(heavyItems)
	return func(ctx context.Context, s *stage, m *meter) error {
		every := lightMessages / max(heavy, 1)
		number := lightMessages + heavy
		err := publish(ctx, s.channel, number, confirmWindow, func(i int) (string, string, amqp091.Publishing) {
			p := letter(i)
			if heavy > 0 && i%(every+1) == 0 {
				p.Body = large
				return exchange, heavyQueue, p
			}
			return exchange, key, p
		})
		if err != nil {
			return err
		}
		light, all := m, newMeter(number)
		failed := func(ctx context.Context, message *public.Message) error {
			time.Sleep(answerTime)
			err := failOnce(ctx, message)
			switch {
			case err != nil:
				light.begin()
			case message.Queue == key:
				light.tick()
			}
			return err
		}
		return errors.Join(ours(failed)(ctx, s, all), light.wait(ctx))
	}
}

// oneDecision times a decision that goes through a list, beside the decoding of the same body, which it cannot do without.
func oneDecision(rounds int) ([]result, error) {
	policy, err := retry.Compile("bench", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{
		{Name: "large", Action: v1alpha1.ActionFail, When: `message.body.items.exists(i, i.qty > 100)`},
	}})
	if err != nil {
		return nil, fmt.Errorf("compile a policy: %w", err)
	}
	body := itemsOf(longItems)
	now := time.Now()
	var decoding, deciding []time.Duration
	for range 10 * rounds {
		began := time.Now()
		var decoded any
		if err := json.Unmarshal(body, &decoded); err != nil {
			return nil, fmt.Errorf("decode the body: %w", err)
		}
		decoding = append(decoding, time.Since(began))
		began = time.Now()
		verdict := policy.Decide(retry.Failure{}, retry.Message{Body: body}, retry.History{Attempts: 1}, now, worker.Random{})
		deciding = append(deciding, time.Since(began))
		if len(verdict.Problems) > 0 || verdict.Action != v1alpha1.ActionRetry {
			return nil, fmt.Errorf("the expression was not evaluated: %v", verdict.Problems)
		}
	}
	middle := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	bare, ours := middle(decoding), middle(deciding)
	return []result{
		cheaper(fmt.Sprintf("expressions: a decision over %d elements, at most %s (ms)", longItems, longestDecision),
			float64(longestDecision.Milliseconds()), ours, 1),
		cheaper("expressions: an element of it, beside the decoding of the body (ns)", bare*1e6/longItems, ours*1e6/longItems, 0),
	}, nil
}
