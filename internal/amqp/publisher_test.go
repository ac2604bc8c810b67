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

func TestAReturnThatNobodyKnowsConfirmsNothing(t *testing.T) {
	requests := map[uint64]*request{1: {}, 2: {}}
	s := &publishing{
		byTag: requests, byMark: map[mark]*request{}, window: inFlight,
		returns: make(chan amqp091.Return, 1), confirms: make(chan amqp091.Confirmation, 2),
	}
	results := make([]chan error, 0, 2)
	for tag, r := range requests {
		r.mark, r.result = mark{messageID: string(rune('a' + tag))}, make(chan error, 1)
		s.byMark[r.mark] = r
		results = append(results, r.result)
		s.confirms <- amqp091.Confirmation{DeliveryTag: tag, Ack: true}
	}
	s.returns <- amqp091.Return{Exchange: "async.return", RoutingKey: "gone", ReplyText: "NO_ROUTE", MessageId: "another"}
	s.confirm(<-s.confirms)
	if s.doubt == nil {
		t.Error("the session goes on")
	}
	s.end()
	for _, result := range results {
		if err := <-result; !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("one of them came back, and yet: %v", err)
		}
	}
}

func TestAReturnThatNobodyKnowsIsThatOfTheOnlyMessageInFlight(t *testing.T) {
	r := &request{mark: mark{header: "1"}, result: make(chan error, 1)}
	s := &publishing{
		byTag: map[uint64]*request{1: r}, byMark: map[mark]*request{r.mark: r}, window: inFlight, returns: make(chan amqp091.Return, 1),
	}
	s.returns <- amqp091.Return{Exchange: "async.return", RoutingKey: "gone", ReplyText: "NO_ROUTE"}
	s.confirm(amqp091.Confirmation{DeliveryTag: 1, Ack: true})
	if err := <-r.result; !errors.Is(err, ErrUnroutable) || s.doubt != nil {
		t.Errorf("the message came back, and yet: %v (doubt: %v)", err, s.doubt)
	}
}
