package amqp_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"

	"redrive.dev/redrive/internal/testtransport"
)

// RabbitMQ 4.0 ends the connection of a consumer to which it is to deliver such a message: all queues of the connection stood still.
func TestConsumer_ServesOthersBesideAMessageRabbitMQCannotHandOut(t *testing.T) {
	w := newWard(t, "evil", "sound")
	session := w.speakAMQP10(t)
	w.start(t, nil, "evil", "sound")
	w.serve(t, "sound", 10)
	w.serve(t, "evil", 1)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sender, err := session.NewSender(ctx, "/queues/evil", nil)
	if err != nil {
		t.Fatal(err)
	}
	message := amqp10.NewMessage([]byte("x"))
	message.ApplicationProperties = map[string]any{"id": amqp10.UUID{1, 2, 3}}
	if err := sender.Send(ctx, message, nil); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the message to be delivered, or its queue to be told of", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.failed["evil"] > 0 || w.came[""] > 0
	})
	w.serve(t, "sound", 10)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed["sound"] > 0 {
		t.Error("the sound queue is told of as one that cannot be consumed")
	}
}

// speakAMQP10 opens a session. RabbitMQ speaks AMQP 1.0 by itself from 4.0 on: `make test-brokers` has those.
func (w *ward) speakAMQP10(t *testing.T) *amqp10.Session {
	t.Helper()
	u, err := url.Parse(w.own.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := amqp10.Dial(ctx, "amqp://"+u.Host, &amqp10.ConnOptions{
		HostName: "vhost:" + strings.TrimPrefix(w.target.VHost, "/"), SASLType: amqp10.SASLTypePlain(w.target.Username, w.target.Password),
	})
	if err != nil {
		t.Skip("this RabbitMQ speaks no AMQP 1.0")
	}
	t.Cleanup(func() { _ = conn.Close() })
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}
