package amqp

import (
	"log/slog"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func TestPart_SplitsAConnectionThatEndedByAFault(t *testing.T) {
	for _, c := range []struct {
		name    string
		waiting []string
		cause   *amqp091.Error
		alone   int
	}{
		{"while a queue was to be consumed", []string{"a"}, &amqp091.Error{Code: amqp091.InternalError, Server: true}, 2},
		{"over a delivery", nil, &amqp091.Error{Code: amqp091.InternalError, Server: true}, 2},
		{"as the broker ends", nil, &amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, 0},
		{"by a cut", nil, &amqp091.Error{Code: amqp091.FrameError}, 0},
		{"by this side", nil, nil, 0},
	} {
		consumer := NewConsumer(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		consumer.Subscribe([]Subscription{{Queue: "a"}, {Queue: "b"}})
		consumer.part(c.waiting, "", c.cause)
		if got := consumer.Alone(); got != c.alone {
			t.Errorf("%s: %d queues have a connection of their own, want %d", c.name, got, c.alone)
		}
	}
}
