package amqp

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// stream is what one consumer, as the broker has it, delivers.
type stream struct {
	tag        string
	deliveries <-chan amqp091.Delivery
	prefetch   int
	strict     bool
	// passing streams are there to be cancelled, whatever is wanted.
	passing bool
	// unsettled are the deliveries that the broker awaits the settlement of. As many as the prefetch: it sends no more.
	unsettled int
	// stirred is when a message was last delivered or, by a settlement, asked for.
	stirred time.Time
}

// consuming is one channel of one queue. Only run's goroutine uses the channel, or waits for the one that does.
type consuming struct {
	consumer *Consumer
	queue    string
	// alone is the queue where it has the connection for itself, and else empty.
	alone   string
	channel *amqp091.Channel
	log     *slog.Logger
	wire    *wire
	// settlements are sent before the channel is closed, all that were taken.
	settlements *settlements
	// taken are those at hand, and acknowledged the tags among what is to be sent at the next flush.
	taken        []settlement
	acknowledged []uint64
	tags         openTags
	// closed gets the end of the channel, and retiring, until that was seen, the end of the session's time.
	closed   <-chan *amqp091.Error
	retiring <-chan struct{}
	// gathering ends the time for which acknowledgements are gathered, and gathered is true when it has.
	gathering *time.Timer
	gathered  bool
	armed     bool
	// sent is when something was last settled.
	sent time.Time
	// life ends with the session of these deliveries.
	life context.Context //nolint:containedctx // it bounds the loans, not a call
	// retired is closed when another session takes over.
	retired  <-chan struct{}
	verdicts *verdicts
	tried    bool
	// unasked is true once the verdicts know that the broker is not asked yet.
	unasked bool

	// known is what was asked of the queue when changed was the newest channel of the demand.
	known struct {
		want       Subscription
		subscribed bool
		changed    <-chan struct{}
	}
	// current is nil while nothing is consumed.
	current *stream
	// serving is true where this channel is one of Consumer.serving.
	serving bool
	// leaving is nil but while the current consumer is about to be cancelled.
	leaving *leave
	// cancelled is true from then until the last delivery of the current consumer was taken.
	cancelled bool
	// next, if any, follows the current one once that has ended.
	next *stream
	// wake is when a consumer that is about to be cancelled is looked at again.
	wake <-chan time.Time
	// started counts the consumers so far, and tagged is how their tags begin: no other channel of the connection has such.
	started int
	tagged  string
	// loans are those of all consumers so far that are not settled, by their tags.
	loans map[uint64]*loan
	// overdue ticks once the broker has cancelled a consumer, and expired are the tags that it is to be told of.
	overdue <-chan time.Time
	expired []uint64
}

// run returns nil when the channel is over: the queue is not subscribed to any more, ctx has ended, or a strict queue is to be
// left as it is. It returns the cause when the channel failed.
func (s *consuming) run(ctx context.Context) error {
	defer s.serve(&Subscription{})
	defer s.stopped()
	err := s.loop(ctx)
	rest := s.settlements.end()
	if err != nil {
		return err
	}
	// The channel is closed next: what was given until now is on its way before that, and what does not arrive is delivered
	// again.
	_ = s.stay()
	for _, settled := range rest {
		s.sent = time.Now()
		if settled.end == acknowledge || settled.end == deadLetter {
			_ = s.send(settled)
		}
	}
	if s.flush() == nil {
		time.Sleep(arriveTime - time.Since(s.sent))
	}
	return nil
}

func (s *consuming) loop(ctx context.Context) error {
	s.gathering = time.NewTimer(gatherTime)
	s.gathering.Stop()
	s.closed, s.retiring = s.channel.NotifyClose(make(chan *amqp091.Error, 1)), s.retired
	for {
		want, subscribed, changed := s.wanted()
		if !subscribed && s.current == nil && len(s.loans) == 0 {
			return nil
		}
		if over, err := s.adjust(&want); over || err != nil {
			return err
		}
		s.serve(&want)
		s.works()
		more, over, err := s.busy(ctx)
		if !more && !over && err == nil {
			over, err = s.idle(ctx, changed)
		}
		if over || err != nil {
			return err
		}
	}
}

// idle waits until there is something to do.
func (s *consuming) idle(ctx context.Context, changed <-chan struct{}) (over bool, err error) {
	if len(s.acknowledged) > 0 && !s.gathers() {
		if err := s.flush(); err != nil {
			return true, err
		}
	}
	select {
	case d, ok := <-s.deliveries():
		if !ok {
			return false, s.ended(ctx)
		}
		s.take(s.current, &d)
	case <-s.settlements.due:
		return s.settleAll()
	case <-s.gathering.C:
		s.gathered = true
	case err := <-s.closed:
		return true, closing(err)
	case <-s.wake:
	case <-s.overdue:
		s.expire()
		return false, s.giveBack()
	case <-changed:
	case <-s.retiring:
		s.retiring = nil
	case <-ctx.Done():
		return true, nil
	}
	return false, nil
}

// busy takes what is there already, without a wait; more is false when there was nothing.
func (s *consuming) busy(ctx context.Context) (more, over bool, err error) {
	if s.wake != nil {
		return false, false, nil
	}
	select {
	case <-ctx.Done():
		return false, false, nil
	default:
	}
	select {
	case d, ok := <-s.deliveries():
		if !ok {
			return false, false, nil // idle sees to the end of a consumer
		}
		s.take(s.current, &d)
		more = true
	default:
	}
	select {
	case <-s.settlements.due:
		more = true
		if over, err = s.settleAll(); !over && err == nil && !s.gathers() {
			err = s.flush()
		}
	default:
	}
	return more, over, err
}

// wanted is what is asked of this session: nothing more where another one has taken over.
func (s *consuming) wanted() (want Subscription, subscribed bool, changed <-chan struct{}) {
	all, changed := s.consumer.demand.get()
	select {
	case <-s.retired:
		return Subscription{}, false, changed
	default:
	}
	if s.known.changed != changed {
		s.known.changed = changed
		s.known.want, s.known.subscribed = all.of(s.queue, s.alone)
		if s.alone != "" && s.consumer.isUndelivered(s.alone) {
			s.known.want.Prefetch = min(1, s.known.want.Prefetch)
		}
	}
	return s.known.want, s.known.subscribed, changed
}

// works says, once, that the broker lets the queue be consumed. It was not asked while nothing is to be received.
func (s *consuming) works() {
	switch {
	case s.tried:
	case s.current != nil:
		s.tried = true
		s.verdicts.give(s.queue, nil)
	case !s.unasked:
		s.unasked = true
		s.verdicts.postpone()
	}
}

// deliveries of the current consumer; nil where there is none.
func (s *consuming) deliveries() <-chan amqp091.Delivery { return s.current.received() }

func (s *stream) received() <-chan amqp091.Delivery {
	if s == nil {
		return nil
	}
	return s.deliveries
}

// ask asks the broker something, and takes meanwhile what is delivered: the answer may come behind a body that has no room as long as
// those before it are not taken.
func (s *consuming) ask(question func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- question() }()
	current, next := s.current.received(), s.next.received()
	for {
		select {
		case err := <-answer:
			return err
		case d, ok := <-current:
			if !ok {
				current = nil
				continue
			}
			s.take(s.current, &d)
		case d, ok := <-next:
			if !ok {
				next = nil
				continue
			}
			s.take(s.next, &d)
		}
	}
}

func (s *consuming) take(from *stream, d *amqp091.Delivery) {
	s.tags.taken(d.DeliveryTag)
	from.unsettled++
	from.stirred = time.Now()
	if s.leaving != nil && from == s.current {
		s.leaving.arrived++
	}
	door, own := s.wire.door.Load(), s.wire.apart.fetch(d.ConsumerTag, d.DeliveryTag)
	if own != nil {
		d.Body = own
	}
	unread, unreadable := d.Headers[s.wire.mark]
	leftOut, _ := unread.(int64)
	m := fromDelivery(d)
	m.Unreadable = unreadable
	its := &loan{tag: d.DeliveryTag, stream: from, session: s, received: from.stirred}
	s.loans[its.tag] = its
	s.consumer.deliver(&Delivery{
		Message: m, Queue: s.queue, LeftOut: max(0, leftOut, -leftOut), NoRoom: leftOut < 0, loan: its,
	})
	if own != nil { // whoever has it has counted it
		door.gone(int64(len(own)))
	} else {
		door.arrived(int64(len(d.Body)))
	}
}

// adjust starts the broker's consumer, or cancels it, as wanted. A consumer starts only when fewer than its prefetch are on
// loan: the broker does not count what an earlier consumer of the channel still holds. The channel is over where that must
// end instead.
func (s *consuming) adjust(want *Subscription) (over bool, err error) {
	s.wake = nil
	switch {
	case s.current == nil:
		if len(s.loans) < want.Prefetch {
			return false, s.start(want)
		}
		return false, nil
	case s.cancelled:
		return false, nil
	case s.current.prefetch == want.Prefetch && s.current.strict == want.Strict && !s.current.passing:
		return false, s.stay()
	default:
		return s.leave()
	}
}

func (s *consuming) start(want *Subscription) error {
	s.consumer.begun.Add(1)
	defer func() {
		if s.current == nil {
			s.consumer.begun.Add(-1)
		}
	}()
	// Looked at after begun was raised: who turns receiving off and then finds nothing begun can rely on it.
	if all, _ := s.consumer.demand.get(); !all.receiving {
		return nil
	}
	begun := &stream{prefetch: want.Prefetch, strict: want.Strict, stirred: time.Now()}
	if err := s.consume(begun); err != nil {
		return err
	}
	s.current = begun
	return nil
}

// consume starts a consumer, and returns when the queue has it. What the queue had assigned to others of this channel before
// that has then reached the channel.
func (s *consuming) consume(to *stream) (err error) {
	if err := s.ask(func() error { return s.channel.Qos(to.prefetch, 0, false) }); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	// A tag is used once: RabbitMQ 3.10 ends the channel when a quorum queue sees a cancelled consumer's tag again.
	s.started++
	to.tag = s.tagged + strconv.Itoa(s.started)
	var arguments amqp091.Table
	if to.passing {
		arguments = amqp091.Table{"x-priority": int32(priority)}
	}
	err = s.verdicts.ask(s.queue, func() error {
		return s.ask(func() (err error) {
			to.deliveries, err = s.channel.Consume(s.queue, to.tag, false, false, false, false, arguments)
			return err //nolint:wrapcheck // wrapped below
		})
	})
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	s.consumer.tell(s.queue, nil)
	return nil
}

// ended handles the end of a consumer: by our own cancel, by the broker's (the queue is deleted or lost its leader, or a
// delivery was on loan for too long), or with the channel. After the broker's cancel the channel and the loans stand, so
// it is consumed again, after a pause: on the same channel where that disturbs no other queue, and else on a connection of its own.
func (s *consuming) ended(ctx context.Context) error {
	if s.cancelled && s.next != nil {
		s.current, s.next, s.cancelled = s.next, nil, false
		// What it was sent since is in the library's hands: not yet taken, and a sign that the queue is not quiet.
		s.current.stirred = latest(s.current.stirred, time.Now().Add(takeTime-quietTime))
		return nil
	}
	cancelled := s.current.tag
	s.stopped()
	if s.cancelled {
		s.cancelled = false
		return nil
	}
	s.serve(&Subscription{})
	s.expire()
	select {
	case err := <-s.closed:
		return closing(err)
	case <-ctx.Done():
		return nil
	case <-time.After(reopenPause / 4):
	}
	s.log.Warn("the broker cancelled the consumer", "queue", s.queue, "takenBack", len(s.expired))
	if err := s.dismiss(cancelled); err != nil {
		return err
	}
	if s.alone == "" {
		s.consumer.partFrom(s.queue)
	}
	return s.stay()
}

func (s *consuming) stopped() {
	if s.current != nil {
		s.current = nil
		s.consumer.begun.Add(-1)
	}
}

// serve takes down whether the queue is consumed. It is too where a consumer waits to be replaced by one with a smaller prefetch,
// because more is on loan.
func (s *consuming) serve(want *Subscription) {
	serving := s.current != nil || want.Prefetch > 0 && len(s.loans) >= want.Prefetch
	switch {
	case serving && !s.serving:
		s.consumer.serve(s.queue, 1)
	case !serving && s.serving:
		s.consumer.serve(s.queue, -1)
	}
	s.serving = serving
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
