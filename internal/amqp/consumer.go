package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
// a queue that is missing does not disturb the others. A queue over which RabbitMQ ends a whole connection gets one of its own: see
// part.
type Consumer struct {
	options Options
	// shared keeps the connection of the queues that have none of their own, and alone, by queue, the other ones.
	shared *supervisor
	mu     sync.Mutex
	alone  map[string]*apart
	// opening bounds how many of these connect at a time.
	opening chan struct{}
	// probations are those of queues over which a connection has ended, and shortest is that of all others.
	probations map[string]time.Duration
	shortest   time.Duration
	demand     watched[demand]
	// crowded counts how often a connection was not allowed, for there may be too many.
	crowded watched[int]
	// deliver takes the deliveries of all sessions.
	deliver func(*Delivery)
	// serving counts, by queue, the channels that receive from it: two while one takes over from another.
	serving map[string]int
	// begun counts these channels, and those about to be.
	begun atomic.Int64
}

type demand struct {
	subscriptions []Subscription
	receiving     bool
	// alone are the queues that have a connection of their own. The map is replaced, never changed.
	alone map[string]bool
}

// at are the subscriptions of one connection: of the queue that has it for itself, or, with an empty name, of all that share one.
func (d *demand) at(alone string) (subscriptions []Subscription) {
	for _, s := range d.subscriptions {
		if d.alone[s.Queue] == (alone != "") && (alone == "" || alone == s.Queue) {
			subscriptions = append(subscriptions, s)
		}
	}
	return subscriptions
}

// of is what is wanted of a queue on one connection, and whether it is subscribed to there at all. The prefetch is 0 while nothing
// is to be received.
func (d *demand) of(queue, alone string) (want Subscription, subscribed bool) {
	for _, s := range d.subscriptions {
		if s.Queue != queue || d.alone[queue] != (alone != "") {
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
	c := &Consumer{
		options: options, alone: map[string]*apart{}, probations: map[string]time.Duration{}, shortest: probation, serving: map[string]int{},
		opening: make(chan struct{}, openAtOnce),
	}
	c.shared = newSupervisor(&c.options, func(ctx context.Context, l *link) error { return c.session(ctx, l, "") })
	c.shared.full = c.full
	return c
}

// Renew makes a session with what the source gives now. The one that stands goes on until that one receives, and then until
// its deliveries are settled: nothing is given back to the broker.
func (c *Consumer) Renew() {
	c.shared.renew()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.alone {
		own.renew()
	}
}

// Trouble is why there is no session, or none yet with the newest credentials; nil where there is. It is that of a queue with a
// connection of its own where the one that queues share has none.
func (c *Consumer) Trouble() error {
	if err := c.shared.trouble(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, queue := range slices.Sorted(maps.Keys(c.alone)) {
		if err := c.alone[queue].trouble(); err != nil {
			return fmt.Errorf("queue %q: %w", queue, err)
		}
	}
	return nil
}

// Subscribe replaces the queues to consume. A queue that is left out is kept open until its deliveries are settled. One whose
// prefetch changes gets a new consumer in place of the one that stands, when fewer than the new prefetch are on loan.
func (c *Consumer) Subscribe(subscriptions []Subscription) {
	c.demand.update(func(d *demand) bool {
		if slices.Equal(d.subscriptions, subscriptions) {
			return false
		}
		for _, before := range d.subscriptions {
			if !slices.ContainsFunc(subscriptions, func(s Subscription) bool { return s.Queue == before.Queue }) {
				c.told(before.Queue, nil)
			}
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

// IsSubscribed tells whether the queue is among those to consume.
func (c *Consumer) IsSubscribed(queue string) bool {
	d, _ := c.demand.get()
	return slices.ContainsFunc(d.subscriptions, func(s Subscription) bool { return s.Queue == queue })
}

// Active is the number of queues from which messages are received at this moment, or would be if fewer were on loan.
func (c *Consumer) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.serving)
}

// isServed tells whether a channel receives from the queue.
func (c *Consumer) isServed(queue string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serving[queue] > 0
}

// serve counts a channel that receives from a queue, or one less.
func (c *Consumer) serve(queue string, more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving[queue] += more; c.serving[queue] == 0 {
		delete(c.serving, queue)
	}
}

// Quiet tells whether nothing is received at this moment. After Receive(false) it stays so.
func (c *Consumer) Quiet() bool { return c.begun.Load() == 0 }

// Run keeps a session until ctx ends. deliver is called for each delivery, for those of one queue in order; it must not
// block. What bounds their number is the prefetch: a queue has at most that many on loan, and up to about twice as many while
// its consumer is cancelled and after the next one has begun, which is when fewer than its prefetch are left. A renewal of
// the session adds those of the new one. A strict queue has one.
func (c *Consumer) Run(ctx context.Context, deliver func(*Delivery)) {
	c.deliver = deliver
	var shared sync.WaitGroup
	defer shared.Wait()
	shared.Go(func() { c.shared.run(ctx) })
	c.keepAlone(ctx)
}

// session serves the queues of one connection: of one queue, or, with an empty name, of all that share it.
func (c *Consumer) session(ctx context.Context, l *link, alone string) error {
	ctx, cancel := context.WithCancel(ctx)
	loops := newLoops()
	defer loops.all.Wait()
	defer cancel()
	closed := l.conn.NotifyClose(make(chan *amqp091.Error, 1))
	verdicts, retired := newVerdicts(l), l.retired
	answered, over := verdicts.answered, (<-chan time.Time)(nil)
	var crowded <-chan struct{}
	for {
		all, changed := c.demand.get()
		want := all.at(alone)
		if retired == nil {
			want = nil
		}
		verdicts.expect(want)
		for _, s := range want {
			loops.begin(ctx, s.Queue, func() { c.consumeQueue(ctx, l, s.Queue, alone, verdicts) })
		}
		if len(loops.running) == 0 && (retired == nil || alone != "" && len(want) == 0) {
			return nil
		}
		select {
		case <-changed:
		case <-retired:
			retired = nil
		case queue := <-loops.ended:
			delete(loops.running, queue)
		case <-answered:
			if answered = nil; alone != "" {
				over = time.After(c.probation(alone))
				_, crowded = c.crowded.get()
			}
		case <-crowded:
			if crowded = nil; !c.hasFallen(alone) {
				over = time.After(shortProbation)
			}
		case <-over:
			c.rejoin(alone)
			over = time.After(c.probation(alone)) // it may be set apart again before what is on loan here is settled
		case err := <-closed:
			c.part(verdicts.waiting(), alone, err)
			return closing(err)
		case <-ctx.Done():
			return nil
		}
	}
}

// loops are the goroutines of queues: one for each.
type loops struct {
	all     sync.WaitGroup
	running map[string]bool
	// ended gets the queues whose loop has ended, which are then to be taken out of running.
	ended chan string
}

func newLoops() *loops { return &loops{running: map[string]bool{}, ended: make(chan string)} }

// begin runs the loop of a queue, unless it runs.
func (l *loops) begin(ctx context.Context, queue string, loop func()) {
	if l.running[queue] {
		return
	}
	l.running[queue] = true
	l.all.Go(func() {
		loop()
		select {
		case l.ended <- queue:
		case <-ctx.Done():
		}
	})
}

// verdicts open a link once each queue was tried. A queue that is missing is none of the credentials' business; one that
// they give no right to is.
type verdicts struct {
	link *link

	mu sync.Mutex
	// tried holds the queues that were tried, each with its refusal, if any.
	tried  map[string]error
	queues []Subscription
	// asked holds the queues of which something was asked that the broker has not answered.
	asked map[string]bool
	// answered is closed when the broker has answered something that was asked of a queue. A queue that is tried while nothing is
	// received was asked nothing.
	answered chan struct{}
	closed   bool
}

func newVerdicts(l *link) *verdicts {
	return &verdicts{link: l, tried: map[string]error{}, asked: map[string]bool{}, answered: make(chan struct{})}
}

// ask asks the broker something about a queue. An answer is all but the end of the connection.
func (v *verdicts) ask(queue string, question func() error) error {
	v.mu.Lock()
	v.asked[queue] = true
	v.mu.Unlock()
	err := question()
	if answer, _ := errors.AsType[*amqp091.Error](err); err == nil || answer != nil && answer.Recover {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.asked, queue)
		if !v.closed {
			v.closed = true
			close(v.answered)
		}
	}
	return err
}

// waiting are the queues of which the broker has left something unanswered.
func (v *verdicts) waiting() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.asked))
}

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

// postpone says that a queue is not tried yet, because nothing is to be received.
func (v *verdicts) postpone() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.link.open(errUnasked)
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
func (c *Consumer) consumeQueue(ctx context.Context, l *link, queue, alone string, verdicts *verdicts) {
	last := repeated{log: c.options.Log.With("queue", queue)}
	for ctx.Err() == nil && !l.conn.IsClosed() {
		channel, err := l.conn.Channel()
		if err == nil {
			if err = c.consumeOn(ctx, l, channel, queue, alone, verdicts); err == nil {
				return
			}
		}
		verdicts.give(queue, err)
		if answer, _ := errors.AsType[*amqp091.Error](err); answer != nil && answer.Recover {
			c.tell(queue, err)
		}
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

func (c *Consumer) consumeOn(ctx context.Context, l *link, channel *amqp091.Channel, queue, alone string, verdicts *verdicts) error {
	tagged := fmt.Sprintf("redrive-%d-", l.wire.channels.Add(1))
	defer func() {
		_ = channel.Close()
		l.wire.door.Load().gone(int64(l.wire.apart.drop(tagged))) // what was not taken is delivered again
	}()
	life, end := context.WithCancel(ctx)
	defer end()
	s := &consuming{
		consumer: c, queue: queue, alone: alone, wire: l.wire, channel: channel, life: life, retired: l.retired, verdicts: verdicts,
		settlements: newSettlements(), loans: map[uint64]*loan{}, log: c.options.Log, tagged: tagged,
	}
	return s.run(ctx)
}
