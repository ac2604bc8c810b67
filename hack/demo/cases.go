package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

const (
	// total number of messages.
	total = 1000
	// hang stands for an answer that never comes.
	hang = 0
	// retryAfter is what the partner asks for with a 429.
	retryAfter = 2 * time.Second
)

// scenario is how the partner behaves towards a part of the messages.
type scenario struct {
	name string
	// messages of this kind.
	messages int
	// key that they are published with.
	key string
	// answers of the partner in their order, as HTTP statuses; the last one repeats.
	answers []int
}

const (
	boundKey   = "test"
	lostQueue  = "lost"
	unboundKey = "nobody-bound-this"
)

func scenarios() []scenario {
	const ok, bad, many, invalid = http.StatusOK, http.StatusBadGateway, http.StatusTooManyRequests, http.StatusUnprocessableEntity
	return []scenario{
		{"200", 830, boundKey, []int{ok}},
		{"200, by a key that nobody bound (queue lost)", 10, unboundKey, []int{ok}},
		{"502, then 200", 60, boundKey, []int{bad, ok}},
		{"502 twice, then 200", 25, boundKey, []int{bad, bad, ok}},
		{"429 with Retry-After: 2, then 200", 40, boundKey, []int{many, ok}},
		{"no answer in time, then 200", 14, boundKey, []int{hang, ok}},
		{"422", 20, boundKey, []int{invalid}},
		{"502 for ever", 1, boundKey, []int{bad}},
	}
}

// message is one message that is published.
type message struct {
	id       string
	scenario int
}

// shuffled gives all messages in an order that mixes the scenarios, the same every time. The one that takes longest is the
// first.
func shuffled(all []scenario) []message {
	messages := make([]message, 0, total)
	for i, s := range all {
		for range s.messages {
			messages = append(messages, message{id: fmt.Sprintf("order-%04d", len(messages)+1), scenario: i})
		}
	}
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same order every time
	last := len(messages) - 1
	messages[0], messages[last] = messages[last], messages[0]
	random.Shuffle(last, func(i, j int) { messages[i+1], messages[j+1] = messages[j+1], messages[i+1] })
	return messages
}

// answer to an attempt, counted from 0.
func (s scenario) answer(attempt int) int { return s.answers[min(attempt, len(s.answers)-1)] }

// asked are the delays that the policy asks for between the attempts of a scenario.
func (s scenario) asked(policy *retry.Policy) []time.Duration {
	var delays []time.Duration
	var history retry.History
	now := time.Unix(0, 0)
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the sample has no jitter
	for attempt := 0; s.answer(attempt) != http.StatusOK; attempt++ {
		verdict := policy.Decide(failureOf(s.answer(attempt)), retry.Message{Queue: boundKey}, history, now, random)
		if verdict.Action != v1alpha1.ActionRetry {
			break
		}
		delays = append(delays, verdict.Delay)
		history, now = verdict.History, now.Add(verdict.Delay)
	}
	return delays
}

func failureOf(status int) retry.Failure {
	failure := retry.Failure{Source: retry.SourceHandler, Status: status}
	switch status {
	case hang:
		failure.Source = retry.SourceTimeout
	case http.StatusTooManyRequests:
		after := retryAfter
		failure.RetryAfter = &after
	}
	return failure
}

// sleep returns early when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
