package broker_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// queueOfTheirs is a vhost with the queue "theirs", which is bound by AMQP.
func queueOfTheirs(t *testing.T) (*amqp091.Channel, *broker.Client) {
	t.Helper()
	b := testbroker.Shared(t)
	vhost := b.Vhost(t)
	conn, err := amqp091.Dial(b.URL(vhost))
	if err != nil {
		t.Fatal("no AMQP connection")
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare("theirs", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return channel, connect(t, config(t, b, vhost))
}

// Anybody may bind so, with AMQP. Redrive itself does not.
func TestObserve_TellsOfABindingThatCannotBeListed(t *testing.T) {
	channel, client := queueOfTheirs(t)
	bind := func(key string, arguments amqp091.Table) error {
		t.Helper()
		if err := channel.QueueBind("theirs", key, "amq.topic", false, arguments); err != nil {
			t.Fatal(err)
		}
		_, err := client.Observe(t.Context())
		return err
	}
	// Those that are allowed: ~ alone with arguments, and any without.
	for key, arguments := range map[string]amqp091.Table{"~": {"note": "x"}, "a~b": nil} {
		if err := bind(key, arguments); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	err := bind("a~b", amqp091.Table{"note": "x"})
	if err == nil || !errors.Is(err, broker.ErrUnreachable) || !strings.Contains(err.Error(), "has arguments and a ~ in its key") {
		t.Errorf("the cause is not told: %v", err)
	}
}

func TestApply_RefusesToUnbindWhatItCannotName(t *testing.T) {
	channel, client := queueOfTheirs(t)
	for key, named := range map[string]bool{"null": false, ".": false, "..": false, "~": true, "nullable": true, "...": true} {
		if err := channel.QueueBind("theirs", key, "amq.topic", false, nil); err != nil {
			t.Fatal(err)
		}
		ways, err := client.Bindings(t.Context(), "theirs")
		if err != nil || len(ways) != 1 {
			t.Fatalf("%q: %v, %v", key, ways, err)
		}
		_, err = client.Apply(t.Context(), topology.Step{Action: topology.ActionDelete, Binding: &ways[0]})
		left, failed := client.Bindings(t.Context(), "theirs")
		if failed != nil || (err == nil) != named || (len(left) == 0) != named {
			t.Errorf("%q: %v are left, and it says %v", key, left, err)
		}
		if err := channel.QueueUnbind("theirs", key, "amq.topic", nil); err != nil {
			t.Fatal(err)
		}
	}
}
