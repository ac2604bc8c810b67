package amqp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/message"
)

var (
	// ErrSessionEnded says that the session of a delivery is over, or that the broker has taken the message back: it delivers it anew.
	ErrSessionEnded = errors.New("the session of the delivery has ended")
	// ErrNotStrict says that a delivery cannot be given back, for its subscription was not strict.
	ErrNotStrict = errors.New("only a strict subscription gives messages back")
)

// headerDeliveryCount is where a quorum queue says how often a message came back to it.
const headerDeliveryCount = "x-delivery-count"

// Delivery is a message on loan from the broker until it is settled, its session ends, or the broker takes it back.
type Delivery struct {
	// Message where it is Unreadable must not be published again: DeadLetter moves it with its headers.
	message.Message

	// Queue it came from.
	Queue string
	// LeftOut is the size of its body, in bytes, where that was not read: then nothing of the message is known but this. It was too large,
	// or, where NoRoom is true, there was no room for it at the time: GiveBack it once there is.
	LeftOut int64
	NoRoom  bool

	*loan
}

// loan is what its session keeps of a delivery, for as long as the settlement is not sent, which may be seconds while a consumer is left. The
// message is not in it: whoever has settled it has given back its room by then.
type loan struct {
	tag     uint64
	stream  *stream
	session *consuming
	// received is when it came. lost is true when the broker has taken it back.
	received time.Time
	lost     atomic.Bool
	life     lifetime
}

// lifetime is that of a loan. Its context is made for the first who asks for it: most messages are settled before anybody does.
type lifetime struct {
	mu   sync.Mutex
	ctx  context.Context //nolint:containedctx // it bounds the loan, not a call
	end  context.CancelFunc
	over bool
}

// context ends with the loan, or with that of the session.
func (l *lifetime) context(session context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.end = context.WithCancel(session)
	}
	if l.over {
		l.end()
	}
	return l.ctx
}

// finish ends the loan.
func (l *lifetime) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.end != nil {
		l.end()
	}
}

// Ack tells the broker that the message is done with. ErrSessionEnded means that it will be delivered again; nil does not
// mean that the acknowledgement has arrived: if the session ends on its way, the message comes again all the same.
//
// Only a strict subscription gives a message back: elsewhere that would look like a crash to the next consumer. Publish it
// anew instead.
func (d *Delivery) Ack() error { return d.settle(acknowledge) }

// DeadLetter leaves the message to the dead-letter exchange of its queue. It is for a message that cannot be published
// again, and safe only because the work queues dead-letter at least once. Its errors are those of Ack.
func (d *Delivery) DeadLetter() error { return d.settle(deadLetter) }

// Requeue gives the message of a strict subscription back to its place at the head of the queue, with its delivery count
// raised. Before RabbitMQ 4.0 the queue must have a delivery limit, or the message goes to the tail. Its errors are those
// of Ack, and ErrNotStrict.
func (d *Delivery) Requeue() error { return d.giveBack(requeue) }

// Release is Requeue of a message that nobody was given: RabbitMQ 4.3 does not raise its delivery count, and earlier versions do.
func (d *Delivery) Release() error { return d.giveBack(release) }

// Abandon gives the message of a strict subscription back as a worker's death would: its channel ends, and the message is
// at its place again on every version, with its delivery count raised. Whichever consumer is active then gets it. Its
// errors are those of Ack, and ErrNotStrict.
func (d *Delivery) Abandon() error { return d.giveBack(abandon) }

// GiveBack gives a message back for which there was no room. It is delivered again, here or to another consumer, as one that came
// back. Its errors are those of Ack, and ErrNotStrict for any other message.
func (d *Delivery) GiveBack() error {
	switch {
	case !d.NoRoom:
		return ErrNotStrict
	case d.Strict():
		return d.settle(abandon)
	}
	return d.settle(requeue)
}

func (d *Delivery) giveBack(end ending) error {
	if !d.stream.strict {
		return ErrNotStrict
	}
	return d.settle(end)
}

func (d *Delivery) settle(end ending) error {
	if !d.Live() || !d.session.settlements.give(settlement{loan: d.loan, end: end}) {
		return ErrSessionEnded
	}
	return nil
}

// DeliveryCount is how often the message was delivered before and came back, as its quorum queue counts: by Requeue, by
// Abandon, by Release before RabbitMQ 4.3, and with each session that ended while it was on loan. It is 0 for a message that never came back, whatever its
// publisher wrote into the header. Classic queues do not count, and leave the publisher's header as it is.
func (d *Delivery) DeliveryCount() int64 {
	if !d.Redelivered {
		return 0
	}
	return d.ClaimedDeliveries()
}

// ClaimedDeliveries is what the header of the count says, whoever wrote it: on a message that never came back, its publisher.
func (d *Delivery) ClaimedDeliveries() int64 {
	count, _ := d.Headers[headerDeliveryCount].(int64)
	return max(count, 0)
}

// Strict tells whether the delivery is of a strict subscription. One that comes from no subscription, as in tests, is not.
func (d *Delivery) Strict() bool { return d.loan != nil && d.stream.strict }

// Live tells whether the delivery's session still stands, and the broker has not taken the message back. When not, someone else may
// have it already.
func (d *Delivery) Live() bool { return d.session.life.Err() == nil && !d.lost.Load() }

// WhileLive returns a context that ends with ctx, or with the loan. It is for what is wrong to do for a message that someone else
// may have already.
func (d *Delivery) WhileLive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.life.context(d.session.life), func() { cancel(ErrSessionEnded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
