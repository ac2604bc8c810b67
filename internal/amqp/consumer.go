package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// reopenPause is the time between two tries to consume a queue that cannot be consumed, such as one that is missing.
const reopenPause = 2 * time.Second

// Subscription is a queue to consume.
type Subscription struct {
	Queue string
	// Prefetch is the number of unacknowledged deliveries, at least 1.
	Prefetch int
	// Strict is for a quorum queue with a single active consumer whose messages are handled strictly one after another. Its
	// prefetch is 1, and no consumer is cancelled while its message is on loan: the message after it would go elsewhere.
	Strict bool
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

// of is what is wanted of a queue, and whether it is subscribed to at all. The prefetch is 0 while nothing is to be received.
func (d *demand) of(queue string) (want Subscription, subscribed bool) {
	for _, s := range d.subscriptions {
		if s.Queue != queue {
			continue
		}
		switch {
		case !d.receiving:
			s.Prefetch = 0
		case s.Strict:
			s.Prefetch = 1
		}
		return s, true
	}
	return Subscription{}, false
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

// Subscribe replaces the queues to consume. A queue that is left out is kept open until its deliveries are settled. One whose
// prefetch changes gets a new consumer in place of the one that stands, when fewer than the new prefetch are on loan.
func (c *Consumer) Subscribe(subscriptions []Subscription) {
	c.demand.update(func(d *demand) bool {
		if slices.Equal(d.subscriptions, subscriptions) {
			return false
		}
		d.subscriptions = subscriptions
		return true
	})
}

// Receive turns receiving on or off. Off, what was delivered stays on loan and can be acknowledged. Deliveries go on for up
// to about two seconds, until the consumers can be cancelled without a message on its way to them, which would count as
// redelivered; a strict queue keeps its consumer until the message on loan is settled. Quiet tells when that is over. Until
// then acknowledgements are kept back: they are sent after the cancel, or when receiving is turned on again or Run ends.
func (c *Consumer) Receive(on bool) {
	c.demand.update(func(d *demand) (changed bool) {
		changed, d.receiving = d.receiving != on, on
		return changed
	})
}

// Active is the number of queues from which messages are received at this moment, or would be if fewer were on loan.
func (c *Consumer) Active() int { return int(c.active.Load()) }

// Quiet tells whether nothing is received at this moment. After Receive(false) it stays so.
func (c *Consumer) Quiet() bool { return c.begun.Load() == 0 }

// Run keeps a session until ctx ends. deliver is called for each delivery, for those of one queue in order; it must not
// block. What bounds their number is the prefetch: a queue has at most that many on loan, and up to about twice as many while
// its consumer is cancelled and after the next one has begun, which is when fewer than its prefetch are left. A renewal of
// the session adds those of the new one. A strict queue has one.
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

	mu sync.Mutex
	// tried holds the queues that were tried, each with its refusal, if any.
	tried  map[string]error
	queues []Subscription
}

func newVerdicts(l *link) *verdicts { return &verdicts{link: l, tried: map[string]error{}} }

// expect says which queues are to be tried.
func (v *verdicts) expect(queues []Subscription) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.queues = queues
	v.judge()
}

// give says how a try at a queue went.
func (v *verdicts) give(queue string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var refusal error
	if err != nil {
		answer, _ := errors.AsType[*amqp091.Error](err)
		switch {
		case answer == nil:
			return
		case answer.Code == amqp091.AccessRefused:
			refusal = fmt.Errorf("queue %q: %w", queue, err)
		case answer.Code == amqp091.NotFound, answer.Code == amqp091.ResourceLocked, answer.Code == amqp091.PreconditionFailed:
			// The queue's own trouble, whoever asks.
		default:
			return // a connection that breaks says nothing about the queue, or about who may consume it
		}
	}
	v.tried[queue] = refusal
	v.judge()
}

func (v *verdicts) judge() {
	var refused error
	for _, s := range v.queues {
		refusal, tried := v.tried[s.Queue]
		if !tried {
			return
		}
		refused = cmp.Or(refused, refusal)
	}
	v.link.open(refused)
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
		consumer: c, queue: queue, wire: l.wire, channel: channel, life: life, retired: l.retired, verdicts: verdicts,
		settlements: newSettlements(), log: c.options.Log,
	}
	return s.run(ctx)
}
