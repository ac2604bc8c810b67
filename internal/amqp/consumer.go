package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

// ErrSessionEnded says that the session of a delivery is over: the broker has the message again, and delivers it anew.
var ErrSessionEnded = errors.New("the session of the delivery has ended")

// reopenPause is the time between two tries to consume a queue that cannot be consumed, such as one that is missing.
const reopenPause = 2 * time.Second

// Subscription is a queue to consume.
type Subscription struct {
	Queue string
	// Prefetch is the number of unacknowledged deliveries, at least 1.
	Prefetch int
}

// Delivery is a message on loan from the broker until it is acknowledged or its session ends.
type Delivery struct {
	message.Message

	// Queue it came from.
	Queue string
	// Unreadable is true when the message has headers that cannot be read. They are not in it, so it must not be published
	// again; DeadLetter moves it with them.
	Unreadable bool

	tag     uint64
	session *consuming
}

// Ack tells the broker that the message is done with. ErrSessionEnded means that it will be delivered again; nil does not
// mean that the acknowledgement has arrived: if the session ends on its way, the message comes again all the same.
//
// There is no way to give a message back: it would look like a crash to the next consumer. Publish it anew instead.
func (d *Delivery) Ack() error { return d.settle(settlement{tag: d.tag}) }

// DeadLetter leaves the message to the dead-letter exchange of its queue. It is for a message that cannot be published
// again, and safe only because the work queues dead-letter at least once. Its errors are those of Ack.
func (d *Delivery) DeadLetter() error { return d.settle(settlement{tag: d.tag, reject: true}) }

func (d *Delivery) settle(s settlement) error {
	select {
	case d.session.settlements <- s:
		return nil
	case <-d.session.life.Done():
		return ErrSessionEnded
	}
}

// Live tells whether the delivery's session still stands. When it does not, someone else may have the message already.
func (d *Delivery) Live() bool { return d.session.life.Err() == nil }

// WhileLive returns a context that ends with ctx, or with the delivery's session. It is for what is wrong to do for a
// message that someone else may have already.
func (d *Delivery) WhileLive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.session.life, func() { cancel(ErrSessionEnded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Consumer receives from queues, over as many sessions as it takes: one connection, and a channel for each queue, so that
// a queue that is missing does not disturb the others.
type Consumer struct {
	options    Options
	supervisor *supervisor
	demand     watched[demand]
	// deliver takes the deliveries of all sessions.
	deliver func(*Delivery)
	active  atomic.Int64
	// begun counts the active ones and those about to be.
	begun atomic.Int64
}

type demand struct {
	subscriptions []Subscription
	receiving     bool
}

// prefetch of a queue, and whether it is subscribed to at all; 0 while nothing is to be received.
func (d *demand) prefetch(queue string) (prefetch int, subscribed bool) {
	for _, s := range d.subscriptions {
		if s.Queue == queue {
			if !d.receiving {
				return 0, true
			}
			return s.Prefetch, true
		}
	}
	return 0, false
}

// NewConsumer returns a Consumer that receives nothing before Subscribe and Receive.
func NewConsumer(options Options) *Consumer {
	c := &Consumer{options: options}
	c.supervisor = newSupervisor(&c.options, c.session)
	return c
}

// Renew makes a session with what the source gives now. The one that stands goes on until that one receives, and then until
// its deliveries are settled: nothing is given back to the broker.
func (c *Consumer) Renew() { c.supervisor.renew() }

// Trouble is why there is no session, or none yet with the newest credentials; nil where there is.
func (c *Consumer) Trouble() error { return c.supervisor.trouble() }

// Subscribe replaces the queues to consume. A queue that is left out is kept open until its deliveries are settled.
func (c *Consumer) Subscribe(subscriptions []Subscription) {
	c.demand.update(func(d *demand) { d.subscriptions = subscriptions })
}

// Receive turns receiving on or off. Off, what was delivered stays on loan and can be acknowledged.
func (c *Consumer) Receive(on bool) {
	c.demand.update(func(d *demand) { d.receiving = on })
}

// Active is the number of queues from which messages are received at this moment.
func (c *Consumer) Active() int { return int(c.active.Load()) }

// Quiet tells whether nothing is received at this moment. After Receive(false) it stays so.
func (c *Consumer) Quiet() bool { return c.begun.Load() == 0 }

// Run keeps a session until ctx ends. deliver is called for each delivery, for those of one queue in order; it must not
// block. What bounds their number is the prefetch: a queue has at most that many on loan, and at most twice as many after
// receiving was turned off and on again, or the session renewed.
func (c *Consumer) Run(ctx context.Context, deliver func(*Delivery)) {
	c.deliver = deliver
	c.supervisor.run(ctx)
}

func (c *Consumer) session(ctx context.Context, l *link) error {
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	closed := l.conn.NotifyClose(make(chan *amqp091.Error, 1))
	running := map[string]bool{}
	ended, verdicts := make(chan string), newVerdicts(l)
	retired := l.retired
	for {
		want, changed := c.demand.get()
		if retired == nil {
			want = demand{}
		}
		verdicts.expect(want.subscriptions)
		for _, s := range want.subscriptions {
			if running[s.Queue] {
				continue
			}
			running[s.Queue] = true
			loops.Go(func() {
				c.consumeQueue(ctx, l, s.Queue, verdicts)
				select {
				case ended <- s.Queue:
				case <-ctx.Done():
				}
			})
		}
		if retired == nil && len(running) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-retired:
			retired = nil
		case queue := <-ended:
			delete(running, queue)
		case err := <-closed:
			return closing(err)
		case <-ctx.Done():
			return nil
		}
	}
}

// verdicts open a link once each queue was tried. A queue that is missing is none of the credentials' business; one that
// they give no right to is.
type verdicts struct {
	link *link

	mu      sync.Mutex
	tried   map[string]bool
	refused error
	queues  []Subscription
}

func newVerdicts(l *link) *verdicts { return &verdicts{link: l, tried: map[string]bool{}} }

// expect says which queues are to be tried.
func (v *verdicts) expect(queues []Subscription) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.queues = queues
	v.judge()
}

// give says how the first try at a queue went.
func (v *verdicts) give(queue string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		answer, _ := errors.AsType[*amqp091.Error](err)
		switch {
		case answer == nil:
			return
		case answer.Code == amqp091.AccessRefused:
			v.refused = fmt.Errorf("queue %q: %w", queue, err)
		case answer.Code == amqp091.NotFound, answer.Code == amqp091.ResourceLocked, answer.Code == amqp091.PreconditionFailed:
			// The queue's own trouble, whoever asks.
		default:
			return // a connection that breaks says nothing about the queue, or about who may consume it
		}
	}
	v.tried[queue] = true
	v.judge()
}

func (v *verdicts) judge() {
	for _, s := range v.queues {
		if !v.tried[s.Queue] {
			return
		}
	}
	v.link.open(v.refused)
}

// consumeQueue consumes one queue, over as many channels as it takes, until it is not subscribed to any more.
func (c *Consumer) consumeQueue(ctx context.Context, l *link, queue string, verdicts *verdicts) {
	last := repeated{log: c.options.Log.With("queue", queue)}
	for ctx.Err() == nil && !l.conn.IsClosed() {
		channel, err := l.conn.Channel()
		if err == nil {
			if err = c.consumeOn(ctx, l, channel, queue, verdicts); err == nil {
				return
			}
		}
		verdicts.give(queue, err)
		last.warn("queue cannot be consumed", err, "retryIn", reopenPause)
		if l.isRetired() {
			return // it holds nothing any more
		}
		select {
		case <-ctx.Done():
		case <-l.retired:
		case <-time.After(reopenPause):
		}
	}
}

func (c *Consumer) consumeOn(ctx context.Context, l *link, channel *amqp091.Channel, queue string, verdicts *verdicts) error {
	defer func() { _ = channel.Close() }()
	life, end := context.WithCancel(ctx)
	defer end()
	s := &consuming{
		consumer: c, queue: queue, channel: channel, life: life, retired: l.retired, verdicts: verdicts,
		settlements: make(chan settlement), log: c.options.Log,
	}
	return s.run(ctx)
}

// settlement is the end of one loan.
type settlement struct {
	tag    uint64
	reject bool
}

// consuming is one channel of one queue. Only run's goroutine uses the channel.
type consuming struct {
	consumer *Consumer
	queue    string
	channel  *amqp091.Channel
	log      *slog.Logger
	// settlements has no buffer, so that what it took is sent before the channel is closed.
	settlements chan settlement
	// life ends with the session of these deliveries.
	life context.Context //nolint:containedctx // it bounds the loans, not a call
	// retired is closed when another session takes over.
	retired  <-chan struct{}
	verdicts *verdicts
	tried    bool

	deliveries  <-chan amqp091.Delivery
	tag         string
	consumers   int
	prefetch    int
	cancelling  bool
	outstanding int
}

// run returns nil when the queue is not subscribed to any more or ctx has ended, and the cause when the channel failed.
func (s *consuming) run(ctx context.Context) error {
	defer s.stopped()
	closed := s.channel.NotifyClose(make(chan *amqp091.Error, 1))
	for {
		prefetch, subscribed, changed := s.wanted()
		if !subscribed && s.deliveries == nil && s.outstanding == 0 {
			return nil
		}
		if err := s.adjust(prefetch); err != nil {
			return err
		}
		s.works()
		select {
		case d, ok := <-s.deliveries:
			if ok {
				s.take(&d)
				continue
			}
			if err := s.ended(ctx, closed); err != nil {
				return err
			}
		case settled := <-s.settlements:
			if err := s.send(settled); err != nil {
				return err
			}
		case err := <-closed:
			return closing(err)
		case <-changed:
		case <-s.retired:
			s.retired = nil
		case <-ctx.Done():
			return nil
		}
	}
}

// wanted is what is asked of this session: nothing more where another one has taken over.
func (s *consuming) wanted() (prefetch int, subscribed bool, changed <-chan struct{}) {
	want, changed := s.consumer.demand.get()
	if s.retired == nil {
		return 0, false, changed
	}
	prefetch, subscribed = want.prefetch(s.queue)
	return prefetch, subscribed, changed
}

// works says, once, that the broker lets the queue be consumed.
func (s *consuming) works() {
	if !s.tried {
		s.tried = true
		s.verdicts.give(s.queue, nil)
	}
}

func (s *consuming) take(d *amqp091.Delivery) {
	s.outstanding++
	_, unreadable := d.Headers[headerUnreadable]
	s.consumer.deliver(&Delivery{Message: fromDelivery(d), Queue: s.queue, Unreadable: unreadable, tag: d.DeliveryTag, session: s})
}

func (s *consuming) send(settled settlement) error {
	s.outstanding--
	if settled.reject {
		if err := s.channel.Reject(settled.tag, false); err != nil {
			return fmt.Errorf("reject: %w", err)
		}
		return nil
	}
	if err := s.channel.Ack(settled.tag, false); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// adjust starts or cancels the broker's consumer as wanted. A consumer starts only when fewer than its prefetch are on
// loan: the broker does not count what an earlier consumer of the channel still holds.
func (s *consuming) adjust(prefetch int) error {
	switch {
	case s.deliveries != nil && !s.cancelling && prefetch != s.prefetch:
		s.cancelling = true
		if err := s.channel.Cancel(s.tag, false); err != nil {
			return fmt.Errorf("cancel the consumer: %w", err)
		}
	case s.deliveries == nil && prefetch > 0 && s.outstanding < prefetch:
		return s.start(prefetch)
	}
	return nil
}

func (s *consuming) start(prefetch int) error {
	s.consumer.begun.Add(1)
	defer func() {
		if s.deliveries == nil {
			s.consumer.begun.Add(-1)
		}
	}()
	// Looked at after begun was raised: who turns receiving off and then finds nothing begun can rely on it.
	if want, _ := s.consumer.demand.get(); !want.receiving {
		return nil
	}
	if err := s.channel.Qos(prefetch, 0, false); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	// A tag is used once: RabbitMQ 3.10 ends the channel when a quorum queue sees a cancelled consumer's tag again.
	s.consumers++
	s.tag = "redrive-" + strconv.Itoa(s.consumers)
	deliveries, err := s.channel.Consume(s.queue, s.tag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	s.deliveries, s.prefetch = deliveries, prefetch
	s.consumer.active.Add(1)
	return nil
}

// ended handles the end of a consumer: by our own cancel, by the broker's (the queue is deleted or lost its leader, or a
// delivery was on loan for too long), or with the channel. After the broker's cancel the channel and the loans stand, so
// it is consumed again on the same channel, after a pause.
func (s *consuming) ended(ctx context.Context, closed <-chan *amqp091.Error) error {
	s.stopped()
	if s.cancelling {
		s.cancelling = false
		return nil
	}
	select {
	case err := <-closed:
		return closing(err)
	case <-ctx.Done():
		return nil
	case <-time.After(reopenPause / 4):
	}
	s.log.Warn("the broker cancelled the consumer", "queue", s.queue)
	return nil
}

func (s *consuming) stopped() {
	if s.deliveries != nil {
		s.deliveries = nil
		s.consumer.active.Add(-1)
		s.consumer.begun.Add(-1)
	}
}
