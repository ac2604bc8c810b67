package worker_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testtransport"
)

func TestFailed_GivesEachFailureAnIDOfItsOwn(t *testing.T) {
	r := newRig(t, newPartner(t, always(400)), testtransport.Explicit(), nil)
	given := map[string]bool{}
	alike := amqp091.Publishing{MessageId: "tick", Headers: amqp091.Table{"redrive-failure-id": "forged"}}
	for range 3 {
		r.publish(alike)
		given[text(t, r.Take("async.failed").Headers, "redrive-failure-id")] = true
	}
	if len(given) != 3 || given["forged"] {
		t.Errorf("got %v", given)
	}
}
