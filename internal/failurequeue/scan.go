// Package failurequeue reads a failure queue and leaves it as it was: it takes all messages without acknowledging them, block by block,
// and gives them back in their order. Whatever ends it, the broker has everything again.
package failurequeue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/topology"
)

// Options of a scan.
type Options struct {
	Target amqp.Target
	// Dial opens the socket; nil is the system's.
	Dial amqp.Dial
	// Queue is the failure queue, and Lock the name of the exclusive queue that keeps a second scan out.
	Queue, Lock string
	// Holder says who scans, for others who want to. Everybody who may see the broker's queues sees it.
	Holder string
	// silence is how long the next message may take; 0 is the usual.
	silence time.Duration
	// Check, if set, is asked once nobody else can scan, and before anything is taken. Its error ends the scan.
	Check func(context.Context) error
	// State, if set, is what the management API tells of the queue. By it the scan waits for messages that are still with others, after a scan or a
	// broker was killed; where they stay there, its error is ErrNotWhole.
	State func(context.Context) (topology.QueueState, error)
	// Tell, if set, gets what whoever waits for the scan should know.
	Tell func(text string)
	// wait bounds the waiting by State; 0 is the usual.
	wait time.Duration
	// Connection, if set, is used in place of Target, and stays open.
	Connection *amqp.Connection
}

// HolderArgument is the argument of the lock that says who holds it.
const HolderArgument = "redrive-holder"

// Bounds of a block: what is on its way at once. RabbitMQ before 3.12 sends a block in one burst, and on 4.0 many messages on one channel
// are slow to give back.
const (
	firstBlock = 100
	mostBlock  = 4000
	blockBytes = 4 << 20
	// maxBlocks bounds the channels of a scan where RabbitMQ allows many, as by default, and otherChannels are those that it leaves for all else.
	maxBlocks     = 2000
	otherChannels = 8
)

const (
	usualSilence = 15 * time.Second
	// restWithin bounds how long the rest of the messages is taken after an interruption.
	restWithin = 30 * time.Second
	// giveBackWithin bounds giving back in order; what takes longer comes back when the connection ends, in blocks of any order.
	giveBackWithin = 30 * time.Second
	// endWithin bounds all that follows an interruption: RabbitMQ may answer nothing any more.
	endWithin = restWithin + giveBackWithin + 10*time.Second
	// returnWithin is how long a block may take to come back before the next one is given back, and returnPause the pause between two
	// blocks where the login may not ask the queue.
	returnWithin = time.Second
	returnPause  = 20 * time.Millisecond
)

// ErrLocked says that somebody else reads the failure queue.
var ErrLocked = errors.New("another look at the failure queue is under way")

// Scan shows visit each message of the failure queue, the oldest first, and gives them all back. What comes into the queue meanwhile is
// not shown. It returns how many messages visit has seen; with an error these are not all, and with ErrNotWhole they are all but what others had.
//
// visit must not keep the body, nor the headers, beyond what it needs: all are in memory one block at a time. After its error, or when the
// context ends, nothing more is shown, and the rest is taken all the same: what is given back goes behind what was not taken, if that was
// given back before.
func Scan(ctx context.Context, options Options, visit func(message.Message) error) (seen int, err error) {
	return Hold(ctx, options, func(h *Held) error { return visit(h.Message) }, func() error { return nil })
}

// Hold is Scan for one who takes messages out of the queue: visit may settle what it is shown, also later, until finish returns. All that is not
// settled goes back. finish is called once, when nothing more is shown. RabbitMQ forgets acks that it has not passed on to the queue when their channel ends:
// what was settled last may be there again, and who has to be sure holds the queue once more.
func Hold(ctx context.Context, options Options, visit func(*Held) error, finish func() error) (seen int, err error) {
	connection := options.Connection
	if connection == nil {
		if connection, err = amqp.Connect(ctx, &options.Target, options.Dial, "redrive failed"); err != nil {
			return 0, err
		}
		defer connection.End(giveBackWithin)
		defer context.AfterFunc(ctx, func() { connection.Finish(endWithin) })()
	}
	s := &scan{Options: options, connection: connection, channels: int(connection.Config.ChannelMax), visit: visit}
	if s.silence == 0 {
		s.silence = usualSilence
	}
	if s.wait == 0 {
		s.wait = usualWait
	}
	if s.Lock != "" {
		if err := s.lock(); err != nil {
			return 0, err
		}
		// The end of the connection frees the lock as well, but some versions of RabbitMQ do so a little later.
		defer func() { _, _ = s.locks.QueueDelete(s.Lock, false, false, false) }()
	}
	if options.Check != nil {
		if err := options.Check(ctx); err != nil {
			return 0, err
		}
	}
	if options.State != nil {
		if err := s.whole(ctx); err != nil {
			return 0, err
		}
	}
	defer s.giveBack()
	err = s.all(ctx)
	if err = errors.Join(s.ended, err, finish()); err == nil {
		err = s.partial
	}
	return s.seen, err
}

// Held is a message that is taken and not acknowledged.
type Held struct {
	message.Message

	delivery *amqp091.Delivery
	block    *block
}

// Settle takes the message out of the queue for good. It may be called from any goroutine.
func (h *Held) Settle() error { return h.block.settle(h.delivery) }

// scan is one session: the lock and all that is held are on one connection, so that they end together.
type scan struct {
	Options

	connection *amqp.Connection
	// channels is how many the connection may have.
	channels int
	// locks is the channel that has declared the lock.
	locks *amqp091.Channel
	visit func(*Held) error
	// blocks are the channels that hold messages, in the order of the messages.
	blocks []*block
	// taken are the messages that are held, bytes those of their bodies, and seen the messages that visit has seen.
	taken, seen int
	bytes       int64
	// ended is why visit sees no more.
	ended error
	// partial is why it cannot see all messages.
	partial error
	// over ends the taking of the rest after an interruption.
	over <-chan time.Time
}

// block is a channel with what it holds.
type block struct {
	channel *amqp091.Channel
	// tag of the consumer; empty where there is none.
	tag string

	mu sync.Mutex
	// holds is how many messages.
	holds int
	// early are to be acknowledged when the consumer is gone: for each it would get another message, which belongs to the next block.
	early []*amqp091.Delivery
}

func (b *block) settle(delivery *amqp091.Delivery) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tag != "" {
		b.early = append(b.early, delivery)
		return nil
	}
	return b.acknowledge(delivery)
}

func (b *block) acknowledge(delivery *amqp091.Delivery) error {
	if err := delivery.Ack(false); err != nil {
		return fmt.Errorf("acknowledge a message: %w", err)
	}
	b.holds--
	return nil
}

// end ends the consumer. What it has delivered stays with the channel.
func (b *block) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tag == "" {
		return nil
	}
	if err := b.channel.Cancel(b.tag, false); err != nil {
		return fmt.Errorf("cancel a consumer: %w", err)
	}
	b.tag = ""
	for _, delivery := range b.early {
		if err := b.acknowledge(delivery); err != nil {
			return err
		}
	}
	b.early = nil
	return nil
}

func (b *block) held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds
}

func (b *block) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
}

// lock declares an exclusive queue, which no other connection can while this one lasts. The flag exclusive of a consumer would be none: quorum
// queues do not enforce it.
func (s *scan) lock() error {
	channel, err := s.connection.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	s.locks = channel
	_, err = channel.QueueDeclare(s.Lock, false, false, true, false, amqp091.Table{
		amqp091.QueueTypeArg: amqp091.QueueTypeClassic, HolderArgument: s.Holder,
	})
	refused, is := errors.AsType[*amqp091.Error](err)
	switch {
	case is && refused.Code == amqp091.ResourceLocked:
		return ErrLocked
	case is && refused.Code == amqp091.AccessRefused:
		return fmt.Errorf("user %q may not declare the queue %q, by which only one reads the failure queue at a time: grant it configure on %q: %w",
			s.Target.Username, s.Lock, s.Lock, err)
	case err != nil:
		return fmt.Errorf("declare the queue %q: %w", s.Lock, err)
	}
	return nil
}

// all takes the first message alone, which tells how many there are, and then the others.
func (s *scan) all(ctx context.Context) error {
	left, err := s.first(ctx)
	if err != nil {
		return err
	}
	whole := left
	for left > 0 {
		size := min(left, s.blockSize(left))
		taken, err := s.next(ctx, size)
		left -= taken
		switch {
		case err == nil:
		case taken < size && errors.Is(err, errSilent):
			return fmt.Errorf("%d of %d messages came, and none within %v: another consumer takes them from the failure queue %q, or RabbitMQ has no "+
				"leader for it; what was seen is not all", whole-left+1, whole+1, s.silence, s.Queue)
		default:
			return err
		}
	}
	return nil
}

// first takes one message, and returns how many are behind it.
func (s *scan) first(ctx context.Context) (behind int, err error) {
	channel, err := s.connection.Channel()
	if err != nil {
		return 0, fmt.Errorf("open a channel: %w", err)
	}
	delivery, ok, err := channel.Get(s.Queue, false)
	if err != nil {
		return 0, fmt.Errorf("read the failure queue %q: %w", s.Queue, err)
	}
	if !ok {
		return 0, nil
	}
	b := &block{channel: channel}
	s.blocks = append(s.blocks, b)
	s.show(ctx, b, &delivery)
	return int(delivery.MessageCount), nil
}

// blockSize is how many messages come at once: as many as take some megabytes.
func (s *scan) blockSize(left int) int {
	average := max(1, int(s.bytes)/s.taken)
	size := min(max(blockBytes/average, 1), mostBlock)
	if len(s.blocks) < 2 {
		size = min(size, firstBlock)
	}
	room := max(1, min(maxBlocks, s.channels-otherChannels)-len(s.blocks))
	return min(max(size, (left+room-1)/room), math.MaxUint16)
}

var errSilent = errors.New("no message came")

// next takes a block of messages on a channel of its own. Nothing beyond them is delivered to it: none is acknowledged, and it may hold no more.
func (s *scan) next(ctx context.Context, size int) (taken int, err error) {
	channel, err := s.connection.Channel()
	if err != nil {
		return 0, fmt.Errorf("open a channel: %w", err)
	}
	ended := channel.NotifyClose(make(chan *amqp091.Error, 1))
	cancelled := channel.NotifyCancel(make(chan string, 1))
	if err := channel.Qos(size, 0, false); err != nil {
		return 0, fmt.Errorf("set the prefetch: %w", err)
	}
	b := &block{channel: channel, tag: fmt.Sprintf("redrive-failed-%d", len(s.blocks))}
	deliveries, err := channel.Consume(s.Queue, b.tag, false, false, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("consume the failure queue %q: %w", s.Queue, err)
	}
	s.blocks = append(s.blocks, b)
	silent := time.NewTimer(s.silence)
	defer silent.Stop()
	interrupted := ctx.Done()
	for taken < size {
		silent.Reset(s.silence)
		select {
		case delivery, ok := <-deliveries:
			if !ok {
				deliveries = nil // one of the others says why
				continue
			}
			taken++
			s.show(ctx, b, &delivery)
		case _, is := <-cancelled:
			if !is {
				cancelled = nil // as above
				continue
			}
			return taken, fmt.Errorf("RabbitMQ has cancelled the consumer of the failure queue %q: the queue, or its leader, is gone, or the "+
				"consumer timeout has passed; all messages come back", s.Queue)
		case err := <-ended:
			return taken, s.lost(err)
		case <-silent.C:
			return taken, errSilent
		case <-interrupted:
			if interrupted = nil; s.over == nil {
				s.over = time.After(restWithin)
			}
		case <-s.over:
			return taken, errors.New("the rest did not come in time: the messages may be in another order")
		}
	}
	return taken, b.end()
}

func (s *scan) lost(err *amqp091.Error) error {
	switch {
	case err == nil:
		return errors.New("the connection to RabbitMQ has ended: all messages come back to the failure queue")
	case err.Code == amqp091.InternalError:
		return fmt.Errorf("RabbitMQ has ended the look at the failure queue, and all messages come back: %w: a message may have what AMQP 0-9-1 cannot "+
			"express, and only an AMQP 1.0 client can take that out", err)
	}
	return fmt.Errorf("RabbitMQ has ended the look at the failure queue, and all messages come back: %w", err)
}

func (s *scan) show(ctx context.Context, b *block, delivery *amqp091.Delivery) {
	s.taken++
	b.hold()
	s.bytes += int64(len(delivery.Body))
	if s.ended == nil && ctx.Err() != nil {
		s.ended = fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if s.ended == nil {
		s.seen++
		s.ended = s.visit(&Held{Message: s.connection.Message(delivery), delivery: delivery, block: b})
	}
}

func (s *scan) tell(text string) {
	if s.Tell != nil {
		s.Tell(text)
	}
}

// giveBack returns all messages in their order: first no consumer is left, or what comes back would be delivered here again; then each
// channel is closed, and the next one only when the queue has the messages of the one before.
func (s *scan) giveBack() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, b := range s.blocks {
			_ = b.end()
		}
		back := s.newReady()
		for _, b := range s.blocks {
			_ = b.channel.Close()
			back.await(b.held())
		}
	}()
	select {
	case <-done:
	case <-time.After(giveBackWithin):
		s.tell(fmt.Sprintf("the messages of the queue %q could not be given back in time: they may be in another order", s.Queue))
	}
}

// ready follows how many messages the failure queue has to deliver.
type ready struct {
	scan    *scan
	channel *amqp091.Channel
	// expected is how many there are once all has come back that was given back.
	expected int
	err      error
}

func (s *scan) newReady() *ready {
	r := &ready{scan: s}
	if r.channel, r.err = s.connection.Channel(); r.err == nil {
		r.expected, r.err = r.count()
	}
	return r
}

// end closes its channel.
func (r *ready) end() {
	if r.channel != nil {
		_ = r.channel.Close()
	}
}

func (r *ready) count() (int, error) {
	if r.channel == nil {
		return 0, r.err
	}
	queue, err := r.channel.QueueDeclarePassive(r.scan.Queue, true, false, false, false, nil)
	return queue.Messages, err //nolint:wrapcheck // it is not told
}

// await waits until so many more have come back. Where the login may not ask, it waits for as long as that takes usually.
func (r *ready) await(messages int) {
	r.expected += messages
	count := r.expected
	for until := time.Now().Add(returnWithin); r.err == nil && time.Now().Before(until); time.Sleep(time.Millisecond) {
		if count, r.err = r.count(); r.err == nil && count >= r.expected {
			return
		}
	}
	r.expected = count // some have expired, or somebody took them
	if r.err != nil && !r.scan.connection.IsClosed() {
		time.Sleep(returnPause)
	}
}
