package amqp

import (
	"errors"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func TestWhatIsConfirmedBeforeTheEndOfASessionCountsAsConfirmed(t *testing.T) {
	request1 := &request{mark: mark{messageID: "1"}, result: make(chan error, 1)}
	request2 := &request{mark: mark{messageID: "2"}, result: make(chan error, 1)}
	s := &publishing{
		byTag:    map[uint64]*request{1: request1, 2: request2},
		byMark:   map[mark]*request{request1.mark: request1, request2.mark: request2},
		confirms: make(chan amqp091.Confirmation, 1),
	}
	s.confirms <- amqp091.Confirmation{DeliveryTag: 1, Ack: true}
	s.end()
	if err := <-request1.result; err != nil {
		t.Errorf("confirmed, and yet: %v", err)
	}
	if err := <-request2.result; !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("not confirmed, and yet: %v", err)
	}
}
