package amqp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

const (
	// inFlight is how many messages of a destination may await their confirm. RabbitMQ stops reading a whole connection when one of
	// its channels has 200 to 400 messages more than that can hand on, as where a quorum queue has no leader: this is less.
	// The buffer for returns is as large, for the library drops a return, silently, when nobody takes it for
	// five seconds.
	inFlight = 128
	// inFlightBytes is how large they may be together before no other one is added.
	inFlightBytes = 4 << 20
	// unheard is how many messages may be published beyond the last one that the library has told of. It tells in order, so one that
	// is not confirmed holds back what it tells of all behind, which may be judged, and replaced by others, long before. It tells the
	// rest at once then, under a lock that the next publish needs, and reads nothing for the whole connection meanwhile: there
	// must be room for all of that.
	unheard = 8 * inFlight
	// lookTime is the time between two looks at what is in flight, and idleTime how long a channel stays open without use.
	lookTime = 500 * time.Millisecond
	idleTime = time.Minute
)

// mark is the message's own id where no other message in flight has it, or else a header of ours, which costs the broker as much as
// any header does, on each hop.
type mark struct{ messageID, header string }

// publishing is one channel, that only one goroutine uses, and what awaits its confirm on it.
type publishing struct {
	session *publishSession
	outlet  *outlet
	channel *amqp091.Channel
	// unreadable is the name of the header that stands for those that cannot be read.
	unreadable string
	// alone is true of a channel for one message only.
	alone bool
	// window bounds byTag, and bytes is how large those messages are.
	window int
	bytes  int
	// next is the tag of the last publish, and told that of the last one that the library has told of.
	next   uint64
	told   uint64
	byTag  map[uint64]*request
	byMark map[mark]*request
	used   time.Time
	// heard is when the last of those was sent that the broker has confirmed or refused.
	heard    time.Time
	returns  chan amqp091.Return
	confirms chan amqp091.Confirmation
	closed   chan *amqp091.Error
	// doubt is set once a message came back of which nobody knows which it was: no confirm of the channel counts from then on.
	doubt error
}

// begin opens a channel with confirms.
func (s *publishSession) begin(o *outlet, alone bool) (*publishing, error) {
	channel, err := s.link.conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	s.opened()
	if err := channel.Confirm(false); err != nil {
		s.channels.Add(-1)
		return nil, fmt.Errorf("switch confirms on: %w", err)
	}
	return &publishing{
		session:    s,
		outlet:     o,
		channel:    channel,
		unreadable: s.link.wire.mark,
		alone:      alone,
		window:     o.windowNow(),
		byTag:      map[uint64]*request{},
		byMark:     map[mark]*request{},
		used:       time.Now(),
		returns:    channel.NotifyReturn(make(chan amqp091.Return, inFlight)),
		confirms:   channel.NotifyPublish(make(chan amqp091.Confirmation, unheard)),
		closed:     channel.NotifyClose(make(chan *amqp091.Error, 1)),
	}, nil
}

// run returns nil when the channel is needed no more, or the session is over, and else why the channel is of no use any more.
func (c *publishing) run(ctx context.Context, first *request) error {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	if err := c.publishAll(first); err != nil {
		return err
	}
	retired := c.session.link.retired
	if c.alone {
		retired = nil
	}
	for retired != nil || len(c.byTag) > 0 {
		taking, changed := c.session.taking.get()
		select {
		case r := <-c.open(taking && retired != nil):
			if err := c.publishAll(r); err != nil {
				return err
			}
		case confirmed, ok := <-c.confirms:
			if !ok {
				return c.closedBy(<-c.closed)
			}
			c.told = confirmed.DeliveryTag
			c.confirm(confirmed.DeliveryTag, c.isAcked(&confirmed))
		case cause := <-c.closed:
			return c.closedBy(cause)
		case now := <-tick.C:
			if over, err := c.look(now, retired == nil); over || err != nil {
				return err
			}
		case <-changed:
		case <-retired:
			retired = nil
		case <-ctx.Done():
			return nil
		}
		if c.doubt != nil {
			c.outlet.narrow(inFlight)
			return c.doubt
		}
	}
	return nil
}

// open gives messages to publish while there is room for them and for their confirms.
func (c *publishing) open(taking bool) <-chan *request {
	if !taking || c.full() {
		return nil
	}
	if stalled, _ := c.outlet.stalled.get(); stalled {
		return nil
	}
	return c.outlet.requests
}

func (c *publishing) full() bool {
	return len(c.byTag) >= c.window || c.bytes >= inFlightBytes || c.next-c.told >= unheard
}

// publishAll publishes a message, and all others that wait to be, with as few writes as possible.
func (c *publishing) publishAll(r *request) (err error) {
	wire := c.session.link.wire
	wire.hold()
	for err == nil && r != nil {
		if err = c.publish(r); err != nil {
			break
		}
		select {
		case r = <-c.open(!c.alone):
		default:
			r = nil
		}
	}
	return errors.Join(err, wire.release())
}

func (c *publishing) publish(r *request) (err error) {
	c.next++
	out := toPublishing(r.message)
	delete(out.Headers, message.HeaderPublishID) // of somebody else's publication
	r.mark = mark{messageID: out.MessageId}
	if out.MessageId == "" || c.byMark[r.mark] != nil {
		r.mark.header = strconv.FormatUint(c.next, 36)
		out.Headers[message.HeaderPublishID] = r.mark.header
	}
	if err := publishable(&out); err != nil {
		c.next--
		r.answer(fmt.Errorf("%w: %w", ErrUnpublishable, err))
		return nil
	}
	r.sent = time.Now()
	c.used = r.sent
	c.byTag[c.next], c.byMark[r.mark] = r, r
	c.bytes += len(out.Body)
	c.session.unanswered.Add(1)
	r.confirm, err = c.channel.PublishWithDeferredConfirm(r.message.Exchange, r.message.RoutingKey, true, false, out)
	if err != nil {
		return fmt.Errorf("publish to exchange %q: %w", r.message.Exchange, err)
	}
	return nil
}

// fastReply is a reply-to that RabbitMQ takes only from a channel which consumes replies: it would end ours. Over AMQP 1.0, from 4.0 on, a producer
// can send it all the same.
const fastReply = "amq.rabbitmq.reply-to"

// publishable says why a message cannot be published.
func publishable(out *amqp091.Publishing) error {
	if out.ReplyTo == fastReply {
		return fmt.Errorf("RabbitMQ takes the property reply-to %q from the channel alone that consumes the replies", fastReply)
	}
	return out.Headers.Validate() //nolint:wrapcheck // the caller says of what
}

// confirm judges one publish. The broker sends the return of a message before its confirm, so all returns are read first.
func (c *publishing) confirm(tag uint64, ack bool) {
	for drained := false; !drained; {
		select {
		case returned, ok := <-c.returns:
			if ok {
				c.noteReturn(&returned)
			}
			drained = !ok
		default:
			drained = true
		}
	}
	r := c.byTag[tag]
	if r != nil && r.sent.After(c.heard) {
		c.heard = r.sent
	}
	switch {
	case r == nil || c.doubt != nil:
	case !ack:
		c.outlet.note(time.Now(), ErrRefused)
		c.outlet.stall(false) // it says something; what else is silent shows with the next look
		c.answer(tag, fmt.Errorf("%w: %w", ErrUnconfirmed, ErrRefused))
	case r.returned != nil && !r.elsewhere:
		c.outlet.unroutable()
		c.answer(tag, r.returned)
	default:
		c.outlet.works()
		c.answer(tag, r.returned)
	}
}

func (c *publishing) answer(tag uint64, result error) {
	r := c.byTag[tag]
	delete(c.byTag, tag)
	delete(c.byMark, r.mark)
	c.bytes -= len(r.message.Body)
	c.session.unanswered.Add(-1)
	c.session.answered.Add(1)
	c.window = c.outlet.answered()
	r.answer(result)
}

// look sees to what is in flight. The channel is over when it was not used for long, or cannot be waited for.
func (c *publishing) look(now time.Time, retired bool) (over bool, err error) {
	c.confirmed()
	if len(c.byTag) == 0 {
		return now.Sub(c.used) > idleTime, nil
	}
	// While the broker reads nothing, silence is nobody's fault, and what is in flight will be confirmed: other copies would be too.
	if c.session.blocked.Load() {
		return false, nil
	}
	oldest, silent := now, now
	for _, r := range c.byTag {
		since := c.readSince(r)
		if since.Before(oldest) {
			oldest = since
		}
		if since.Before(silent) && (r.sent.After(c.heard) || c.full()) {
			silent = since
		}
		if r.elsewhere && now.Sub(since) > overdueTime {
			r.answer(fmt.Errorf("%w: %w", ErrUnconfirmed, ErrSilent))
		}
	}
	if now.Sub(silent) > stalledTime {
		c.stall(silent)
	}
	if waits := now.Sub(oldest); waits > recycleTime || retired && waits > overdueTime {
		return true, ErrSilent
	}
	return false, nil
}

// readSince is from when on the broker could read a message.
func (c *publishing) readSince(r *request) time.Time {
	if resumed := c.session.resumed.Load(); resumed != nil && r.sent.Before(*resumed) {
		return *resumed
	}
	return r.sent
}

// stall publishes nothing more to a destination that confirms nothing. One message that is not confirmed, while those behind it are, says nothing
// of the destination, unless there is no room for more.
func (c *publishing) stall(silent time.Time) {
	if is, _ := c.outlet.stalled.get(); is {
		return
	}
	c.outlet.note(silent, ErrSilent)
	c.outlet.stall(true)
	c.outlet.warn("messages are held: the broker confirms nothing that is published to a destination", ErrSilent, "inFlight", len(c.byTag))
}

// confirmed judges what the broker has confirmed, which the library holds back until all that was published before is too.
func (c *publishing) confirmed() {
	for tag, r := range c.byTag {
		if r.confirm != nil && r.confirm.Acked() {
			c.confirm(tag, true)
		}
	}
}

// isAcked judges a confirm that the library has put in order. It takes one that is for several messages for all up to there, also for
// one that the broker has refused before: what was noted of the message itself is right.
func (c *publishing) isAcked(confirmed *amqp091.Confirmation) bool {
	r := c.byTag[confirmed.DeliveryTag]
	if r == nil || r.confirm == nil {
		return confirmed.Ack
	}
	return r.confirm.Acked()
}

// closedBy judges the end of a channel by the broker. A message that the broker does not take at all, such as one that is
// larger than it has come to allow, would end one channel after the other, with all that is in flight. The broker does not
// say which one it was, so the next channel publishes one at a time, until it is found. One that ends the connection is
// looked for by the next session in the same way, among those of all destinations. It is nil for a message that was found.
func (c *publishing) closedBy(cause *amqp091.Error) error {
	if cause == nil || !cause.Server || cause.Code != amqp091.PreconditionFailed && cause.Code != amqp091.FrameError {
		return closing(cause)
	}
	c.confirmed()
	found := len(c.byTag) == 1 && c.doubt == nil
	if cause.Code == amqp091.FrameError {
		found = found && c.session.unanswered.Load() == 1
		if !found && len(c.byTag) > 0 && !c.session.link.isRetired() {
			c.session.publisher.searching.Store(true)
		}
	} else {
		c.outlet.narrow(inFlight) // more like it may follow
	}
	if !found {
		return cause
	}
	for _, r := range c.byTag {
		r.answer(fmt.Errorf("%w: %w", ErrUnpublishable, cause))
	}
	c.outlet.found()
	return nil // it is the message's trouble, and not that of the destination
}

// noteReturn finds the message that came back. Its mark may be lost: the headers of a return may be more than can be read. What
// came back is not in any queue, so it must not count as published with the rest.
func (c *publishing) noteReturn(returned *amqp091.Return) {
	header, _ := returned.Headers[message.HeaderPublishID].(string)
	r := c.byMark[mark{messageID: returned.MessageId, header: header}]
	if _, unreadable := returned.Headers[c.unreadable]; unreadable {
		r = c.only(returned.MessageId)
	} else if len(c.byTag) == 1 {
		for _, only := range c.byTag {
			r = only
		}
	}
	if r == nil {
		c.doubt = fmt.Errorf("a message came back from exchange %q, routing key %q (%s), and which of the %d in flight it was cannot be told",
			returned.Exchange, returned.RoutingKey, returned.ReplyText, len(c.byTag))
		return
	}
	r.returned = fmt.Errorf("%w: exchange %q, routing key %q: %s", ErrUnroutable, returned.Exchange, returned.RoutingKey, returned.ReplyText)
}

// only is the message in flight with a message-id; nil where there are more.
func (c *publishing) only(messageID string) *request {
	var only *request
	for _, r := range c.byTag {
		if r.mark.messageID == messageID {
			if only != nil {
				return nil
			}
			only = r
		}
	}
	return only
}

// end answers everyone who still waits: the channel is over, and with it the knowledge of what the broker has.
func (c *publishing) end() {
	c.confirmed()
	// While a message is looked for that ends the connection, those count that were in flight with it.
	if c.alone && !c.session.link.conn.IsClosed() {
		c.session.unanswered.Add(-int64(len(c.byTag)))
	}
	for tag, r := range c.byTag {
		delete(c.byTag, tag)
		r.answer(fmt.Errorf("%w: the channel ended", ErrUnconfirmed))
	}
}
